"""Queries out, openings in: against the servers' own arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

from client_agent.study.measuring import (
    open_sites,
    query_vector,
    seal_queries,
)
from harness.adversaries.signed_client import opened as opened_body
from host.randomness import SystemRandomness
from protocol.arithmetic.fixed_point import encode
from protocol.messages.bodies import read_query
from protocol.messages.control import QueryHeader, ShareKind
from protocol.mpc.measurement import OpeningShare, distance_query
from protocol.mpc.sketch import sketch_vector
from protocol.parameters import RANGE_PROJECTIONS, StudyParameters
from protocol.sharing import Side, seed_side
from tests.unit.client_agent.federation import CONTRIBUTORS, DIGEST, PARAMETERS, REQUESTER, ROSTER, operator_keys

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
        header, plain = opened_body(sealed[side], operator_keys(side).sealing, QueryHeader)
        assert (header.side, header.targets, header.transcript_digest) == (side, CONTRIBUTORS, DIGEST)
        assert header.length == parameters.sketched_length
        kinds[side] = header.share_kind
        total += np.concatenate(list(read_query(header, plain).values()))
    assert kinds[seed_side(round_number)] is ShareKind.SEED
    assert kinds[seed_side(round_number).other] is ShareKind.VECTOR
    sketch = sketch_vector(CHALLENGE, x, parameters)
    expected = np.concatenate([distance_query(sketch, n, parameters.weight_grid) for n in numerators])
    np.testing.assert_array_equal(total, expected)


def test_no_target_no_query() -> None:
    assert query_vector(CHALLENGE, lambda start, stop: np.zeros(stop - start, np.uint64), (), PARAMETERS).size == 0


def test_openings_are_added() -> None:
    checked = (REQUESTER, *CONTRIBUTORS)
    values = [np.zeros(int(site != REQUESTER), dtype=np.uint64) for site in checked]
    a = [np.random.default_rng(i).integers(0, 2**64, RANGE_PROJECTIONS, dtype=np.uint64) for i in range(4)]
    b = [np.negative(one) for one in a]
    b[1][0] += 1  # the first contributor fails its check
    distance = 3 * int(PARAMETERS.scale)
    far = [*values[:2], values[2] + np.uint64(distance * distance), values[3]]  # c2: 3 away in the scaled vector
    shares = {
        Side.A: tuple(OpeningShare(*one) for one in zip(checked, a, values, strict=True)),
        Side.B: tuple(OpeningShare(*one) for one in zip(checked, b, far, strict=True)),
    }
    opened = open_sites(shares, {REQUESTER: 32, "c1": 32, "c2": 16, "c3": 32}, PARAMETERS)
    assert [(s.site, s.in_range) for s in opened] == [(REQUESTER, True), ("c1", False), ("c2", True), ("c3", True)]
    assert [s.distance for s in opened] == [None, None, 6.0, 0.0]
