"""The requester's side of a measured round: what it asks, and what it opens (docs/protocol.md 6, 8)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from host.randomness import Randomness
from protocol.arithmetic.ring import Ring
from protocol.messages import bodies
from protocol.messages.control import Roster
from protocol.mpc import measurement
from protocol.mpc.measurement import OpenedSite, OpeningShare, open_all
from protocol.mpc.sketch import sketch_shares
from protocol.parameters import Needs, StudyParameters
from protocol.sharing import ChunkSource, Side


def query_vector(challenge: bytes, own: ChunkSource, numerators: tuple[int, ...], parameters: StudyParameters) -> Ring:
    """w_i S g_0 of every target, one after the other; with all weights 1, S v for the inner products with v.

    Shapes:   -> uint64[targets * k'], ring 2^64
    """
    sketch = sketch_shares(challenge, [own], parameters)[0]
    pieces = [measurement.distance_query(sketch, numerator, parameters.weight_grid) for numerator in numerators]
    return np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.uint64)


def seal_queries(
    queries: Ring,
    targets: tuple[str, ...],
    transcript_digest: str,
    round_number: int,
    roster: Roster,
    parameters: StudyParameters,
    randomness: Randomness,
    label: str,
) -> dict[Side, bytes]:
    """Both servers' sealed shares of the queries."""
    seed = randomness.bytes(32, f"query seed {label}")
    sealed: dict[Side, bytes] = {}
    for side in Side:
        header = bodies.Queries(transcript_digest, side, targets, parameters.sketched_length).header(round_number)
        secret = randomness.bytes(32, f"query content key {side} {label}")
        secret += randomness.bytes(32, f"query salt {side} {label}")
        share = bodies.query_content(header, queries, seed)
        sealed[side] = bodies.seal_query(header, share, roster.operator(side).sealing, secret)
    return sealed


def open_sites(
    shares: Mapping[Side, tuple[OpeningShare, ...]],
    numerators: Mapping[str, int],
    parameters: StudyParameters,
    opens: Needs = Needs.DISTANCES,
) -> tuple[OpenedSite, ...]:
    """Range check of every site and what else the round opens, from both servers' shares."""
    return open_all(shares[Side.A], shares[Side.B], numerators, parameters, opens)
