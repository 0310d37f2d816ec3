"""Altered inputs into every decoder: taken or refused, never a crash, in bounded time and memory.

Thirty thousand in every test run, two million in ``make soak``.
"""

from __future__ import annotations

import json
import resource
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

import pytest

from protocol.errors import MalformedMessage
from tests.frozen.examples import EXAMPLES
from tests.fuzz.counts import keep_counts
from tests.fuzz.decoders import Decoder, decoders
from tests.fuzz.mutations import mutated, mutated_json

MOST_GROWN_MB: Final = 60.0
SLOW_S: Final = 0.5
_SHOWN_BYTES: Final = 4000
_MOST_SHOWN: Final = 5


@dataclass
class DecoderCount:
    """The inputs that one decoder took and refused; ``found``: some that it did neither with, or took long for."""

    name: str
    taken: int = 0
    refused: int = 0
    crashes: int = 0
    slowest_s: float = 0.0
    found: list[str] = field(default_factory=list)


@dataclass
class Fuzzed:
    """``grown_mb``: by how much the process's largest memory grew after the first input."""

    seed: int
    decoders: list[DecoderCount]
    cpu_s: float
    grown_mb: float

    def total(self, what: str) -> int:
        return sum(getattr(one, what) for one in self.decoders)

    @property
    def found(self) -> list[str]:
        return [line for one in self.decoders for line in one.found]


def fuzz(inputs: int, seed: int, chosen: Sequence[Decoder] | None = None) -> Fuzzed:
    """So many inputs in all, the same ones for the same seed."""
    every = decoders() if chosen is None else tuple(chosen)
    shares = sum(one.share for one in every)
    begun = time.process_time()
    _feed(every[0], Random(seed), 1)
    before = _peak_mb()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        counts = [
            _feed(one, Random(f"{seed} {place} {one.name}"), max(1, round(inputs * one.share / shares)))
            for place, one in enumerate(every)
        ]
    return Fuzzed(seed, counts, time.process_time() - begun, _peak_mb() - before)


def _feed(one: Decoder, random: Random, number: int) -> DecoderCount:
    count = DecoderCount(one.name)
    for _ in range(number):
        data = one.mutate(one.valid, random)
        begun = time.thread_time()
        wrong = ""
        try:
            one.decode(data)
            count.taken += 1
        except one.refuses:
            count.refused += 1
        except Exception as crash:
            wrong = f"{type(crash).__name__}: {crash}"[:400]
        used_s = time.thread_time() - begun
        count.slowest_s = max(count.slowest_s, used_s)
        if used_s > SLOW_S:
            wrong = wrong or f"took {used_s:.1f} s of CPU"
        if wrong:
            count.crashes += 1
            if count.crashes <= _MOST_SHOWN:
                count.found.append(f"{one.name}: {wrong}: {data[:_SHOWN_BYTES].hex()}")
    return count


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def assert_sound(done: Fuzzed) -> None:
    assert not done.found, "\n".join(done.found)
    assert done.grown_mb < MOST_GROWN_MB
    assert done.total("refused") > done.total("taken")


def test_no_altered_input_is_neither_taken_nor_refused() -> None:
    done = fuzz(30_000, seed=1)
    assert_sound(done)
    assert {f"message {name}" for name in EXAMPLES} < {one.name for one in done.decoders}


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_two_million_altered_inputs() -> None:
    done = fuzz(2_000_000, seed=2)
    keep_counts("fuzz_inputs.json", done)
    assert_sound(done)
    assert done.total("taken") + done.total("refused") >= 1_000_000


def test_every_seed_gives_the_same_inputs_again() -> None:
    one = decoders()[0]
    for mutate in (mutated, mutated_json):
        made = [[mutate(one.valid, random) for _ in range(50)] for random in (Random(3), Random(3), Random(4))]
        assert made[0] == made[1] != made[2]
        assert len(set(made[0])) > 40


def test_a_crash_slow_input_and_a_refusal_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(data: bytes) -> object:
        found = json.loads(data)
        if len(found) < 2:
            raise MalformedMessage("too few")
        return found["name"]  # a decoder that forgot that the field may be missing

    monkeypatch.setattr(f"{__name__}.SLOW_S", 60.0)
    planted = Decoder("planted", (b'{"name":"a","number":1,"left":[]}',), decode, mutate=mutated_json)
    done = fuzz(400, 0, [planted])
    assert done.total("crashes") > 0
    assert {"KeyError", "JSONDecodeError"} <= {line.split(": ")[1] for line in done.found}
    assert done.total("taken") > 0
    assert len(done.found) == 5
    monkeypatch.setattr(f"{__name__}.SLOW_S", -1.0)
    slow = fuzz(3, 0, [Decoder("slow", (b"a",), bytes)])
    assert [line.rpartition(": ")[0] for line in slow.found] == ["slow: took 0.0 s of CPU"] * 3
