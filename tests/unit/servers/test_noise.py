"""A server's own noise: one secret a round, durable before anything depends on it, none after it was forgotten."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from protocol.arithmetic.discrete_gaussian import NoiseStream
from protocol.arithmetic.sum_noise import SumNoise
from protocol.errors import ProtocolViolation, WrongRound
from protocol.parameters import StudyParameters
from protocol.rounds.states import RoundKey
from protocol.wire.messages import Purpose, RoundState
from servers.points import Point
from servers.rounds.noise import OwnSum, noise_stream, with_noise_secret
from servers.store.study_records import RoundRecord

KEY = RoundKey("ab" * 32, 1, 1)
NOISE = SumNoise.of(StudyParameters(dimension=12, clip_norm=1.0, least_contributors=3), 1.0)
SEED = bytes(range(32))


class Store:
    def __init__(self, record: RoundRecord, noise: SumNoise | None) -> None:
        self.record = record
        self._study: Any = SimpleNamespace(study=SimpleNamespace(sum_noise=noise))

    def alone(self, study: str) -> AbstractContextManager[None]:
        return nullcontext()

    def study(self, digest: str) -> Any:
        return self._study

    def round(self, key: RoundKey) -> RoundRecord:
        return self.record

    def change_round(self, key: RoundKey, change: Any) -> RoundRecord:
        self.record = change(self.record)
        return self.record


def record(release: str = "cd" * 32, purpose: Purpose = Purpose.UPDATE) -> RoundRecord:
    announced: Any = SimpleNamespace(message=SimpleNamespace(purpose=purpose))
    chosen: Any = SimpleNamespace(message=SimpleNamespace(digest=lambda: release))
    return RoundRecord(KEY, RoundState.MEASURED, announced, 0.0, release_set=chosen)


def server(of: RoundRecord, noise: SumNoise | None = NOISE) -> Any:
    reached: list[Point] = []
    drawn = iter([SEED, bytes(32)])
    return SimpleNamespace(
        store=Store(of, noise),
        randomness=SimpleNamespace(bytes=lambda *_: next(drawn)),
        failpoints=SimpleNamespace(reach=reached.append),
        reached=reached,
    )


def test_a_rounds_secret_is_drawn_once_and_stored_before_it_is_used() -> None:
    at = server(record())
    first = with_noise_secret(at, record())
    again = with_noise_secret(at, record())
    assert first.noise_secret == again.noise_secret == SEED
    assert at.reached == [Point.BEFORE_NOISE_STORED, Point.AFTER_NOISE_STORED]


def test_another_release_set_has_another_noise() -> None:
    at = server(record())
    one, same, other = (replace(record(r), noise_secret=SEED) for r in ("cd" * 32, "cd" * 32, "ef" * 32))
    drawn = [noise_stream(at, of) for of in (one, same, other)]
    values = [stream.take(50) for stream in drawn if stream is not None]
    assert np.array_equal(values[0], values[1])
    assert not np.array_equal(values[0], values[2])


def test_what_was_forgotten_is_not_drawn_again() -> None:
    released = replace(record(), state=RoundState.RELEASED)
    with pytest.raises(WrongRound, match="there is no second noise"):
        with_noise_secret(server(released), released)


@pytest.mark.parametrize(("noise", "purpose"), [(None, Purpose.UPDATE), (NOISE, Purpose.COUNTS)])
def test_other_sums_have_none(noise: SumNoise | None, purpose: Purpose) -> None:
    of = record(purpose=purpose)
    at = server(of, noise)
    assert with_noise_secret(at, of).noise_secret is None
    assert noise_stream(at, of) is None


def test_a_sum_with_noise_is_made_from_its_beginning() -> None:
    own = OwnSum([], NoiseStream(100, SEED))
    own.next(0, 5)
    with pytest.raises(ProtocolViolation, match="expected element 5, found 0"):
        own.next(0, 5)
