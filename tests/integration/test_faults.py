"""``moiety faults``: what a seed draws, what is written of many, and one whole study that dies and comes back."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

import moiety
from harness.adversaries.catalogue.attack import passes, taken_out
from harness.faults import cli
from harness.faults.cli import collected, parsed
from harness.faults.schedule import Schedule
from harness.faults.simulated import Simulated, simulated
from protocol.errors import ConfigurationError

SEED = 8
"""Servers and agents restart, requests come twice, answers are lost."""


def test_a_seed_is_the_whole_schedule_and_seeds_differ() -> None:
    assert Schedule.drawn(3) == Schedule.drawn(3)
    drawn = [Schedule.drawn(seed) for seed in range(200)]
    assert len({one.restarts for one in drawn}) > 100
    assert {len(one.restarts) for one in drawn} == {0, 1, 2, 3}
    for rate in ("lost", "answer_lost", "copied", "cut", "broken_off", "held_back", "silent", "slow"):
        assert {getattr(one, rate) == 0 for one in drawn} == {True, False}, rate


def test_seeds_are_a_number_or_a_range() -> None:
    assert (list(parsed("7")), list(parsed("2-4"))) == ([7], [2, 3, 4])
    for wrong in ("", "4-2", "-1", "a", "1,2", "0-99999999"):
        with pytest.raises(ConfigurationError, match="--seeds takes a number"):
            parsed(wrong)


def test_what_failed_is_said_with_the_command_that_shows_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(seed: int) -> Simulated:
        broken = ("c1: no end",) if seed == 1 else ()
        return Simulated(seed, 10, Counter({"request lost": seed}), ("completed: all rounds are done",), broken)

    monkeypatch.setattr(cli, "simulated", made)
    file = tmp_path / "found.json"
    result = CliRunner().invoke(moiety.build("faults"), ["faults", "--seeds", "0-2", "--json", str(file)])
    assert result.exit_code == 1
    assert "FAILED 1: c1: no end" in result.output
    assert "again: moiety faults --seeds 1" in result.output
    assert "3 runs, 1 failed, 30 steps, 3 faults" in result.output
    found = json.loads(file.read_text())
    assert (found["runs"], found["failed"], found["steps"]) == (3, 1, 30)
    assert found["faults_injected"] == {"request lost": 3}
    assert found["failures"] == [{"seed": 1, "broken": ["c1: no end"], "again": "moiety faults --seeds 1"}]
    assert collected([made(2), made(0)]).failed == 0


def test_nothing_is_broken_after_a_seeds_accidents_and_what_would_break_it_is_seen() -> None:
    found = simulated(SEED)
    assert found.failed == ()
    assert {"restart of server b", "restart of an agent", "request copied", "answer lost"} <= set(found.injected)
    with taken_out({"servers.store.sql.SqlStore.remember_nonce": passes}):
        assert any("carried out twice" in broken for broken in simulated(SEED).failed)
