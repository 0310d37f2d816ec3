"""Queries out, openings in: against the servers' own arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

from client_agent.study.measuring import (
    open_sites,
    query_vector,
    read_opening,
    seal_queries,
    seed_side,
)
from host.randomness import SystemRandomness
from protocol.arithmetic.fixed_point import encode
from protocol.arithmetic.prg import Usage, expand
from protocol.arithmetic.ring import from_bytes, to_bytes
from protocol.errors import BrokenSeal, MalformedMessage, TranscriptMismatch
from protocol.mpc.distance import query
from protocol.mpc.measurement import OpeningShare
from protocol.mpc.sketch import sketch_vector
from protocol.parameters import RANGE_PROJECTIONS, Needs, StudyParameters
from protocol.sharing import Side
from protocol.wire.channel.sealing import SealedReader, seal_stream
from protocol.wire.messages import OpeningHeader, QueryHeader, ShareKind
from tests.unit.client_agent.federation import CONTRIBUTORS, DIGEST, PARAMETERS, REQUESTER, ROSTER, keys, operator_keys

SKETCHED = StudyParameters(dimension=5000, clip_norm=4.0, least_contributors=3)
CHALLENGE = bytes(range(32))


def own_update(parameters: StudyParameters) -> np.ndarray:
    values = np.random.default_rng(2).normal(size=parameters.dimension) / 100
    return encode(values, parameters, bytes(32))


@pytest.mark.parametrize("parameters", [PARAMETERS, SKETCHED])
@pytest.mark.parametrize("round_number", [1, 2])
def test_the_servers_shares_make_the_weighted_sketches(parameters: StudyParameters, round_number: int) -> None:
    x = own_update(parameters)
    numerators = (32, 7, 16)
    queries = query_vector(CHALLENGE, lambda start, stop: x[start:stop], numerators, parameters)
    sealed = seal_queries(queries, CONTRIBUTORS, DIGEST, round_number, ROSTER, parameters, SystemRandomness(), "label")
    total = np.zeros(queries.size, dtype=np.uint64)
    kinds = {}
    for side in Side:
        reader = SealedReader(operator_keys(side).sealing)
        plain = b"".join(reader.feed(sealed[side])) + reader.finish()
        assert reader.header is not None
        header = QueryHeader.parse(reader.header)
        assert (header.side, header.targets, header.transcript_digest) == (side, CONTRIBUTORS, DIGEST)
        assert header.length == parameters.sketched_length
        kinds[side] = header.share_kind
        seeded = header.share_kind is ShareKind.SEED
        total += expand(plain, Usage.QUERY, queries.size) if seeded else from_bytes(plain, queries.size)
    assert kinds[seed_side(round_number)] is ShareKind.SEED
    assert kinds[seed_side(round_number).other] is ShareKind.VECTOR
    sketch = sketch_vector(CHALLENGE, x, parameters)
    expected = np.concatenate([query(sketch, n, parameters.weight_grid) for n in numerators])
    np.testing.assert_array_equal(total, expected)


def test_no_target_no_query() -> None:
    assert query_vector(CHALLENGE, lambda start, stop: np.zeros(stop - start, np.uint64), (), PARAMETERS).size == 0


CHECKED = (REQUESTER, *CONTRIBUTORS)


def sealed_opening(side: Side, numbers: np.ndarray, opens: Needs = Needs.DISTANCES) -> bytes:
    header = OpeningHeader(transcript_digest=DIGEST, side=side, checked=CHECKED, opens=opens)
    key = keys(REQUESTER).sealing.public
    return b"".join(seal_stream(header.canonical(), [to_bytes(numbers)], key, bytes(32), bytes(32)))


def read(sealed: bytes, side: Side = Side.A, reader: str = REQUESTER) -> tuple[OpeningShare, ...]:
    return read_opening(sealed, keys(reader).sealing, side, DIGEST, CHECKED, Needs.DISTANCES, REQUESTER)


def test_openings_are_read_in_order_and_added() -> None:
    count = len(CHECKED) * RANGE_PROJECTIONS + len(CONTRIBUTORS)
    a = np.random.default_rng(1).integers(0, 2**64, size=count, dtype=np.uint64)
    b = np.negative(a)
    b[RANGE_PROJECTIONS] += 1  # the first contributor fails its check
    distance = 3 * int(PARAMETERS.scale)
    b[-2] += np.uint64(distance * distance)  # c2, weight 1/2: 3 away in the scaled vector, 6 in the update
    shares = {Side.A: read(sealed_opening(Side.A, a)), Side.B: read(sealed_opening(Side.B, b), Side.B)}
    numerators = {REQUESTER: 32, "c1": 32, "c2": 16, "c3": 32}
    opened = open_sites(shares, numerators, PARAMETERS)
    assert [(s.site, s.in_range) for s in opened] == [(REQUESTER, True), ("c1", False), ("c2", True), ("c3", True)]
    assert [s.distance for s in opened] == [None, None, 6.0, 0.0]


def test_an_opening_for_something_else_is_refused() -> None:
    numbers = np.zeros(len(CHECKED) * RANGE_PROJECTIONS + len(CONTRIBUTORS), dtype=np.uint64)
    with pytest.raises(TranscriptMismatch):
        read(sealed_opening(Side.B, numbers))
    with pytest.raises(TranscriptMismatch):
        read(sealed_opening(Side.A, numbers, opens=Needs.NOTHING))
    with pytest.raises(MalformedMessage, match="expected 1304"):
        read(sealed_opening(Side.A, numbers[1:]))
    with pytest.raises(BrokenSeal):
        read(sealed_opening(Side.A, numbers), reader="c1")
