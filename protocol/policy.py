"""What a site demands of a weight list before it contributes, whoever runs the servers (docs/protocol.md 9).

Every clause is one small function that returns or raises PolicyRefusal; all arithmetic is exact. Below, m is the
announced least number of contributors, t the number of them assumed to collude with the requester, and weights
are numerators over the study's grid. The requester is counted neither in m nor in the weights.
"""

from __future__ import annotations

from enum import StrEnum
from fractions import Fraction
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from protocol.errors import PolicyRefusal
from protocol.parameters import Needs, StudyParameters
from protocol.wire.messages import Announcement, ListedWeight, WeightList

MEASURED_ROUNDS_PER_MODEL = 2
TIMES_LEFT_OUT = 2


class Clause(StrEnum):
    """Names of the clauses, as they stand in front of a refusal's text."""

    SAME_ROUND = "same_round"
    ANNOUNCED_SITES = "announced_sites"
    CONTRIBUTORS_ONLY = "contributors_only"
    GRID = "grid"
    LEAST_NUMBER = "least_number"
    ENOUGH_CONTRIBUTORS = "enough_contributors"
    LARGEST_SHARE = "largest_share"
    NEVER_RISES = "never_rises"
    MODEL_VERSION = "model_version"
    OUTCOME_UNKNOWN = "outcome_unknown"
    SAME_SUM_AGAIN = "same_sum_again"
    MEASURED_FOR_NOTHING = "measured_for_nothing"
    MAY_OPEN = "may_open"
    MEASURED_TWICE = "measured_twice"
    LEFT_OUT_TWICE = "left_out_twice"


class OutcomeUnknown(PolicyRefusal):
    """This site has not seen how an earlier round ended; with that evidence it would take part."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class SitePolicy(_Frozen):
    """The site's own bounds; a study may ask for lower ones, this says how low the site goes.

    ``least_contributors`` bounds m - t from below. ``largest_share`` is the largest part of the sum's smallest
    possible weight that may be the site's own. ``assumed_colluders`` is the site's own t; the larger of it and the
    study's counts: with t = 0 the site trusts that no other contributor tells the requester its update.
    ``may_open`` is what a rule may have opened about the site to the requester.
    """

    least_contributors: Annotated[int, Field(ge=1)] = 3
    largest_share: Annotated[float, Field(gt=0, le=1)] = 0.6
    assumed_colluders: Annotated[int, Field(ge=0)] = 0
    may_open: tuple[Needs, ...] = (Needs.DISTANCES, Needs.NORMS, Needs.PAIRS, Needs.INNER_PRODUCTS)

    @property
    def largest_share_exact(self) -> Fraction:
        """The share as it was written: 0.6 is 3/5."""
        return Fraction(repr(self.largest_share))


class ReleasedSum(_Frozen):
    """The sites and weights of a sum that was released against a model."""

    model_version: int
    weights: tuple[ListedWeight, ...]


class LeftOut(_Frozen):
    """The rounds in which a site was in the agreed set but not in the sum, without a failed check."""

    site: str
    rounds: tuple[int, ...]


class SiteMemory(_Frozen):
    """What the policy remembers from round to round; serialisable, and to be stored before a contribution leaves.

    ``last_listed`` holds the last weight of every site on a list that this site contributed to.
    ``model_version`` is the newest model seen; ``measured_rounds`` and ``released`` concern that model.
    ``last_accepted`` is the last round whose list this site accepted, ``unsettled`` the same round while this site
    has seen neither its release nor a skip that both servers signed.
    """

    last_listed: tuple[ListedWeight, ...] = ()
    model_version: Annotated[int, Field(ge=0)] = 0
    measured_rounds: tuple[int, ...] = ()
    released: ReleasedSum | None = None
    last_accepted: Annotated[int, Field(ge=0)] = 0
    unsettled: int | None = None
    left_out: tuple[LeftOut, ...] = ()

    def last_numerator(self, site: str) -> int | None:
        """The site's last listed weight, None when it was never listed."""
        return next((w.numerator for w in self.last_listed if w.site == site), None)


