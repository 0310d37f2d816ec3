"""This server's own noise in a sum: drawn from a secret of its own, the same however often it is asked (21).

A server that gave two noises to one sum would have them averaged away. So the secret is durable before the first byte
that depends on it, the draws follow from it and the release set, and it is forgotten with the shares that were summed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from protocol.arithmetic.discrete_gaussian import NoiseStream
from protocol.arithmetic.prg import SEED_BYTES, derive
from protocol.arithmetic.ring import Ring, from_signed
from protocol.arithmetic.sum_noise import SumNoise
from protocol.errors import ProtocolViolation, WrongRound
from protocol.release import sum_chunk
from protocol.sharing import ChunkSource
from protocol.wire.messages import RoundState
from servers.points import Point
from servers.server import Server
from servers.store.study_records import RoundRecord


def noise_of(server: Server, record: RoundRecord) -> SumNoise | None:
    """What this server adds to the round's sum; None where it adds nothing."""
    study = server.store.study(record.key.study).study
    return study.sum_noise if record.announcement.message.purpose.plan.steps_model else None


def with_noise_secret(server: Server, record: RoundRecord) -> RoundRecord:
    """Draw the round's secret once and keep it durably, where the study has noise of servers; nothing is awaited.

    Raises: WrongRound, when it was forgotten
    """
    if noise_of(server, record) is None:
        return record
    with server.store.alone(record.key.study):
        return _with_secret(server, server.store.round(record.key) or record)


def _with_secret(server: Server, now: RoundRecord) -> RoundRecord:
    if now.noise_secret is not None:
        return now
    if now.state is RoundState.RELEASED:
        raise WrongRound(f"{now.key.label}: what its noise was drawn from is forgotten; there is no second noise")
    secret = server.randomness.bytes(SEED_BYTES, f"{now.key.label} noise")
    server.failpoints.reach(Point.BEFORE_NOISE_STORED)
    record = server.store.change_round(now.key, lambda r: replace(r, noise_secret=secret))
    server.failpoints.reach(Point.AFTER_NOISE_STORED)
    return record


def noise_stream(server: Server, record: RoundRecord) -> NoiseStream | None:
    """The draws of one release set, from their beginning. Requires: :func:`with_noise_secret`"""
    noise = noise_of(server, record)
    if noise is None:
        return None
    return NoiseStream(noise.deviation, derive(record.secret_of_noise, f"noise of {record.chosen.message.digest()}"))


@dataclass
class OwnSum:
    """This side's sum with its noise, piece by piece, from the first element to the last."""

    sources: Sequence[ChunkSource] = field(repr=False)
    noise: NoiseStream | None = field(repr=False)
    _at: int = 0

    def next(self, start: int, stop: int) -> Ring:
        """Elements ``start`` to ``stop``. Shapes: -> uint64[stop - start]. Raises: ProtocolViolation out of turn"""
        if start != self._at:
            raise ProtocolViolation(f"a sum is made from its beginning: expected element {self._at}, found {start}")
        self._at = stop
        total = sum_chunk(self.sources, start, stop)
        if self.noise is not None:
            total += from_signed(self.noise.take(stop - start))
        return total
