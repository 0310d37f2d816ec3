"""The longest that an honest update can look by what was opened about it, and who looks longer (docs/protocol.md 8).

A site clips its update to C. What the requester opens is off by the rounding of fixed point and, for long vectors, by
the sketch; both are allowed for here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Final

from protocol.mpc.measurement import OpenedSite
from protocol.parameters import Needs, StudyParameters

_TOLERATED_DEVIATIONS: Final = 6.0
_LENGTHS: Final = {Needs.NORMS: 1.0, Needs.WEIGHTED_NORMS: math.sqrt(2)}
"""How many clip norms an honest measured vector is long at most, where it is no difference of two."""
_HALF_UNIT: Final = 0.5
"""By how much the query's own rounding moves a coordinate at most (``protocol.mpc.measurement.distance_query``)."""


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
