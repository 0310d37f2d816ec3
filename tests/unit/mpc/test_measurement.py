"""A measured round through both servers' steps: what is opened, and what never is (docs/protocol.md 6 to 8)."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from protocol.arithmetic.ring import Ring, to_signed
from protocol.errors import MalformedMessage, ProtocolViolation
from protocol.mpc import measurement
from protocol.mpc.sketch import passed_range_check, projections, range_operand, sketch_vector
from protocol.parameters import Needs, StudyParameters
from protocol.sharing import Side

from .dealt import correlation, measure, measure_all, open_site, ring, uniform

CHALLENGE = bytes(range(32))
SITES = ("requester", "b", "c", "d")
MEASURED = [needs for needs in Needs if needs is not Needs.NOTHING]


def prepared(
    side: Side, site: str, sketch: Ring, query: Ring | None, parameters: StudyParameters
) -> measurement.Operands:
    """One site's."""
    (operands,) = measurement.prepare_all(side, CHALLENGE, [measurement.SiteSketch(site, sketch, query)], parameters)
    return operands


def updates(rng: np.random.Generator, parameters: StudyParameters) -> dict[str, Ring]:
    """An update a site, in ring units, each about half as long as a clipped one."""
    x = rng.normal(size=(len(SITES), parameters.dimension))
    x *= parameters.encoded_norm / 2 / np.linalg.norm(x, axis=1, keepdims=True)
    return {site: ring(row) for site, row in zip(SITES, np.rint(x).astype(np.int64), strict=True)}


def opened_round(
    rng: np.random.Generator,
    x: dict[str, Ring],
    parameters: StudyParameters,
    opens: Needs,
    numerator: int = 32,
    challenge: bytes = CHALLENGE,
) -> dict[str, measurement.OpenedSite]:
    """Sketch, measure and open; the requester is the first site and asks for its own update."""
    sketches = {site: sketch_vector(challenge, update, parameters) for site, update in x.items()}
    asked = {Needs.DISTANCES: numerator, Needs.INNER_PRODUCTS: parameters.weight_grid, Needs.NORMS: 0}.get(opens)
    query = None if asked is None else measurement.distance_query(sketches[SITES[0]], asked, parameters.weight_grid)
    queries = dict.fromkeys(list(x)[1:], query)
    opening = measure_all(rng, challenge, sketches, queries, parameters, opens)
    numerators = dict.fromkeys(x, numerator)
    opened = measurement.open_all(opening[Side.A], opening[Side.B], numerators, parameters, opens)
    return {site.site: site for site in opened}


def integers(x: Ring) -> list[int]:
    return to_signed(x).tolist()


def exact_distance(x: Ring, y: Ring, parameters: StudyParameters) -> float:
    squared = sum((a - b) ** 2 for a, b in zip(integers(x), integers(y), strict=True))
    return math.sqrt(squared) / parameters.scale


def test_pairs_are_the_plain_distances_where_the_sketch_is_the_identity(identity, rng):
    x = updates(rng, identity)
    opened = opened_round(rng, x, identity, Needs.PAIRS)
    found = {(first, site): d for site, one in opened.items() for first, d in one.pairs}
    assert list(found) == sorted(itertools.combinations(SITES, 2), key=lambda pair: SITES.index(pair[1]))
    for (first, second), d in found.items():
        # conversion and root on either side: each at most 2^-53; the division by a power of two is exact
        assert math.isclose(d, exact_distance(x[first], x[second], identity), rel_tol=2**-51)
    assert all((one.distance, one.inner_product) == (None, None) for one in opened.values())


@pytest.mark.parametrize("numerator", [32, 7])
def test_inner_products_are_the_plain_ones_where_the_sketch_is_the_identity(identity, rng, numerator):
    x = updates(rng, identity)
    x["c"] = np.negative(x["c"])
    x["d"] = x[SITES[0]].copy()
    opened = opened_round(rng, x, identity, Needs.INNER_PRODUCTS, numerator)
    for site in SITES[1:]:
        exact = sum(a * b for a, b in zip(integers(x[site]), integers(x[SITES[0]]), strict=True))
        # conversion and division by the weight on either side: each at most 2^-53
        assert opened[site].inner_product == pytest.approx(
            exact / identity.scale**2 / (numerator / 32), rel=2**-51, abs=0
        )
        assert (opened[site].distance, opened[site].pairs) == (None, ())
    assert (opened["d"].inner_product or 0.0) > 0
    assert opened[SITES[0]] == measurement.OpenedSite(SITES[0], True)


