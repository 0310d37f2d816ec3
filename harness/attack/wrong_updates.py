"""Updates, weights and class counts of a site's own making: no clipped ones, or not what it would honestly say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from harness.attack import forgeries as forged
from harness.attack.attack import Attempt, Found, passes
from harness.attack.chosen_queries import opened_values
from harness.attack.scripted_requester import make_study
from harness.attack.scripted_rounds import (
    SITES,
    SMALL,
    VICTIM,
    AttackedPair,
    RoundInMemory,
    pair_in_memory,
    small_update,
    soon,
)
from harness.federation.server_apps import ServersInMemory
from protocol import release
from protocol.arithmetic.fixed_point import clip, encode
from protocol.arithmetic.ring import Ring, from_signed, to_signed
from protocol.errors import AggregateOutOfBounds
from protocol.messages.control import RuleName, RuleSpec
from protocol.mpc.measurement import OpenedSite
from protocol.parameters import Needs, StudyParameters
from protocol.rounds.agreement import agree
from protocol.rounds.judgement import Judgement, RequesterFacts, RoundRule, judge
from protocol.rules.fedavg import FedAvg, class_weight, counts_vector
from protocol.rules.interface import SiteFacts

# --- vectors, against the range check, the lengths that are opened, and the agreed set --------------------------------
#
# A round of two real servers, walked through with a contribution of the attacker's. The figure is the largest
# coordinate of the sum that sites open, in clip norms; honest ones stay below their number.

Contribute = Callable[[AttackedPair[ServersInMemory]], RoundInMemory]


def _update(seed: int = 1) -> Ring:
    return small_update(np.random.default_rng(seed), SMALL)


def _whole_round(contribute: Contribute, folder: Path) -> Found:
    with pair_in_memory(folder) as pair:
        opened = contribute(pair)
        opened.lock()
        opened.measure()
        opened.release([site for site, passed in opened.in_range().items() if passed])
        total = opened.sites.output(SITES[3], opened.number)
    norm = opened.sites.study.parameters.encoded_norm
    figure = float(np.abs(to_signed(total).astype(np.float64)).max()) / norm
    return Found(figure > len(SITES), figure)


def _changed(change: Callable[[Ring], Ring], bits: int, pair: AttackedPair[ServersInMemory]) -> RoundInMemory:
    """A vector whose squares vanish in the ring, or that is far too long.

    In a study modulo 2^48 what lies outside is seen after each server read its sketch.
    """
    if bits != 64:
        of_64 = make_study(pair.federation, SMALL).parameters
        pair.new_study(SMALL, parameters=of_64.model_copy(update={"ring_bits": bits}))
    opened = pair.round(updates={VICTIM: change(_update())})
    opened.sites.announce(opened.announcement)
    opened.contribute(VICTIM)
    return opened


def _two_faced(pair: AttackedPair[ServersInMemory]) -> RoundInMemory:
    """Each server gets a sound share, but of another vector: two halves that do not belong together are uniform."""
    opened = pair.round(closes_at_s=soon(pair))  # both servers wait for the halves that belong together until then
    opened.sites.announce(opened.announcement)
    opened.contribute(VICTIM, forged.two_faced(opened.honest[VICTIM], opened.fresh(VICTIM, _update(2))))
    return opened


_NO_RANGE: Final[Mapping[str, object]] = {
    "protocol.mpc.measurement._passes": lambda *_: True,
    "protocol.mpc.measurement._distance": lambda *_: 0.0,
}
_VECTORS: Final[Mapping[str, tuple[Callable[[Ring], Ring], int]]] = {
    "vector-two-to-the-63": (forged.wrap_around_entry, 64),
    "vector-two-to-the-63-last": (lambda x: forged.wrap_around_entry(x, place=SMALL - 1), 64),
    "vector-multiples-of-two-to-the-32": (forged.multiples_of_two_to_the_32, 64),
    "vector-times-two-to-the-40": (lambda x: forged.scaled_update(x, 2**40), 64),
    "vector-negated-wrap-around": (lambda x: forged.scaled_update(forged.wrap_around_entry(x), -1), 64),
    "vector-48-bits-two-to-the-47": (forged.half_of_the_small_ring, 48),
    "vector-48-bits-two-halves": (lambda x: forged.half_of_the_small_ring(x, places=(0, 1)), 48),
    "vector-48-bits-times-two-to-the-25": (lambda x: forged.scaled_update(x, 2**25), 48),
}

# --- weights and class counts, under rules by which sites weigh themselves --------------------------------------------
#
# Vectors are encoded and added as sites and servers do it, and opened with every check that a site makes.

_PARAMETERS: Final = StudyParameters(dimension=65, clip_norm=1.0, least_contributors=3)
_E: Final = _PARAMETERS.encoded_norm
_HONEST_WEIGHTS: Final = (0.75, 0.5, 0.5, 1.0)
_CHALLENGES: Final = 20
_TRUE_COUNTS: Final = ((40, 10), (30, 20), (25, 25), (10, 40))


def _passes_range_check(vector: Ring, draw: np.random.Generator) -> bool:
    """All 40 projections, for 20 challenges."""
    challenges = (draw.bytes(32) for _ in range(_CHALLENGES))
    return all(
        opened_values(Needs.NOTHING, [vector], [None], _PARAMETERS, challenge)[0].in_range for challenge in challenges
    )


def _total(*vectors: Ring) -> NDArray[np.int64]:
    return to_signed(np.asarray(np.sum(vectors, axis=0, dtype=np.uint64)))


def _with_entries(places: Mapping[int, int]) -> Ring:
    vector = np.zeros(65, dtype=np.int64)
    for place, entry in places.items():
        vector[place] = entry
    return from_signed(vector)


def _own_weight(weight: float, _: Path) -> Found:
    """One site's last coordinate, its weight times E, is a number of its choice; the others' are honest.

    The figure is how long the average is that everybody applies, in clip norms; honest ones are at most 1 long.
    """
    draw = np.random.default_rng(41)
    direction = clip(np.ones(64), 1.0)[0]
    honest = [encode(w * np.append(direction, 1.0), _PARAMETERS, draw.bytes(32)) for w in _HONEST_WEIGHTS]
    hostile = _with_entries({64: int(weight * _E)})
    if not _passes_range_check(hostile, draw):
        return Found(False, 0.0, "the site fails the range check and is left out")
    total = _total(*honest, hostile)
    try:
        release.require_clipped_sum(total[:-1], int(total[-1]), len(_HONEST_WEIGHTS) + 1)
    except AggregateOutOfBounds as refused:
        return Found(False, 0.0, refused.detail)
    average = release.average_chunk(total[:-1], abs(int(total[-1])) / _E, _PARAMETERS)
    length = float(np.linalg.norm(average))
    return Found(length > 1.01 or length < 0.1, length)


def _weight_of_several(_: Path) -> Found:
    """Twice the largest weight with twice the update, which no check sees while others leave room."""
    draw, times = np.random.default_rng(42), 2
    light = [encode(np.append(np.zeros(64), 0.25), _PARAMETERS, draw.bytes(32)) for _ in range(8)]
    vector = np.full(65, times * _E // 8, dtype=np.int64)
    vector[-1] = times * _E
    hostile = from_signed(vector)
    if not _passes_range_check(hostile, draw):
        return Found(False, 0.0)
    total = _total(*light, hostile)
    release.require_clipped_sum(total[:-1], int(total[-1]), 9)
    weights = release.own_weights_sum(int(total[-1]), _PARAMETERS, 9)
    share = float(np.linalg.norm(release.average_chunk(total[:-1], weights, _PARAMETERS)))
    return Found(share > 1 / 3 + 0.05, share)


def _class_totals(last: Ring) -> tuple[int, ...]:
    total = _total(*(counts_vector(counts, _PARAMETERS) for counts in _TRUE_COUNTS[:-1]), last)
    return release.class_totals(total, 2, len(_TRUE_COUNTS))


def _impossible_counts(_: Path) -> Found:
    """Class counts that no site can have: negative ones, numbers behind the classes."""
    taken = 0
    for places in ({0: -500}, {1: -(10**6)}, {0: 10, 5: 1}, {0: -104, 1: -52}):
        try:
            _class_totals(_with_entries(places))
        except AggregateOutOfBounds:
            continue
        taken += 1
    return Found(taken > 0, taken)


def _counts_of_its_choice(_: Path) -> Found:
    """Possible counts that are not so: all other sites weigh themselves by the totals that follow."""

    def share(totals: Sequence[int]) -> float:
        """The first site's part of the weights of the honest ones."""
        weights = [class_weight(counts, totals, 1024) for counts in _TRUE_COUNTS[:-1]]
        return weights[0] / sum(weights)

    true, false = (share(_class_totals(counts_vector(own, _PARAMETERS))) for own in (_TRUE_COUNTS[-1], (5_000, 1)))
    return Found(false / true < 0.9, false / true)


