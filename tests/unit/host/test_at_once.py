"""Calls at the same time: results, errors, and the clock on which the caller waits."""

from __future__ import annotations

import threading

import pytest

from harness.federation.memory.clocks import VirtualClock
from host.clock import SYSTEM, at_once


def test_calls_run_at_the_same_time_and_each_gives_its_result() -> None:
    together = threading.Barrier(2)
    found = at_once({name: lambda: together.wait(30) for name in "ab"}, SYSTEM, "test")
    assert sorted(found) == ["a", "b"]
    assert sorted(found.values()) == [0, 1]  # neither came through the barrier alone


def test_the_first_error_in_order_is_raised_after_all_have_ended() -> None:
    ended: list[str] = []
    last = threading.Event()

    def fails(name: str) -> None:
        if name == "a":
            assert last.wait(30)  # the first in order is the last in time
        ended.append(name)
        last.set()
        raise ValueError(name)

    with pytest.raises(ValueError, match="a"):
        at_once({"a": lambda: fails("a"), "b": lambda: fails("b")}, SYSTEM, "test")
    assert ended == ["b", "a"]


def test_time_passes_on_the_callers_clock_while_a_call_waits_and_another_has_ended() -> None:
    """A pool's idle thread, or a caller that joins, would count as one that works, and time would stand still."""
    clock, nobody = VirtualClock(), threading.Event()
    passed: list[dict[str, bool | None]] = []
    calls = {"at once": lambda: None, "slow": lambda: clock.wait(nobody, 50.0)}
    caller = threading.Thread(target=lambda: passed.append(at_once(calls, clock, "test")))
    caller.start()
    with clock.outside():
        while caller.is_alive():
            if clock.everybody_waits():
                clock.pass_time(None)  # False where the caller has just ended
    assert passed == [{"at once": None, "slow": False}]
    assert clock.monotonic() == 50.0