@pytest.mark.parametrize("numerator", [32, 7])
def test_norms_are_the_plain_ones_where_the_sketch_is_the_identity(identity, rng, numerator):
    x = updates(rng, identity)
    opened = opened_round(rng, x, identity, Needs.NORMS, numerator)
    zero = np.zeros(identity.dimension, dtype=np.uint64)
    for site in SITES[1:]:
        # conversion, root, division by the weight on either side: each at most 2^-53
        expected = exact_distance(x[site], zero, identity) / (numerator / 32)
        assert opened[site].distance == pytest.approx(expected, rel=2**-50, abs=0)
        assert (opened[site].inner_product, opened[site].pairs) == (None, ())
    assert opened[SITES[0]] == measurement.OpenedSite(SITES[0], True)


def test_a_round_that_opens_nothing_opens_nothing(parameters, rng):
    opened = opened_round(rng, updates(rng, parameters), parameters, Needs.NOTHING)
    assert opened == {site: measurement.OpenedSite(site, True) for site in SITES}


HOSTILE = [
    pytest.param(2**63, 1, id="one entry"),
    pytest.param(2**63, None, id="every entry"),
    pytest.param(2**32, None, id="multiples of 2^32"),
]


@pytest.mark.parametrize(("value", "entries"), HOSTILE)
@pytest.mark.parametrize("opens", MEASURED)
def test_wrap_around_is_caught_whatever_the_round_opens(parameters, rng, opens, value, entries):
    """The wrapped site is out, nothing is opened about it, and the others are opened as if it were not there."""
    x = updates(rng, parameters)
    honest = opened_round(rng, {site: x[site] for site in SITES if site != "c"}, parameters, opens)
    x["c"] = x["c"].copy()
    x["c"][:entries] += np.uint64(value)
    opened = opened_round(rng, x, parameters, opens)
    assert opened["c"] == measurement.OpenedSite("c", False)
    assert {site: one for site, one in opened.items() if site != "c"} == honest


def test_a_pair_with_a_failed_site_is_never_opened(parameters, rng):
    """Whichever place the failed site has, the requester's own included."""
    for failed in SITES:
        x = updates(rng, parameters)
        x[failed] = x[failed] + np.uint64(2**63)
        opened = opened_round(rng, x, parameters, Needs.PAIRS)
        others = [site for site in SITES if site != failed]
        assert [site for site, one in opened.items() if one.in_range] == others
        named = {(first, site) for site, one in opened.items() for first, _ in one.pairs}
        assert named == set(itertools.combinations(others, 2))


@pytest.mark.parametrize("opens", MEASURED)
def test_two_sites_that_collude_below_the_range_bound_stay_below_two_to_the_63(identity, rng, opens):
    """Opposite updates just within the check are the furthest apart two sites can be: no false alarm about a server."""
    x = updates(rng, identity)
    edge = np.zeros(identity.dimension, dtype=np.uint64)
    edge[3] = (1 << (identity.range_bits - 1)) - 1
    x["b"], x["c"] = edge, np.negative(edge)
    opened = opened_round(rng, x, identity, opens)
    assert all(one.in_range for one in opened.values())
    if opens is Needs.PAIRS:
        assert dict(opened["c"].pairs)["b"] == 2 * float(edge[3]) / identity.scale


@pytest.mark.parametrize("opens", list(Needs))
def test_every_sites_products_have_the_lengths_that_are_asked_for(parameters, rng, opens):
    """The servers draw correlations by :func:`product_lengths`, before they know any share."""
    length = parameters.sketched_length
    queried = opens not in (Needs.NOTHING, Needs.PAIRS)
    for side in Side:
        given = [
            measurement.SiteSketch(
                site, uniform(rng, length), uniform(rng, length) if queried and site != SITES[0] else None
            )
            for site in SITES
        ]
        operands = measurement.prepare_all(side, CHALLENGE, given, parameters, opens=opens)
        for place, (site, own) in enumerate(zip(SITES, operands, strict=True)):
            assert own.lengths == measurement.product_lengths(opens, place, site == SITES[0], parameters)
            assert len(own.factors) == measurement.value_count(opens, place, site == SITES[0])
            assert "uint64" not in repr(own)