_NO_WEIGHT_CHECK: Final[Mapping[str, object]] = {
    "protocol.release.require_clipped_sum": passes,
    f"{__name__}._passes_range_check": lambda *_: True,
}

# --- updates far longer than clipping allows, pointed where what is opened hides that ---------------------------------
#
# Honest updates have length at most C, so they lie within C + ||g_0|| of the requester's and within 2 C of each other.
# The requester judges the exact numbers that are opened of five sites; the figure is in clip norms.

CLIP, GRID = 2.0, 8
PARAMETERS: Final = StudyParameters(dimension=20, clip_norm=CLIP, weight_grid=GRID, least_contributors=3)
REQUESTER, CHEAT = "user", "c9"
HONEST: Final = ("c1", "c2", "c3", "c4")
JUDGED: Final = (REQUESTER, *HONEST, CHEAT)
Vector = NDArray[np.float64]


def of_length(length: float, direction: Vector) -> Vector:
    return direction * (length / float(np.linalg.norm(direction)))


_DRAW: Final = np.random.default_rng(8)
ALONG: Final = of_length(1.0, _DRAW.normal(size=20))
OTHERS: Final = {site: of_length(CLIP, _DRAW.normal(size=20)) for site in HONEST}


def judged(updates: Mapping[str, Vector], opens: Needs, probe: Vector, byzantine: int = 1) -> Judgement:
    """Judge these updates as the requester does, by the exact numbers that ``opens`` shows it."""
    own, opened = updates[REQUESTER], [OpenedSite(REQUESTER, True)]
    for place, site in enumerate(JUDGED[1:], start=1):
        if opens is Needs.PAIRS:
            near = tuple((one, float(np.linalg.norm(updates[site] - updates[one]))) for one in JUDGED[:place])
            opened.append(OpenedSite(site, True, pairs=near))
        elif opens is Needs.INNER_PRODUCTS:
            opened.append(OpenedSite(site, True, inner_product=float(updates[site] @ probe)))
        else:
            centre = own if opens is Needs.DISTANCES else np.zeros(20)
            opened.append(OpenedSite(site, True, distance=float(np.linalg.norm(updates[site] - centre))))
    facts = RequesterFacts(REQUESTER, float(np.linalg.norm(own)), float(np.linalg.norm(probe)), float(own @ probe))
    rule = FedAvg(GRID, None)
    state = rule.init(tuple(SiteFacts(name=name, samples=10) for name in JUDGED[1:]))
    by = RoundRule(RuleSpec(name=RuleName.FEDAVG, byzantine=byzantine), rule, state, PARAMETERS)
    return judge(opened, facts, dict.fromkeys(JUDGED, GRID), by, round=1, opens=opens)


