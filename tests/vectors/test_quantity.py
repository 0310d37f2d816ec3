"""Openings about a site, against the committed vectors, bit for bit."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest

from protocol.arithmetic.ring import Ring, Usage, dot, expand, to_bytes
from protocol.mpc import measurement
from protocol.mpc.sketch import sketch_shares, sketch_vector
from protocol.parameters import Needs, StudyParameters
from protocol.sharing import Side, chunk_source, split
from tests.vectors.material import GRID, LOG2_E, honest, load


def update(label: str, case: dict) -> Ring:
    return np.array(honest(label, case["dimension"], case["norm_units"]), dtype=np.uint64)


def sha256(x: Ring) -> str:
    return hashlib.sha256(to_bytes(x)).hexdigest()


@pytest.mark.parametrize(
    "case", load("quantity")["quantities"], ids=lambda case: f"{case['opens']} {case['dimension']}"
)
def test_quantities(case):
    parameters = StudyParameters(
        dimension=case["dimension"],
        clip_norm=1.0,
        encoded_norm_log2=LOG2_E,
        weight_grid=GRID,
        least_contributors=3,
    )
    opens, challenge = Needs(case["opens"]), bytes.fromhex(case["challenge"])
    own = sketch_vector(challenge, update(case["sites"][0]["label"], case), parameters)
    asked = measurement.distance_query(own, 0 if opens is Needs.NORMS else GRID, GRID)
    stream = expand(bytes.fromhex(case["query_seed"]), Usage.QUERY, asked.size)
    found = []
    for i, (side, query) in enumerate(zip(Side, (stream, asked - stream), strict=True)):
        sources = [
            chunk_source(split(update(site["label"], case), bytes.fromhex(site["share_seed"]))[i])
            for site in case["sites"]
        ]
        *earlier, last = sketch_shares(challenge, sources, parameters)
        found.append(measurement.factors(side, opens, last, query, earlier))
    assert len(found[0]) == len(found[1]) == len(case["quantities"]) == (2 if opens is Needs.PAIRS else 1)
    for at_a, at_b, expected in zip(*found, case["quantities"], strict=True):
        assert (sha256(at_a.own), sha256(at_b.own)) == (expected["factor_a_sha256"], expected["factor_b_sha256"])
        product_a = int(expected["product_a"], 16)
        a, b = at_a.share(product_a), at_b.share(dot(at_a.own, at_b.own) - product_a)
        assert (f"{a:016x}", f"{b:016x}") == (expected["share_a"], expected["share_b"])
        of = measurement.open_inner_product if opens is Needs.INNER_PRODUCTS else measurement.open_distance
        # At most four correctly rounded float64 steps (integer, root, scale, weight), the expected value rounded once.
        assert math.isclose(of(a, b, GRID, parameters), expected["opened"], rel_tol=5 * 2.0**-53, abs_tol=0)
