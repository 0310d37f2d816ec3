"""Altered inputs into every decoder: taken or refused, never a crash, in bounded time and memory.

Thirty thousand in every test run, two million in ``make soak``; the whole run again, or another one:
``python -m tests.fuzz.inputs --inputs N --seed S``.
"""

from __future__ import annotations

import json
from random import Random

import pytest

from protocol.errors import MalformedMessage
from tests.frozen.examples import EXAMPLES
from tests.fuzz import inputs
from tests.fuzz.decoders import Decoder, decoders
from tests.fuzz.inputs import fuzz
from tests.fuzz.mutations import mutated, mutated_json
from tests.kit.soak import INPUTS, FuzzedInputs, keep_counts

MOST_GROWN_MB = 60.0


def assert_sound(done: FuzzedInputs) -> None:
    assert not done.found, "\n".join(f"{one.decoder}: {one.what}: {one.data}" for one in done.found)
    assert done.grown_mb < MOST_GROWN_MB
    assert done.refused > done.inputs / 2
    assert all(one.inputs > 0 for one in done.decoders)


def test_no_altered_input_is_neither_taken_nor_refused() -> None:
    done = fuzz(30_000, seed=1)
    assert_sound(done)
    assert {f"message {name}" for name in EXAMPLES} < {one.name for one in done.decoders}


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_two_million_altered_inputs() -> None:
    done = fuzz(2_000_000, seed=2)
    keep_counts(INPUTS, done)
    assert_sound(done)
    assert done.inputs >= 1_000_000


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

    monkeypatch.setattr(inputs, "SLOW_S", 60.0)
    planted = Decoder("planted", (b'{"name":"a","number":1,"left":[]}',), decode, mutate=mutated_json)
    done = fuzz(400, 0, [planted])
    assert done.crashes > 0
    assert {"KeyError", "JSONDecodeError"} <= {one.what.partition(":")[0] for one in done.found}
    assert done.taken > 0
    assert len(done.found) == 5
    monkeypatch.setattr(inputs, "SLOW_S", -1.0)
    slow = fuzz(3, 0, [Decoder("slow", (b"a",), bytes)])
    assert [one.what for one in slow.found] == ["took 0.0 s of CPU"] * 3