def _long(length: float, own: float, opens: Needs, _: Path) -> Found:
    """An update so many clip norms long, along the requester's; it succeeds when it stays in the sum."""
    updates = {REQUESTER: own * CLIP * ALONG, CHEAT: length * CLIP * ALONG, **OTHERS}
    kept = CHEAT in judged(updates, opens, 0.5 * ALONG).measured.took_part
    return Found(kept and abs(length) > 1, abs(length) if kept else 0.0)


_NOT_TOO_LONG: Final[Mapping[str, object]] = {"protocol.rounds.judgement.too_long": lambda *_: frozenset()}

ATTEMPTS: Final = {
    **{name: Attempt(partial(_whole_round, partial(_changed, *how)), _NO_RANGE) for name, how in _VECTORS.items()},
    "share-two-faced": Attempt(
        partial(_whole_round, _two_faced),
        {
            **_NO_RANGE,
            "protocol.rounds.side_a.agree": lambda told, attempt, roster, mine, theirs: agree(
                told, attempt, roster, mine, mine
            ),
            "protocol.rounds.side_b._check_held": passes,
        },
    ),
    "weight-negative": Attempt(partial(_own_weight, -2.5), _NO_WEIGHT_CHECK),
    "weight-of-sixty-four": Attempt(partial(_own_weight, 64.0), _NO_WEIGHT_CHECK),
    "weight-of-two-to-the-41": Attempt(partial(_own_weight, 2.0**41), _NO_WEIGHT_CHECK),
    "weight-of-several": Attempt(_weight_of_several),
    "class-counts-that-cannot-be": Attempt(
        _impossible_counts, {"protocol.release.class_totals": lambda signed, classes, n: tuple(signed[:classes])}
    ),
    "class-counts-of-its-choice": Attempt(_counts_of_its_choice),
    "long-under-distances": Attempt(partial(_long, 2.9, 0.9, Needs.DISTANCES), _NOT_TOO_LONG),
    "long-under-pairs": Attempt(partial(_long, 2.9, 0.9, Needs.PAIRS), _NOT_TOO_LONG),
    "long-under-norms": Attempt(partial(_long, 1.01, 0.9, Needs.NORMS), _NOT_TOO_LONG),
    "long-under-a-probe": Attempt(partial(_long, 5.0, 0.9, Needs.INNER_PRODUCTS), _NOT_TOO_LONG),
    "long-against-a-probe": Attempt(partial(_long, -5.0, 0.9, Needs.INNER_PRODUCTS), _NOT_TOO_LONG),
    "long-within-reach": Attempt(partial(_long, 1.8 - 1e-6, 0.4, Needs.DISTANCES)),
}
