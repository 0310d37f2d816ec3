"""A server against the other one's noise in a sum: averaged, guessed, or left alone with it (docs/protocol.md 21).

Server A makes its half with its own functions, over a record in memory; the updates are real ones, encoded.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from harness.adversaries.attack import Attempt, Found
from protocol.arithmetic.discrete_gaussian import NoiseStream
from protocol.arithmetic.fixed_point import clip, encode
from protocol.arithmetic.prg import derive
from protocol.arithmetic.ring import Ring, to_signed
from protocol.arithmetic.sum_noise import SumNoise
from protocol.parameters import StudyParameters
from protocol.rounds.states import RoundKey
from protocol.wire.messages import Purpose, RoundState
from servers.rounds import noise as at_server
from servers.store.study_records import RoundRecord

_PARAMETERS: Final = StudyParameters(dimension=100, clip_norm=1.0, least_contributors=3)
_MULTIPLIER: Final = 2.0
_NOISE: Final = SumNoise.of(_PARAMETERS, _MULTIPLIER)
_RELEASE: Final = "ab" * 32
_ASKED: Final = 64
_TRIALS: Final = 2000
_MOST_ADVANTAGE: Final = 0.1974
"""2 Phi(1 / (2 z)) - 1: the best test's, of one update of full length under one server's noise of multiplier 2."""
_CHANCE: Final = 0.06
"""Four deviations of a difference of two shares of so many trials."""


@dataclass
class _Store:
    """The record of one round, and its study."""

    record: RoundRecord = field(
        default_factory=lambda: RoundRecord(
            RoundKey("cd" * 32, 1, 1),
            RoundState.MEASURED,
            _message(purpose=Purpose.UPDATE),
            0.0,
            release_set=_message(digest=lambda: _RELEASE),
        )
    )

    def study(self, digest: str) -> Any:  # noqa: ANN401 -- stands for a study's record
        return SimpleNamespace(study=SimpleNamespace(sum_noise=_NOISE))

    def alone(self, study: str) -> AbstractContextManager[None]:
        """A server of one process: nobody else decides."""
        return nullcontext()

    def round(self, key: RoundKey) -> RoundRecord:
        return self.record

    def change_round(self, key: RoundKey, change: Callable[[RoundRecord], RoundRecord]) -> RoundRecord:
        self.record = change(self.record)
        return self.record


def _message(**fields: object) -> Any:  # noqa: ANN401 -- stands for a signed message
    return SimpleNamespace(message=SimpleNamespace(**fields))


def _server() -> Any:  # noqa: ANN401 -- as much of a server as noise needs
    return SimpleNamespace(
        store=_Store(),
        randomness=SimpleNamespace(bytes=lambda length, _: secrets.token_bytes(length)),
        failpoints=SimpleNamespace(reach=lambda _: None),
    )


def _half_of(server: Any, total: Ring) -> NDArray[np.float64]:  # noqa: ANN401 -- as above
    """What server A makes of its sum when it is asked, without its mask."""
    record = at_server.with_noise_secret(server, server.store.record)
    own = at_server.OwnSum([lambda start, stop: total[start:stop]], at_server.noise_stream(server, record))
    return to_signed(own.next(0, total.size)).astype(np.float64)


def _encoded(seed: int) -> Ring:
    update = clip(np.random.default_rng(seed).normal(size=_PARAMETERS.dimension), 1.0)[0]
    return encode(update, _PARAMETERS, bytes([seed]) * 32)


def _drawn_anew(server: object, record: RoundRecord) -> RoundRecord:
    return replace(record, noise_secret=secrets.token_bytes(32))


def _known_to_all(server: object, record: RoundRecord) -> RoundRecord:
    return replace(record, noise_secret=bytes(32))


def _averaged(_: Path) -> Found:
    """Server B says that A's masked sum did not arrive, and is sent it again and again."""
    server, total = _server(), _encoded(1)
    mean = np.mean([_half_of(server, total) for _ in range(_ASKED)], axis=0)
    left = float(np.std(mean - to_signed(total))) / _NOISE.deviation
    return Found(left < 1 / 2, left)


def _guessed(_: Path) -> Found:
    """Server B makes A's draws from what both know of the round."""
    total = _encoded(1)
    guessed = NoiseStream(_NOISE.deviation, derive(bytes(32), f"noise of {_RELEASE}")).take(total.size)
    left = float(np.std(_half_of(_server(), total) - to_signed(total) - guessed)) / _NOISE.deviation
    return Found(left < 1 / 2, left)


def _left_out(_: Path) -> Found:
    """Server B adds no noise, and the requester tells it the sum; all other sites' updates are known to both."""
    update, nothing = _encoded(1), np.zeros(_PARAMETERS.dimension, dtype=np.uint64)
    direction = to_signed(update).astype(np.float64)
    seen = [
        np.array([float(_half_of(_server(), one) @ direction) for _ in range(_TRIALS)]) for one in (update, nothing)
    ]
    middle = float(direction @ direction) / 2
    advantage = float(np.mean(seen[0] > middle) - np.mean(seen[1] > middle))
    return Found(advantage > _MOST_ADVANTAGE + _CHANCE, advantage)


ATTEMPTS: Final = {
    "noise-averaged-over-resends": Attempt(_averaged, {"servers.rounds.noise.with_noise_secret": _drawn_anew}),
    "noise-guessed": Attempt(_guessed, {"servers.rounds.noise.with_noise_secret": _known_to_all}),
    "noise-left-out": Attempt(_left_out, {"servers.rounds.noise.noise_stream": lambda *_: None}),
}