def check_weight_list(
    site: str,
    announcement: Announcement,
    weight_list: WeightList,
    parameters: StudyParameters,
    *,
    rule_declares_never_rising: bool,
    policy: SitePolicy,
    memory: SiteMemory,
    contributors: tuple[str, ...],
    needs: Needs = Needs.DISTANCES,
) -> None:
    """Every clause that ``site`` demands before it contributes to the announced round.

    ``contributors`` are the roster's sites without the requester; ``needs`` is what the study's rule has opened.
    Raises: PolicyRefusal whose detail begins with the clause and says what was found and what is allowed;
            OutcomeUnknown when only the evidence of an earlier round's end is missing
    """
    check_same_round(announcement, weight_list)
    check_announced_sites(site, announcement, weight_list)
    check_contributors_only(announcement, contributors)
    check_grid(weight_list, parameters)
    check_least_number(announcement, parameters, memory)
    check_enough_contributors(announcement, parameters, policy)
    check_largest_share(site, announcement, weight_list, parameters, policy)
    if rule_declares_never_rising:
        check_never_rises(weight_list, memory)
    check_model_version(announcement, memory)
    check_outcome_known(announcement, memory)
    check_same_sum_again(announcement, weight_list, memory)
    check_opens(announcement, needs, policy)
    check_measured_twice(announcement, memory)
    check_left_out_twice(announcement, memory)


def check_for_every_site(
    announcement: Announcement,
    weight_list: WeightList,
    parameters: StudyParameters,
    *,
    rule_declares_never_rising: bool,
    policy: SitePolicy,
    memory: SiteMemory,
    contributors: tuple[str, ...],
    needs: Needs = Needs.DISTANCES,
) -> None:
    """The sites' policy as the requester runs it before it announces (docs/protocol.md 4). Raises: PolicyRefusal"""
    for site in announcement.listed:
        check_weight_list(
            site,
            announcement,
            weight_list,
            parameters,
            rule_declares_never_rising=rule_declares_never_rising,
            policy=policy,
            memory=memory,
            contributors=contributors,
            needs=needs,
        )


def check_same_round(announcement: Announcement, weight_list: WeightList) -> None:
    """The list is the announced one: study, round and salted digest."""
    if weight_list.study_digest != announcement.study_digest:
        raise _refusal(Clause.SAME_ROUND, "the weight list belongs to another study than the announcement")
    if weight_list.round != announcement.round:
        found, allowed = weight_list.round, announcement.round
        raise _refusal(Clause.SAME_ROUND, f"the weight list is for round {found}, round {allowed} was announced")
    if weight_list.digest() != announcement.weight_list_digest:
        raise _refusal(Clause.SAME_ROUND, "the weight list is not the one whose digest was announced")


def check_announced_sites(site: str, announcement: Announcement, weight_list: WeightList) -> None:
    """The list names exactly the announced sites, once each and in their order, and this site is one of them."""
    names = tuple(weight.site for weight in weight_list.weights)
    if names != announcement.listed:
        found, allowed = list(names), list(announcement.listed)
        raise _refusal(Clause.ANNOUNCED_SITES, f"the weight list names {found}, announced were {allowed} in this order")
    if site not in names:
        raise _refusal(Clause.ANNOUNCED_SITES, f"site {site!r} is not listed; listed are {list(names)}")


def check_contributors_only(announcement: Announcement, contributors: tuple[str, ...]) -> None:
    """Only the roster's contributors count: neither the requester nor a name that nobody knows."""
    strangers = [name for name in announcement.listed if name not in contributors]
    if strangers:
        allowed = list(contributors)
        raise _refusal(Clause.CONTRIBUTORS_ONLY, f"{strangers} are listed, contributors of the roster are {allowed}")


def check_grid(weight_list: WeightList, parameters: StudyParameters) -> None:
    """Every weight is a point of the study's grid above 0 and at most 1."""
    grid = parameters.weight_grid
    if weight_list.grid != grid:
        raise _refusal(Clause.GRID, f"the weight list uses the grid 1/{weight_list.grid}, the study fixes 1/{grid}")
    for weight in weight_list.weights:
        if not 1 <= weight.numerator <= grid:
            found = f"site {weight.site!r} has weight {weight.numerator}/{grid}"
            raise _refusal(Clause.GRID, f"{found}, allowed are 1/{grid} to {grid}/{grid}")


def check_least_number(announcement: Announcement, parameters: StudyParameters, memory: SiteMemory) -> None:
    """m is the study's, or hints at weights; where a sum was released against this model, m is that sum's count."""
    released = _released_against(announcement, memory)
    allowed = parameters.least_contributors if released is None else len(released.weights)
    found = announcement.least_contributors
    if found != allowed:
        raise _refusal(Clause.LEAST_NUMBER, f"at least {found} contributors were announced, {allowed} are due")


