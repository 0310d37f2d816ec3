"""The requester's side of a measured round: sealed queries out, sealed openings in (docs/protocol.md 6, 8).

A query is w_i S g_0. All targets' queries, one after the other, are shared at once: one server gets the 32-byte seed
of a stream, the other the vectors less that stream; which one alternates by round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from host.randomness import Randomness
from protocol.arithmetic.prg import Usage, expand
from protocol.arithmetic.ring import ELEMENT_BYTES, Ring, from_bytes, to_bytes
from protocol.errors import MalformedMessage, TranscriptMismatch
from protocol.mpc.distance import query
from protocol.mpc.measurement import OpenedSite, OpeningShare, open_all
from protocol.mpc.quantity import value_count
from protocol.mpc.sketch import sketch_shares
from protocol.parameters import RANGE_PROJECTIONS, Needs, StudyParameters
from protocol.sharing import ChunkSource, Side
from protocol.wire.channel.sealing import MAX_HEADER_BYTES, SealedReader, seal_stream, sealed_message_length
from protocol.wire.keys import SealingKey, SealingPublicKey
from protocol.wire.messages import OpeningHeader, QueryHeader, Roster, ShareKind


def seed_side(round_number: int) -> Side:
    """The server that gets the queries' seed: A in odd rounds, B in even ones."""
    return Side.A if round_number % 2 else Side.B


def query_vector(challenge: bytes, own: ChunkSource, numerators: tuple[int, ...], parameters: StudyParameters) -> Ring:
    """w_i S g_0 of every target, one after the other; with all weights 1, S v for the inner products with v.

    Shapes:   -> uint64[targets * k'], ring 2^64
    """
    sketch = sketch_shares(challenge, [own], parameters)[0]
    pieces = [query(sketch, numerator, parameters.weight_grid) for numerator in numerators]
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
    with_seed = seed_side(round_number)
    shares = {
        with_seed: seed,
        with_seed.other: to_bytes(queries - expand(seed, Usage.QUERY, queries.size)),
    }
    sealed: dict[Side, bytes] = {}
    for side in Side:
        header = QueryHeader(
            transcript_digest=transcript_digest,
            side=side,
            share_kind=ShareKind.SEED if side is with_seed else ShareKind.VECTOR,
            targets=targets,
            length=parameters.sketched_length,
        )
        key = SealingPublicKey.from_bytes(bytes.fromhex(roster.operator(side).sealing_key))
        content_key = randomness.bytes(32, f"query content key {side} {label}")
        salt = randomness.bytes(32, f"query salt {side} {label}")
        sealed[side] = b"".join(seal_stream(header.canonical(), [shares[side]], key, content_key, salt))
    return sealed


def opening_bytes(sites: int) -> int:
    """The most that one server's sealed opening of so many sites takes: range checks, and at most one value a pair."""
    return sealed_message_length(MAX_HEADER_BYTES, ELEMENT_BYTES * sites * (RANGE_PROJECTIONS + sites))


def read_opening(
    sealed: bytes,
    key: SealingKey,
    side: Side,
    transcript_digest: str,
    checked: tuple[str, ...],
    opens: Needs,
    requester: str,
) -> tuple[OpeningShare, ...]:
    """One server's shares of all sites, in the order of ``checked``.

    Raises: TranscriptMismatch, MalformedMessage, BrokenSeal
    """
    expected = OpeningHeader(transcript_digest=transcript_digest, side=side, checked=checked, opens=opens)
    reader = SealedReader(key, _only(expected))
    plain = b"".join(reader.feed(sealed)) + reader.finish()
    counts = [value_count(opens, place, site == requester) for place, site in enumerate(checked)]
    length = len(checked) * RANGE_PROJECTIONS + sum(counts)
    if len(plain) != length * ELEMENT_BYTES:
        raise MalformedMessage(f"server {side}'s opening has {len(plain)} bytes, expected {length * ELEMENT_BYTES}")
    numbers = from_bytes(plain, length)
    ranges = numbers[: len(checked) * RANGE_PROJECTIONS].reshape(len(checked), RANGE_PROJECTIONS)
    values = np.split(numbers[len(checked) * RANGE_PROJECTIONS :], np.cumsum(counts)[:-1])
    return tuple(OpeningShare(*one) for one in zip(checked, ranges, values, strict=True))


def open_sites(
    shares: Mapping[Side, tuple[OpeningShare, ...]],
    numerators: Mapping[str, int],
    parameters: StudyParameters,
    opens: Needs = Needs.DISTANCES,
) -> tuple[OpenedSite, ...]:
    """Range check of every site and what else the round opens, from both servers' shares."""
    return open_all(shares[Side.A], shares[Side.B], numerators, parameters, opens)


def _only(expected: OpeningHeader) -> Callable[[bytes], None]:
    def accept(header: bytes) -> None:
        if OpeningHeader.parse(header) != expected:
            raise TranscriptMismatch(f"server {expected.side} opened other sites or another challenge than the round's")

    return accept
