"""The requester's judgement of a measured round: who passed the checks, and whom the rule selects (docs/protocol.md 8).

A deviating server can make any check fail, so a failed check means "check failed", never "site cheated". A site clips
its update to C. What is opened of it is off by the rounding of fixed point and, for long vectors, by the sketch; the
longest that an honest update can look allows for both.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from protocol.messages.control import RuleSpec
from protocol.mpc.measurement import OpenedSite
from protocol.parameters import Needs, StudyParameters
from protocol.rules.interface import Measured, PairDistance, Rule, RuleState, within_bound

_TOLERATED_DEVIATIONS: Final = 6.0
_LENGTHS: Final = {Needs.NORMS: 1.0, Needs.WEIGHTED_NORMS: math.sqrt(2)}
"""The most clip norms that an honest measured vector is long, where it is no difference of two."""
_HALF_UNIT: Final = 0.5
"""The most that the query's own rounding moves a coordinate (``protocol.mpc.measurement.distance_query``)."""


def too_long(
    sites: Sequence[OpenedSite],
    requester: str,
    own_norm: float,
    probe_norm: float,
    numerators: Mapping[str, int],
    parameters: StudyParameters,
    opens: Needs,
    byzantine: int,
) -> frozenset[str]:
    """Contributors whose update is longer than a clipped one can be, by what was opened about them.

    ``own_norm`` is ||g_0||, ``probe_norm`` ||v||, ``byzantine`` how many sites multi-Krum takes to be dishonest.
    """
    if opens is Needs.PAIRS:
        return _too_far_apart(sites, requester, own_norm, numerators, parameters, byzantine) - {requester}
    longest = _LENGTHS.get(opens)
    beyond = set()
    for site in sites:
        if site.site == requester:  # its weight may be 0, and its length is no question
            continue
        numerator = numerators[site.site]
        found: float | None
        if site.inner_product is not None:
            found, allowed = abs(site.inner_product), largest_product(parameters, numerator, probe_norm)
        elif longest is not None:
            found, allowed = site.distance, longest_norm(parameters, numerator, longest)
        else:
            found, allowed = site.distance, longest_distance(parameters, numerator, own_norm)
        if found is not None and found > allowed:
            beyond.add(site.site)
    return frozenset(beyond)


def _too_far_apart(
    sites: Sequence[OpenedSite],
    requester: str,
    own_norm: float,
    numerators: Mapping[str, int],
    parameters: StudyParameters,
    byzantine: int,
) -> frozenset[str]:
    """Too far from the requester, or from more sites than can be dishonest.

    Of two contributors that are too far from each other one is not clipped, and nobody can say which. An honest site
    is too far from dishonest ones only, so it stays; who stays is within (w_i + w_j) C of all sites but ``byzantine``.
    """
    lengths = {site: parameters.clip_norm * n / parameters.weight_grid for site, n in numerators.items()}
    lengths[requester] = own_norm
    beyond: set[str] = set()
    conflicts: list[tuple[str, str]] = []
    for one, other, distance in _pairs(sites):
        if distance <= longest_pair(parameters, lengths[one], lengths[other]):
            continue
        if requester in (one, other):
            beyond |= {one, other}
        else:
            conflicts.append((one, other))
    counted = Counter(chain.from_iterable(conflicts))
    return frozenset(beyond | {site for site, times in counted.items() if times > byzantine})


def _pairs(sites: Sequence[OpenedSite]) -> Iterable[tuple[str, str, float]]:
    return ((site.site, other, distance) for site in sites for other, distance in site.pairs)


def longest_distance(parameters: StudyParameters, numerator: int, other_norm: float) -> float:
    """The largest distance that a clipped update can show from one of length ``other_norm``: C + ||g_0|| and errors.

    In ring units encoding moves each of D coordinates of w g_i by less than one, of g_0 likewise, so of w g_0 by less
    than w, and the query's rounding by at most a half.
    """
    weight = numerator / parameters.weight_grid
    rounding = (1 + weight + _HALF_UNIT) * _rounding(parameters) / weight
    return (parameters.clip_norm + other_norm + rounding) * _sketched(parameters)


def longest_pair(parameters: StudyParameters, one: float, other: float) -> float:
    """The largest ||w_i g_i - w_j g_j|| that two clipped updates can show, whose weighted lengths are given."""
    return (one + other + 2 * _rounding(parameters)) * _sketched(parameters)


def longest_norm(parameters: StudyParameters, numerator: int, clip_norms: float = 1.0) -> float:
    """The largest norm that a clipped update can show; with its own weight, sqrt(2) C for (w g, w C)."""
    weight = numerator / parameters.weight_grid
    return (clip_norms * parameters.clip_norm + _rounding(parameters) / weight) * _sketched(parameters)


def largest_product(parameters: StudyParameters, numerator: int, probe_norm: float) -> float:
    """The largest inner product that a clipped update can show with a probe of length ``probe_norm``."""
    update = parameters.clip_norm + _rounding(parameters) * parameters.weight_grid / numerator
    return update * (probe_norm + _rounding(parameters)) * _sketched(parameters)


