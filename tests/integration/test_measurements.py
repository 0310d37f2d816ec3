"""Rounds that open norms, pairs or inner products, at both servers: exact, and nothing about a site that fails.

What wraps around is tried by the attacks ``vector-...``; here is that no number about such a site is opened.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from harness.attack import forgeries
from harness.attack.scripted_rounds import REQUESTER, SITES, SMALL, VICTIM, AttackedPair, OpenRound, Phase, small_update
from protocol.arithmetic.ring import Ring
from protocol.errors import ErrorCode
from protocol.messages import paths
from protocol.messages.control import RuleName, RuleSpec
from protocol.mpc.measurement import OpenedSite
from protocol.parameters import Needs
from protocol.sharing import Side

RULES = {
    Needs.NORMS: RuleSpec(name=RuleName.FEDAVG, norm_bound=0.5),
    Needs.PAIRS: RuleSpec(name=RuleName.MULTI_KRUM),
    Needs.INNER_PRODUCTS: RuleSpec(name=RuleName.INFLUENCE),
}
WITHOUT_VICTIM = tuple(site for site in SITES if site != VICTIM)
OPENS = pytest.mark.parametrize("opens", RULES)


def measured(pair: AttackedPair, opens: Needs, **updates: Ring) -> tuple[OpenRound, dict[str, OpenedSite]]:
    """A round under the rule that needs it, up to what the requester opens."""
    pair.new_study(SMALL, rule=RULES[opens])
    drawn = np.random.default_rng(17)
    x = {site: small_update(drawn, SMALL) for site in SITES} | updates
    opened = pair.round(updates=x, opens=opens)
    opened.advance(Phase.MEASURED)
    return opened, opened.sites.openings(opened.current, {})


def numbers(found: dict[str, OpenedSite], opens: Needs) -> dict[tuple[str, ...], float]:
    """Whom a number is about, and the number; of everything that was opened."""
    if opens is Needs.PAIRS:
        assert all((one.distance, one.inner_product) == (None, None) for one in found.values())
        return {(first, site): d for site, one in found.items() for first, d in one.pairs}
    assert all(one.pairs == () for one in found.values())
    other = "distance" if opens is Needs.INNER_PRODUCTS else "inner_product"
    assert all(getattr(one, other) is None for one in found.values())
    given = {site: one.inner_product if one.distance is None else one.distance for site, one in found.items()}
    return {(site,): number for site, number in given.items() if number is not None}


def in_the_clear(opened: OpenRound, opens: Needs, sites: tuple[str, ...]) -> dict[tuple[str, ...], float]:
    """The same numbers from the updates themselves, in integers up to the last step."""
    scale = opened.sites.study.parameters.scale
    x = {site: [int(v) for v in opened.x[site].view(np.int64)] for site in sites}

    def length(first: list[int], second: list[int]) -> float:
        return math.sqrt(sum((a - b) ** 2 for a, b in zip(first, second, strict=True))) / scale

    others = [site for site in sites if site != REQUESTER]
    if opens is Needs.PAIRS:
        return {(first, second): length(x[first], x[second]) for first, second in itertools.combinations(sites, 2)}
    if opens is Needs.NORMS:
        return {(site,): length(x[site], [0] * SMALL) for site in others}
    products = {site: sum(a * b for a, b in zip(x[site], x[REQUESTER], strict=True)) for site in others}
    return {(site,): product / scale**2 for site, product in products.items()}


@OPENS
def test_the_requester_opens_the_exact_numbers_and_no_others(pair: AttackedPair, opens: Needs) -> None:
    opened, found = measured(pair, opens)
    assert all(one.in_range for one in found.values())
    # Both sides take the root of the same integer, and divide by powers of two.
    assert numbers(found, opens) == pytest.approx(in_the_clear(opened, opens, SITES), rel=1e-15)
    opened.release()
    opened.require_sum(SITES)


@pytest.mark.parametrize(
    ("opens", "attack"),
    [
        (Needs.NORMS, forgeries.wrap_around_entry),
        (Needs.PAIRS, lambda x: x + np.uint64(2**63)),
        (Needs.INNER_PRODUCTS, forgeries.multiples_of_two_to_the_32),
    ],
    ids=["norms, one entry plus 2^63", "pairs, every entry plus 2^63", "products, multiples of 2^32"],
)
def test_nothing_is_opened_about_a_site_that_fails_its_check(pair: AttackedPair, opens: Needs, attack: Any) -> None:
    opened, found = measured(pair, opens, **{VICTIM: attack(small_update(np.random.default_rng(1), SMALL))})
    assert {site for site, one in found.items() if not one.in_range} == {VICTIM}
    assert numbers(found, opens) == pytest.approx(in_the_clear(opened, opens, WITHOUT_VICTIM), rel=1e-15)
    opened.release(WITHOUT_VICTIM)
    opened.require_sum(WITHOUT_VICTIM)


@pytest.mark.parametrize("opens", [Needs.NORMS, Needs.PAIRS])
def test_a_round_of_norms_or_pairs_takes_no_queries(pair: AttackedPair, opens: Needs) -> None:
    """A query would turn a norm into a chosen function of every update."""
    pair.new_study(SMALL, rule=RULES[opens])
    opened = pair.round(opens=opens)
    opened.advance(Phase.LOCKED)
    refused = opened.sites.me.send(Side.A, "POST", opened.path(paths.QUERIES), b"\0" * 2000)
    assert refused.json()["code"] == ErrorCode.WRONG_ROUND
    opened.finish()