def check_enough_contributors(announcement: Announcement, parameters: StudyParameters, policy: SitePolicy) -> None:
    """m - t is at least the site's least number of contributors."""
    m, t = announcement.least_contributors, _colluders(parameters, policy)
    if m - t < policy.least_contributors:
        found = f"{m} contributors less {t} assumed to collude leave {m - t}"
        raise _refusal(Clause.ENOUGH_CONTRIBUTORS, f"{found}, at least {policy.least_contributors} are demanded")


def check_largest_share(
    site: str, announcement: Announcement, weight_list: WeightList, parameters: StudyParameters, policy: SitePolicy
) -> None:
    """The site's weight w is at most the largest share of w plus the m - 1 - t lightest of the others' weights."""
    own = weight_list.numerator_of(site)
    if own is None:
        raise _refusal(Clause.LARGEST_SHARE, f"site {site!r} has no weight on the list")
    counted = max(0, announcement.least_contributors - 1 - _colluders(parameters, policy))
    lightest = sorted(weight.numerator for weight in weight_list.weights if weight.site != site)[:counted]
    total = own + sum(lightest)
    if own > policy.largest_share_exact * total:
        found = f"weight {own} of {total} that are sure to be in the sum ({100 * own / total:.1f} %)"
        raise _refusal(Clause.LARGEST_SHARE, f"site {site!r}: {found}, allowed is {policy.largest_share} of it")


def check_never_rises(weight_list: WeightList, memory: SiteMemory) -> None:
    """No listed weight exceeds the same site's last listed one, whether or not that round was released."""
    for weight in weight_list.weights:
        last = memory.last_numerator(weight.site)
        if last is not None and weight.numerator > last:
            found = f"site {weight.site!r} is listed with {weight.numerator}/{weight_list.grid}"
            raise _refusal(Clause.NEVER_RISES, f"{found}, last time with {last}: at most that is allowed")


def check_model_version(announcement: Announcement, memory: SiteMemory) -> None:
    """The model never goes back: what was counted against a newer one would be forgotten."""
    found, allowed = announcement.model_version, memory.model_version
    if found < allowed:
        raise _refusal(Clause.MODEL_VERSION, f"model {found} was announced, this site has seen model {allowed}")


def check_outcome_known(announcement: Announcement, memory: SiteMemory) -> None:
    """A round that may have been released against this model is settled by its evidence before the next one."""
    if memory.unsettled in (None, announcement.round) or announcement.model_version != memory.model_version:
        return
    found = f"round {memory.unsettled} used model {memory.model_version} too and this site has not seen how it ended"
    raise OutcomeUnknown(
        f"{Clause.OUTCOME_UNKNOWN.value}: {found}; its release, or a skip signed by both servers, must come first"
    )


def check_same_sum_again(announcement: Announcement, weight_list: WeightList, memory: SiteMemory) -> None:
    """After a release against this model, only exactly the same sites and weights once more."""
    released = _released_against(announcement, memory)
    if released is not None and weight_list.weights != released.weights:
        found, allowed = _named(weight_list.weights), _named(released.weights)
        detail = f"a sum was already released against model {announcement.model_version}: found {found}, allowed"
        raise _refusal(Clause.SAME_SUM_AGAIN, f"{detail} only {allowed}; otherwise the study pauses")


def check_opens(announcement: Announcement, needs: Needs, policy: SitePolicy) -> None:
    """Each measured round gives the requester numbers about this site: only what the rule needs and the site allows."""
    if announcement.measured and announcement.opens is not needs:
        found = f"round {announcement.round} opens {announcement.opens.value}"
        raise _refusal(Clause.MEASURED_FOR_NOTHING, f"{found}, the study's rule needs {needs.value}: no more is opened")
    check_needs_allowed(announcement.opens, policy)


def check_needs_allowed(needs: Needs, policy: SitePolicy) -> None:
    """The site lets its requester learn this about it; asked before a study starts, and in every round."""
    if needs is not Needs.NOTHING and needs not in policy.may_open:
        allowed = ", ".join(one.value for one in policy.may_open) or "nothing"
        raise _refusal(
            Clause.MAY_OPEN, f"the study's rule opens {needs.value} of this site to the requester, allowed: {allowed}"
        )