@pytest.mark.parametrize("opens", MEASURED)
def test_no_value_is_opened_twice_under_the_same_refreshing(identity, rng, opens):
    """One side's shares of equal sites differ: each is masked by its own part of the zero sharing."""
    x = dict.fromkeys(SITES, ring(range(identity.dimension)))
    query = x[SITES[0]]
    opening = measure_all(rng, CHALLENGE, x, dict.fromkeys(SITES[1:], query), identity, opens)
    for side in Side:
        values = np.concatenate([share.values for share in opening[side]])
        assert values.size == (6 if opens is Needs.PAIRS else 3)
        assert np.unique(values).size == values.size


def test_opening_shares_are_fresh_and_carry_nothing_in_repr(identity, rng):
    sketch = ring(range(identity.dimension))
    first, _ = measure(rng, CHALLENGE, sketch, sketch, identity)
    second, _ = measure(rng, CHALLENGE, sketch, sketch, identity)
    assert not np.any(first.range_shares == second.range_shares)
    assert first.values.size == 1
    assert first.values[0] != second.values[0]
    assert repr(first) == "OpeningShare(site='site-1')"


def test_the_refreshing_depends_on_context_and_site(identity, rng):
    operands = [prepared(Side.A, site, uniform(rng, 101) * np.uint64(0), None, identity) for site in ("s", "t")]
    half, _ = correlation(rng, operands[0].lengths)
    message = uniform(rng, 40)

    def opened(operand, context):
        return measurement.opening_share(Side.A, operand, message, half, bytes(32), context, identity).range_shares

    first = opened(operands[0], "round 1")
    assert np.array_equal(first, opened(operands[0], "round 1"))
    for other in (opened(operands[0], "round 2"), opened(operands[1], "round 1")):
        assert not np.any(first == other)


def test_a_correlation_of_other_lengths_is_refused(identity, rng):
    operands = prepared(Side.A, "s", uniform(rng, 101), None, identity)
    assert "uint64" not in repr(operands)
    half, _ = correlation(rng, measurement.product_lengths(Needs.DISTANCES, 1, False, identity))
    with pytest.raises(ProtocolViolation, match="40 of 40 are needed"):
        measurement.masked(operands, half)
    with pytest.raises(ProtocolViolation, match="40 of 40 are needed"):
        measurement.opening_share(Side.A, operands, uniform(rng, 141), half, bytes(32), "c", identity)


def test_shares_that_do_not_belong_together_are_refused(identity, rng):
    sketch = ring(range(identity.dimension))
    a, b = measure(rng, CHALLENGE, sketch, sketch, identity)
    strangers = (
        measurement.OpeningShare("site-2", b.range_shares, b.values),
        measurement.OpeningShare("site-1", b.range_shares, b.values[:0]),
        measurement.OpeningShare("site-1", b.range_shares[:39], b.values),
    )
    for stranger in strangers:
        with pytest.raises(MalformedMessage):
            open_site(a, stranger, 32, identity)


def test_all_sites_are_prepared_as_each_alone(parameters, rng):
    length = parameters.sketched_length
    for side in Side:
        sketches = [
            measurement.SiteSketch(str(i), uniform(rng, length), uniform(rng, length) if i % 2 else None)
            for i in range(5)
        ]
        together = measurement.prepare_all(side, CHALLENGE, sketches, parameters)
        for given, found in zip(sketches, together, strict=True):
            (alone,) = measurement.prepare_all(side, CHALLENGE, [given], parameters)
            assert found.site == given.site
            assert found.lengths == alone.lengths
            assert np.array_equal(measurement.operand_vector(found), measurement.operand_vector(alone))
    assert measurement.prepare_all(Side.A, CHALLENGE, [], parameters) == []
    assert "sketch_share" not in repr(sketches[0])


def test_one_share_of_m_out_of_place_fails(identity):
    m = np.zeros(40, dtype=np.uint64)
    assert passed_range_check(m, identity)
    m[39] = 1
    assert not passed_range_check(m, identity)
    m[39] = 2 ** (64 - identity.range_bits)
    assert passed_range_check(m, identity)


def test_a_sketch_share_of_another_length_is_refused(identity, rng):
    with pytest.raises(MalformedMessage, match="101 elements"):
        range_operand(Side.A, uniform(rng, 102), projections(CHALLENGE, identity), identity)