def _rounding(parameters: StudyParameters) -> float:
    """Return how far one ring unit in every coordinate moves a vector."""
    return math.sqrt(parameters.dimension) / parameters.scale


def _sketched(parameters: StudyParameters) -> float:
    """Return the factor by which a sketch may exaggerate: 1 + 6 sqrt(2 / k); 1 for the identity.

    An inner product's deviation is at most sqrt(2 / k) of the two norms' product, so this is six of them; a norm's is
    half of that, so for a spread-out vector it is twelve. They are needed: a clipped vector is exactly C long, and one
    that lies in two coordinates looks 1.41 times as long, squared, once these meet with equal signs in two of the four
    blocks, which happens six times in a million.
    """
    if parameters.exact_distances:
        return 1.0
    return 1 + _TOLERATED_DEVIATIONS / math.sqrt(parameters.sketch_length / 2)


@dataclass(frozen=True)
class RequesterFacts:
    """The requester's own part in a round: ||g_0|| clipped; ||v|| and <g_0, v> of its probe, 0 without one."""

    name: str
    norm: float
    probe_norm: float = 0.0
    inner_product: float = 0.0


@dataclass(frozen=True, eq=False)
class RoundRule:
    """The rule that judges a round: the study's rule with its options and its state before the round."""

    spec: RuleSpec
    rule: Rule
    state: RuleState
    parameters: StudyParameters


@dataclass(frozen=True)
class Judgement:
    """``measured.took_part`` are the contributors to release, in the agreed order.

    ``failed`` are the agreed sites that failed a check; ``not_selected`` passed them all, and the rule leaves them out.
    """

    measured: Measured
    failed: tuple[str, ...]
    not_selected: tuple[str, ...]
    requester_passed: bool

    @property
    def measured_anybody(self) -> bool:
        """True if a rule learns from the round where nothing is summed: pairs without the requester say nothing."""
        return self.requester_passed and bool(self.measured.took_part)

    def releases(self, least_contributors: int) -> bool:
        """Return whether a sum over what is left may be opened."""
        return self.requester_passed and len(self.measured.took_part) >= least_contributors


def judge(
    sites: Sequence[OpenedSite],
    requester: RequesterFacts,
    numerators: Mapping[str, int],
    by: RoundRule,
    *,
    round: int,
    opens: Needs,
) -> Judgement:
    """Keep those that are in range, no longer than a clipped update can be, within the norm bound, and selected.

    ``sites`` are the agreed ones, the requester among them; ``numerators`` their weights over the grid.

    Raises: ProtocolViolation when something that the rule needs was not opened
    """
    name, norm, probe_norm, byzantine = requester.name, requester.norm, requester.probe_norm, by.spec.byzantine
    beyond = too_long(sites, name, norm, probe_norm, numerators, by.parameters, opens, byzantine)
    passed = tuple(site.site for site in sites if site.in_range and site.site not in beyond)
    measured = _measured(sites, requester, passed, round, opens)
    bounded = within_bound(measured, by.spec.norm_bound)
    selected = bounded
    if bounded and requester.name in passed:  # otherwise there is nothing to choose from, and no sum
        selected = by.rule.select(by.state, measured.model_copy(update={"took_part": bounded}))
    kept = {*bounded, requester.name} & set(passed)
    return Judgement(
        measured=measured.model_copy(update={"took_part": selected}),
        failed=tuple(site.site for site in sites if site.site not in kept),
        not_selected=tuple(name for name in bounded if name not in selected),
        requester_passed=requester.name in passed,
    )


def judge_sum(sites: Sequence[OpenedSite], requester: str, round: int) -> Judgement:
    """Keep, in a sum of data, which no rule has a say in, those that are in range."""
    passed = tuple(site.site for site in sites if site.in_range)
    others = tuple(name for name in passed if name != requester)
    return Judgement(
        measured=Measured(round=round, requester_norm=0.0, took_part=others),
        failed=tuple(site.site for site in sites if not site.in_range),
        not_selected=(),
        requester_passed=requester in passed,
    )


def _measured(
    sites: Sequence[OpenedSite], requester: RequesterFacts, passed: tuple[str, ...], round_number: int, opens: Needs
) -> Measured:
    """Return what was opened about the sites that passed, as a rule sees it."""
    values = tuple((site.site, site.distance) for site in sites if site.site in passed and site.distance is not None)
    norms = opens.of_norms
    both = {*passed, requester.name}
    return Measured(
        round=round_number,
        distances=() if norms else values,
        norms=values if norms else (),
        inner_products=tuple(
            (site.site, site.inner_product) for site in sites if site.site in passed and site.inner_product is not None
        ),
        pairs=tuple(
            PairDistance(first=first, second=site.site, distance=distance)
            for site in sites
            for first, distance in site.pairs
            if {first, site.site} <= both
        ),
        requester_norm=requester.norm,
        probe_norm=requester.probe_norm,
        requester_inner_product=requester.inner_product,
        took_part=tuple(name for name in passed if name != requester.name),
    )