def check_measured_twice(announcement: Announcement, memory: SiteMemory) -> None:
    """The site takes part in at most two measured rounds per model, released or not."""
    if not announcement.measured or announcement.model_version != memory.model_version:
        return
    earlier = [r for r in memory.measured_rounds if r != announcement.round]
    if len(earlier) >= MEASURED_ROUNDS_PER_MODEL:
        found = f"{len(earlier)} rounds were already measured against model {announcement.model_version}"
        raise _refusal(Clause.MEASURED_TWICE, f"{found}, {MEASURED_ROUNDS_PER_MODEL} are allowed")


def check_left_out_twice(announcement: Announcement, memory: SiteMemory) -> None:
    """A site that was left out of the sum twice without a failed check is not listed again."""
    for record in memory.left_out:
        if record.site in announcement.listed and len(record.rounds) >= TIMES_LEFT_OUT:
            found = f"site {record.site!r} is listed, but was left out in rounds {list(record.rounds)}"
            raise _refusal(Clause.LEFT_OUT_TWICE, f"{found} without a failed check; {TIMES_LEFT_OUT} times end it")


def remember_contribution(memory: SiteMemory, announcement: Announcement, weight_list: WeightList) -> SiteMemory:
    """Memory once the list was accepted; store it before the first share leaves. Repeating it changes nothing."""
    memory = _on_model(memory, announcement.model_version)
    listed = {weight.site for weight in weight_list.weights}
    kept = tuple(weight for weight in memory.last_listed if weight.site not in listed)
    rounds = memory.measured_rounds
    if announcement.measured and announcement.round not in rounds:
        rounds = (*rounds, announcement.round)
    return memory.model_copy(
        update={
            "last_listed": kept + weight_list.weights,
            "measured_rounds": rounds,
            "last_accepted": announcement.round,
            "unsettled": announcement.round,
        }
    )


def remember_release(
    memory: SiteMemory, announcement: Announcement, weight_list: WeightList, contributors: tuple[str, ...]
) -> SiteMemory:
    """Memory once a sum over ``contributors`` (the release set without the requester) was released.

    A release against an older model than the one remembered changes nothing.
    """
    if announcement.model_version < memory.model_version:
        return memory
    memory = remember_skip(_on_model(memory, announcement.model_version), announcement.round)
    weights = tuple(weight for weight in weight_list.weights if weight.site in contributors)
    return memory.model_copy(
        update={"released": ReleasedSum(model_version=announcement.model_version, weights=weights)}
    )


def remember_skip(memory: SiteMemory, round_number: int) -> SiteMemory:
    """Memory once both servers have signed that the round ended without a release."""
    return memory.model_copy(update={"unsettled": None}) if memory.unsettled == round_number else memory


def remember_left_out(
    memory: SiteMemory,
    round_number: int,
    agreed: tuple[str, ...],
    released: tuple[str, ...],
    failed_check: tuple[str, ...],
    *,
    own: str,
) -> SiteMemory:
    """Memory with the agreed sites noted that a release left out without a failed check; repeating changes nothing.

    ``failed_check`` is the requester's word. ``own`` knows that its own update is in range and ignores a claim
    about itself; of the other sites it cannot know better.
    """
    records = {record.site: record.rounds for record in memory.left_out}
    for site in agreed:
        rounds = records.get(site, ())
        failed = site in failed_check and site != own
        if site not in released and not failed and round_number not in rounds:
            records[site] = (*rounds, round_number)
    return memory.model_copy(
        update={"left_out": tuple(LeftOut(site=site, rounds=rounds) for site, rounds in sorted(records.items()))}
    )


def _on_model(memory: SiteMemory, version: int) -> SiteMemory:
    """Counts start afresh with a newer model."""
    if version <= memory.model_version:
        return memory
    return memory.model_copy(
        update={"model_version": version, "measured_rounds": (), "released": None, "unsettled": None}
    )


def _released_against(announcement: Announcement, memory: SiteMemory) -> ReleasedSum | None:
    released = memory.released
    return released if released is not None and released.model_version == announcement.model_version else None


def _colluders(parameters: StudyParameters, policy: SitePolicy) -> int:
    return max(parameters.assumed_colluders, policy.assumed_colluders)


def _named(weights: tuple[ListedWeight, ...]) -> str:
    return "{" + ", ".join(f"{weight.site}: {weight.numerator}" for weight in weights) + "}"


def _refusal(clause: Clause, detail: str) -> PolicyRefusal:
    return PolicyRefusal(f"{clause.value}: {detail}")
