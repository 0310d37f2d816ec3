"""Decide the purpose of the next round, and the lists that it may have (docs/protocol.md 4, 9, 10, 13).

    purpose = next_purpose(now)
    tried = lists_to_try(now)       of these, the first that every site would accept is announced

The requester's agent asks, and so does a run in one process.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from protocol.errors import Clause, PolicyRefusal
from protocol.messages.control import ListedWeight, Purpose, Study
from protocol.policy.memory import ReleasedSum, SiteMemory
from protocol.rules.interface import MOST_MEASURE_TRIES, Rule, RuleState, measures_next, own_numerator, without

Weights = tuple[ListedWeight, ...]


@dataclass(frozen=True)
class Numerators:
    """A rule's list: the contributors' numerators and the requester's own, None for the grid."""

    weights: Weights
    requester: int | None = None


@dataclass(frozen=True)
class Candidate:
    """A list with the requester's numerator, None for the grid, and the least number of contributors in its sum."""

    weights: Weights
    least: int
    requester: int | None = None


def candidates(
    rules: Numerators,
    last: Numerators,
    least: int,
    *,
    may_change: bool,
    careful: bool,
    too_few: bool,
    declined: Candidate | None,
) -> tuple[Candidate, ...]:
    """The rule's list where it may change now, then the last sum's; where ``careful``, all who are listed are needed.

    Where updates move little, a sum without one of them shows that one. ``too_few``: the last round had no sum, so the
    study's least number is tried first. ``declined`` is what a site refused since the last sum because of what it would
    have given away; it does not come again.
    """
    lists = (rules, last) if may_change or not last.weights else (last,)
    fewer = (least,) if too_few else ()
    found = [
        Candidate(one.weights, number, one.requester)
        for one in lists
        for number in ((*fewer, len(one.weights)) if careful else (least,))
        if 0 < number <= len(one.weights)
    ]
    return tuple(one for one in dict.fromkeys(found) if one != declined)


@dataclass(frozen=True)
class Done:
    """The study's rounds that happen once and are behind it; absent ones are left out."""

    ranked: bool = True
    summarised: bool = True
    counted: bool = True


@dataclass(frozen=True)
class Situation:
    """The requester's knowledge between two rounds.

    ``contributors`` are the roster's, in its order; ``away`` are not listed any more, ``unsummarised`` in no summary.
    ``model_version`` is the present model's. ``least_isolation`` is the policy's. ``list_kept`` counts the sums in a
    row by the last sum's list, ``exposing`` is what a site declined since then for isolation, ``too_few`` says that the
    last round of updates had no sum. ``measure_tries`` measurements came to nothing since the last sum.
    """

    study: Study
    rule: Rule
    rule_state: RuleState
    memory: SiteMemory
    contributors: tuple[str, ...]
    away: tuple[str, ...]
    model_version: int
    least_isolation: float
    list_kept: int
    exposing: Candidate | None
    too_few: bool
    measure_tries: int
    done: Done
    unsummarised: tuple[str, ...] = ()

    @property
    def listing(self) -> RuleState:
        return without(self.rule_state, self.away)

    @property
    def released(self) -> ReleasedSum | None:
        """The sums that were released against the present model."""
        found = self.memory.released
        return found if found is not None and found.model_version == self.model_version else None

    @property
    def least(self) -> int:
        """The study's least number; after a release against this model, exactly that sum's."""
        return self.study.parameters.least_contributors if self.released is None else len(self.released.weights)


def next_purpose(now: Situation) -> Purpose:
    """Sites are ranked first, then summaries are summed, then class counts, for studies that do; then updates.

    Updates are measured where the rule asks for it. A measurement that failed is tried again after the next sum, or at
    once while the rule has no list yet.
    """
    if not now.done.ranked:
        return Purpose.RANKING
    if not now.done.summarised:
        return Purpose.SUMMARY
    if not now.done.counted:
        return Purpose.COUNTS
    if measures_next(now.rule, now.rule_state):
        tries = now.measure_tries
        if tries == 0 or (tries < MOST_MEASURE_TRIES and not now.rule.numerators(now.rule_state)):
            return Purpose.MEASURE
    return Purpose.UPDATE


def lists_to_try(now: Situation) -> tuple[Candidate, ...]:
    """Return the lists to try: for updates the rule's or the last sum's, for all else everybody with weight 1.

    A sum against the model of the last one has exactly its number of contributors. Where the policy asks for no
    isolation, or the rule selects sites, only the study's least number counts.

    Raises: PolicyRefusal, when too few contributors have weight left
    """
    purpose = next_purpose(now)
    weights, least = _weights(now, purpose), now.least
    if len(weights) < least:
        raise PolicyRefusal(
            Clause.ENOUGH_CONTRIBUTORS, f"{len(weights)} contributors have weight left, at least {least} are needed"
        )
    if not purpose.plan.steps_model:
        return (Candidate(weights, least),)
    last = now.memory.summed_list
    usable = last if {weight.site for weight in last}.isdisjoint(now.away) else ()
    return candidates(
        Numerators(weights, own_numerator(now.rule, now.listing)),
        Numerators(usable, now.memory.summed_requester),
        least,
        may_change=now.list_kept >= now.study.list_every,
        careful=now.least_isolation > 0 and now.released is None and not now.rule.selects,
        too_few=now.too_few,
        declined=now.exposing,
    )


def _weights(now: Situation, purpose: Purpose) -> tuple[ListedWeight, ...]:
    """In roster order, without the sites that are away: the rule's weights, or 1 for all where it weighs nobody."""
    listing, grid = now.listing, now.study.parameters.weight_grid
    found: Iterable[ListedWeight] = (ListedWeight(site=site.name, numerator=grid) for site in listing.sites)
    if purpose.plan.steps_model:
        found = now.rule.numerators(listing)
    away = now.unsummarised if purpose is Purpose.SUMMARY else ()
    numerators = {weight.site: weight for weight in found if weight.site not in away}
    return tuple(numerators[name] for name in now.contributors if name in numerators)
