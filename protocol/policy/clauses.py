"""Every clause that a site checks on a weight list, in order (docs/protocol.md 9).

Each clause returns or raises PolicyRefusal; all arithmetic is exact. Below, m is the announced least number of
contributors, t the number of them assumed to collude with the requester, and weights are numerators over the study's
grid. The requester is counted neither in m nor in the weights.

A study is judged the same way before it is created: at best all sites of its roster are listed, with equal weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from protocol.errors import Clause, OutcomeUnknown, PolicyRefusal, ProtocolViolation
from protocol.messages.control import Announcement, ListedWeight, Purpose, Study, WeightList
from protocol.messages.purpose import RoundState
from protocol.parameters import Needs, StudyParameters
from protocol.policy.exposure import MOST_RELEASE_SETS, Exposure, SummedRow
from protocol.policy.memory import ReleasedSum, SiteMemory
from protocol.policy.site_policy import SitePolicy, check_needs_allowed, check_ranking_allowed
from protocol.rules.interface import RiskRule, Rule

MEASURED_ROUNDS_PER_MODEL: Final = 2
TIMES_LEFT_OUT: Final = 2
MOST_DISCARDED_SUMS: Final = 3
"""The most sums of ciphertexts that a study may discard: each tells server A one bit, perhaps about the key."""


def check_same_round(announcement: Announcement, weight_list: WeightList) -> None:
    """The list is the announced one: study, round and salted digest."""
    if weight_list.study_digest != announcement.study_digest:
        raise PolicyRefusal(Clause.SAME_ROUND, "the weight list belongs to another study than the announcement")
    if weight_list.round != announcement.round:
        found, allowed = weight_list.round, announcement.round
        raise PolicyRefusal(Clause.SAME_ROUND, f"the weight list is for round {found}, round {allowed} was announced")
    if weight_list.digest() != announcement.weight_list_digest:
        raise PolicyRefusal(Clause.SAME_ROUND, "the weight list is not the one whose digest was announced")


def check_announced_sites(site: str, announcement: Announcement, weight_list: WeightList) -> None:
    """The list names exactly the announced sites, once each and in their order, and this site is one of them."""
    names = tuple(weight.site for weight in weight_list.weights)
    if names != announcement.listed:
        found, allowed = list(names), list(announcement.listed)
        raise PolicyRefusal(
            Clause.ANNOUNCED_SITES, f"the weight list names {found}, announced were {allowed} in this order"
        )
    if site not in names:
        raise PolicyRefusal(Clause.ANNOUNCED_SITES, f"site {site!r} is not listed; listed are {list(names)}")


def check_contributors_only(announcement: Announcement, contributors: tuple[str, ...]) -> None:
    """Only the roster's contributors count: neither the requester nor a name that nobody knows."""
    strangers = [name for name in announcement.listed if name not in contributors]
    if strangers:
        allowed = list(contributors)
        raise PolicyRefusal(
            Clause.CONTRIBUTORS_ONLY, f"{strangers} are listed, contributors of the roster are {allowed}"
        )


def check_grid(weight_list: WeightList, parameters: StudyParameters, weighs_requester: bool = False) -> None:
    """Every weight is a grid point above 0 and at most 1; the requester's is 1 unless the rule chooses it."""
    grid = parameters.weight_grid
    if weight_list.grid != grid:
        raise PolicyRefusal(
            Clause.GRID, f"the weight list uses the grid 1/{weight_list.grid}, the study fixes 1/{grid}"
        )
    if weight_list.requester is not None and not (weighs_requester and weight_list.requester <= grid):
        found = f"the requester's own weight is {weight_list.requester}/{grid}"
        allowed = f"0 to {grid}/{grid}" if weighs_requester else "1, which the list leaves out"
        raise PolicyRefusal(Clause.GRID, f"{found}, allowed is {allowed}")
    for weight in weight_list.weights:
        if not 1 <= weight.numerator <= grid:
            found = f"site {weight.site!r} has weight {weight.numerator}/{grid}"
            raise PolicyRefusal(Clause.GRID, f"{found}, allowed are 1/{grid} to {grid}/{grid}")


def check_least_number(announcement: Announcement, parameters: StudyParameters, memory: SiteMemory) -> None:
    """m is the study's or the number listed; another hints at weights.

    Where a sum was released against this model, m is that sum's count.
    """
    released = _released_against(announcement, memory)
    due = (parameters.least_contributors, len(announcement.listed)) if released is None else (len(released.weights),)
    found = announcement.least_contributors
    if found not in due:
        allowed = " or ".join(str(number) for number in dict.fromkeys(due))
        raise PolicyRefusal(Clause.LEAST_NUMBER, f"at least {found} contributors were announced, {allowed} are due")


def check_enough_contributors(announcement: Announcement, parameters: StudyParameters, policy: SitePolicy) -> None:
    """m - t is at least the site's least number of contributors."""
    m, t = announcement.least_contributors, _colluders(parameters, policy)
    if m - t < policy.least_contributors:
        found = f"{m} contributors less {t} assumed to collude leave {m - t}"
        raise PolicyRefusal(Clause.ENOUGH_CONTRIBUTORS, f"{found}, at least {policy.least_contributors} are demanded")


def check_largest_share(
    site: str,
    announcement: Announcement,
    weight_list: WeightList,
    parameters: StudyParameters,
    policy: SitePolicy,
    own_weight: float | None = None,
) -> None:
    """The site's weight w is at most the largest share of w plus the m - 1 - t lightest of the others' weights.

    Where sites weigh themselves, w is ``own_weight`` and every other weight is taken as the smallest possible one.
    """
    numerator = weight_list.numerator_of(site)
    if numerator is None:
        raise PolicyRefusal(Clause.LARGEST_SHARE, f"site {site!r} has no weight on the list")
    counted = max(0, announcement.least_contributors - 1 - _colluders(parameters, policy))
    if own_weight is None:
        own = Fraction(numerator)
        others = sum(sorted(weight.numerator for weight in weight_list.weights if weight.site != site)[:counted])
    else:
        own = _own_numerator(own_weight, parameters.weight_grid)
        others = min(counted, len(weight_list.weights) - 1)
    total = own + others
    if own > policy.largest_share_exact * total:
        part = f"weight {float(own):g} of {float(total):g} that are sure to be in the sum"
        found = f"{part} ({float(100 * own / total):.1f} %)"
        detail = f"site {site!r}: {found}, allowed is {policy.largest_share} of it"
        if own_weight is None:
            raise PolicyRefusal(Clause.LARGEST_SHARE, detail)
        advice = _advice(counted, policy)
        told = "the weight that this site gives itself is too large a part of the smallest sum it could end up in"
        raise PolicyRefusal(Clause.LARGEST_SHARE, f"{detail}; {advice}", f"{told}; {advice}")


def check_uninformative(weight_list: WeightList) -> None:
    """Require weight 1 for every site where nobody scales by the list (self-weighted rules, class counts)."""
    for weight in weight_list.weights:
        if weight.numerator != weight_list.grid:
            found = f"site {weight.site!r} has weight {weight.numerator}/{weight_list.grid}"
            raise PolicyRefusal(Clause.GRID, f"{found}, but sites do not scale by this list: it says 1 for all")


def check_isolation(found: Exposure, row: SummedRow, policy: SitePolicy) -> None:
    """Every contributor's update stays hidden enough, whichever sum that the announcement admits is opened.

    The figure comes from the site's own updates, so the requester is told the demand and not the figure.
    """
    demanded = f"this site demands {policy.least_isolation:g}"
    if found.least < policy.least_isolation:
        raise _exposed(found, row, demanded)
    if found.linked < policy.least_isolation:
        what = "nearly the same update is in a sum over other sites, which sums elsewhere could complete"
        advice = "list the sites of that sum again, or train on fresh random batches"
        raise PolicyRefusal(
            Clause.ISOLATION,
            f"{what}, with a relative error of {found.linked:.3f}, {demanded}: {advice}",
            f"{what}, {demanded}: {advice}",
        )


def _exposed(found: Exposure, row: SummedRow, demanded: str) -> PolicyRefusal:
    if row.possible > MOST_RELEASE_SETS:
        return PolicyRefusal(
            Clause.ISOLATION,
            f"{row.possible} release sets are possible, {MOST_RELEASE_SETS} can be looked at; announce the number "
            f"listed as the least number ({demanded})",
        )
    what = "with this sum, one who knows all sums and weights would have an update with a relative error"
    advice = "repeat an earlier list with the number listed as the least number, or train on fresh random batches"
    return PolicyRefusal(
        Clause.ISOLATION,
        f"{what} of {found.least:.3f} (that of the site with key {found.of[:16]}), {demanded}: {advice}",
        f"{what} that is too small, {demanded}: {advice}",
    )


def check_never_rises(weight_list: WeightList, memory: SiteMemory) -> None:
    """No listed weight exceeds the same site's last listed one, whether or not that round was released.

    The list of the last sum may come again, where a newer one was refused for what it would have given away.
    """
    if memory.summed_list and weight_list.weights == memory.summed_list:
        return
    for weight in weight_list.weights:
        last = memory.last_numerator(weight.site)
        if last is not None and weight.numerator > last:
            found = f"site {weight.site!r} is listed with {weight.numerator}/{weight_list.grid}"
            raise PolicyRefusal(Clause.NEVER_RISES, f"{found}, last time with {last}: at most that is allowed")


def check_model_version(announcement: Announcement, memory: SiteMemory) -> None:
    """The model never goes back: what was counted against a newer one would be forgotten."""
    found, allowed = announcement.model_version, memory.model_version
    if found < allowed:
        raise PolicyRefusal(Clause.MODEL_VERSION, f"model {found} was announced, this site has seen model {allowed}")


def check_outcome_known(announcement: Announcement, memory: SiteMemory) -> None:
    """A round that may have been released against this model is settled by its evidence before the next one."""
    if memory.unsettled in (None, announcement.round) or announcement.model_version != memory.model_version:
        return
    found = f"round {memory.unsettled} used model {memory.model_version} too and this site has not seen how it ended"
    raise OutcomeUnknown(
        Clause.OUTCOME_UNKNOWN, f"{found}; its release, or a skip signed by both servers, must come first"
    )


def check_same_sum_again(announcement: Announcement, weight_list: WeightList, memory: SiteMemory) -> None:
    """After a release against this model, only exactly the same sites and weights once more."""
    released = _released_against(announcement, memory)
    if released is not None and weight_list.weights != released.weights:
        found, allowed = _named(weight_list.weights), _named(released.weights)
        detail = f"a sum was already released against model {announcement.model_version}: found {found}, allowed"
        raise PolicyRefusal(Clause.SAME_SUM_AGAIN, f"{detail} only {allowed}; otherwise the study pauses")


def check_opens(announcement: Announcement, needs: Needs, policy: SitePolicy) -> None:
    """Each measured round gives the requester numbers about this site: only what the rule needs and the site allows.

    ``needs`` is what the rule has opened in rounds of this purpose.
    """
    if announcement.purpose.plan.ends_as is RoundState.RANKED:
        check_ranking_allowed(policy)
        return
    if announcement.measured and announcement.opens is not needs:
        found = f"round {announcement.round} opens {announcement.opens.value}"
        raise PolicyRefusal(
            Clause.MEASURED_FOR_NOTHING, f"{found}, the study's rule needs {needs.value}: no more is opened"
        )
    check_needs_allowed(announcement.opens, policy)


def check_first_model(found: str, derived: str, policy_text: str = "") -> None:
    """Version 0 is the one that this site derived, or that the study pins; both as SHA-256 digests."""
    if found != derived:
        raise PolicyRefusal(
            Clause.FIRST_MODEL,
            f"the requester's welcome names the first model {found}, {policy_text or 'this site derives'} {derived}: "
            "a model that the requester chose makes single records readable; nothing is trained on it. If the "
            "requester is honest, it runs another version of moiety or another plug-in: install the same at both",
        )


def check_measured_twice(announcement: Announcement, memory: SiteMemory) -> None:
    """The site takes part in at most two measured rounds of updates per model, released or not."""
    if not announcement.measured or announcement.model_version != memory.model_version:
        return
    if not announcement.purpose.plan.summed:
        _check_apart_once(announcement, memory)
        return
    earlier = [r for r in memory.measured_rounds if r != announcement.round]
    if len(earlier) >= MEASURED_ROUNDS_PER_MODEL:
        found = f"{len(earlier)} rounds were already measured against model {announcement.model_version}"
        raise PolicyRefusal(Clause.MEASURED_TWICE, f"{found}, {MEASURED_ROUNDS_PER_MODEL} are allowed")


def _check_apart_once(announcement: Announcement, memory: SiteMemory) -> None:
    """At most one measurement without a sum per model, counted apart; one that both servers skipped opened nothing."""
    if announcement.purpose.plan.model_sized and memory.apart not in (None, announcement.round):
        found = f"round {memory.apart} measured model {announcement.model_version} already"
        raise PolicyRefusal(
            Clause.MEASURED_TWICE, f"{found}, or this site has not seen both servers skip it; one is allowed"
        )


def check_once(announcement: Announcement, memory: SiteMemory) -> None:
    """Class counts are summed, and sites ranked, once per study; a round that may have succeeded counts as such.

    With another query each time, a ranking's answers would add up to the site's model.
    """
    plan, done = announcement.purpose.plan, memory.done(announcement.purpose)
    if plan.once is not None and done not in (None, announcement.round):
        found = f"round {announcement.round} {plan.does}, which round {done} did already"
        raise PolicyRefusal(
            plan.once, f"{found}, or this site has not seen both servers skip it; once per study is allowed"
        )


def check_discarded_sums(announcement: Announcement, discarded: tuple[int, ...]) -> None:
    """Under CKKS a site stops after a few rounds whose sum it had to discard: no site's update makes a sum fail so."""
    if announcement.protection.plan.keyed and len(discarded) >= MOST_DISCARDED_SUMS:
        raise PolicyRefusal(
            Clause.DISCARDED_SUMS,
            f"the sums of rounds {list(discarded)} were not those of the released sites, {MOST_DISCARDED_SUMS} end the "
            "study for this site: compare server a's records, and start another one",
        )


def check_altered_sums(announcement: Announcement, altered: tuple[int, ...]) -> None:
    """After a sum whose tags contradict what a server signed, a site contributes to nothing more of the study."""
    if altered:
        raise PolicyRefusal(
            Clause.ALTERED_SUM,
            f"the sum of round {altered[0]} had wrong tags, against a server's signature: this site's log says whose; "
            "verify the kept messages with moiety study verify, and start another study when it is cleared up",
        )


def check_left_out_twice(announcement: Announcement, memory: SiteMemory) -> None:
    """A site that was left out of the sum twice without a failed check is not listed again."""
    for record in memory.left_out:
        if record.site in announcement.listed and len(record.rounds) >= TIMES_LEFT_OUT:
            found = f"site {record.site!r} is listed, but was left out in rounds {list(record.rounds)}"
            raise PolicyRefusal(Clause.LEFT_OUT_TWICE, f"{found} without a failed check; {TIMES_LEFT_OUT} times end it")


def _released_against(announcement: Announcement, memory: SiteMemory) -> ReleasedSum | None:
    released = memory.released
    return released if released is not None and released.model_version == announcement.model_version else None


def _colluders(parameters: StudyParameters, policy: SitePolicy) -> int:
    return max(parameters.assumed_colluders, policy.assumed_colluders)


def _named(weights: tuple[ListedWeight, ...]) -> str:
    return "{" + ", ".join(f"{weight.site}: {weight.numerator}" for weight in weights) + "}"


def _own_numerator(own_weight: float, grid: int) -> Fraction:
    if not 1 / grid <= own_weight <= 1:
        raise ProtocolViolation(f"a site's own weight lies in [1/{grid}, 1], found {own_weight}; its rule is wrong")
    return Fraction(own_weight) * grid


def _advice(counted: int, policy: SitePolicy) -> str:
    """The finest grid, 1/n being its smallest weight, at which a site of weight 1 has no more than its share."""
    share = policy.largest_share_exact
    finest = int(share * counted / (1 - share))
    return f"a study whose weight_grid is at most {finest} admits every weight" if finest else "more sites must be sure"


@dataclass(frozen=True)
class Terms:
    """The terms of every round's judgement: the study's numbers and rule, the roster's sites, the site's policy."""

    parameters: StudyParameters
    contributors: tuple[str, ...]
    rule: Rule
    policy: SitePolicy


def check_weight_list(
    site: str,
    announcement: Announcement,
    weight_list: WeightList,
    terms: Terms,
    memory: SiteMemory,
    own_weight: float | None = None,
) -> None:
    """Every clause that ``site`` demands before it contributes to the announced round.

    ``own_weight`` is the weight that the site gives itself under a self-weighted rule, None where the list's counts
    (and in a round of class counts or a ranking).
    Raises: PolicyRefusal whose detail begins with the clause and says what was found and what is allowed;
            OutcomeUnknown when only the evidence of an earlier round's end is missing;
            ProtocolViolation when ``own_weight`` is outside [1/grid, 1]
    """
    parameters, policy = terms.parameters, terms.policy
    check_same_round(announcement, weight_list)
    check_announced_sites(site, announcement, weight_list)
    check_contributors_only(announcement, terms.contributors)
    weighs_requester = isinstance(terms.rule, RiskRule) and announcement.purpose.plan.steps_model
    check_grid(weight_list, parameters, weighs_requester)
    if own_weight is not None or not announcement.purpose.plan.steps_model:
        check_uninformative(weight_list)
    check_least_number(announcement, parameters, memory)
    check_enough_contributors(announcement, parameters, policy)
    check_largest_share(site, announcement, weight_list, parameters, policy, own_weight)
    if terms.rule.weights_never_rise:
        check_never_rises(weight_list, memory)
    check_model_version(announcement, memory)
    check_outcome_known(announcement, memory)
    check_once(announcement, memory)
    check_same_sum_again(announcement, weight_list, memory)
    check_opens(announcement, _opened(terms.rule, announcement), policy)
    check_measured_twice(announcement, memory)
    if not terms.rule.selects:
        check_left_out_twice(announcement, memory)


def _opened(rule: Rule, announcement: Announcement) -> Needs:
    """Return what the rule opens in such a round: nothing apart from sums, unless it says that it measures so."""
    plan = announcement.purpose.plan
    if plan.summed or not plan.model_sized:
        return rule.needs
    apart = isinstance(rule, RiskRule) and rule.measures
    return plan.opened(rule.needs) if apart else Needs.NOTHING


def check_for_every_site(announcement: Announcement, weight_list: WeightList, terms: Terms, memory: SiteMemory) -> None:
    """The sites' policy as the requester runs it before it announces (docs/protocol.md 4).

    Weights that sites give themselves are theirs alone to check.
    Raises: PolicyRefusal
    """
    for site in announcement.listed:
        check_weight_list(site, announcement, weight_list, terms, memory)


_UNSAID = "0" * 64


@dataclass(frozen=True)
class Foreseen:
    """``refused``: why even the best list would be declined. Without one, ``spare`` contributors may be missing."""

    refused: PolicyRefusal | None
    spare: int = 0


def foresee(study: Study, contributors: tuple[str, ...], rule: Rule, policy: SitePolicy) -> Foreseen:
    """The list of all ``contributors`` with weight 1, and how many of them such a list can do without."""
    terms = Terms(study.parameters, contributors, rule, policy)
    refused = _refusal(study, contributors, terms)
    if refused is not None:
        return Foreseen(refused)
    spare = 0
    while spare + 1 < len(contributors) and _refusal(study, contributors[spare + 1 :], terms) is None:
        spare += 1
    return Foreseen(None, spare)


def _refusal(study: Study, listed: tuple[str, ...], terms: Terms) -> PolicyRefusal | None:
    """Return the refusal of a list of these sites alone; the largest least number is the easiest on every clause."""
    least, grid = study.parameters.least_contributors, study.parameters.weight_grid
    digest = study.digest()
    if len(listed) < least:
        detail = f"the study needs {least} contributors, {len(listed)} are there"
        return PolicyRefusal(Clause.ENOUGH_CONTRIBUTORS, detail)
    weights = tuple(ListedWeight(site=site, numerator=grid) for site in listed)
    weight_list = WeightList(study_digest=digest, round=1, grid=grid, weights=weights, salt=_UNSAID)
    announcement = Announcement(
        study_digest=digest,
        round=1,
        listed=listed,
        least_contributors=len(listed),
        opens=Purpose.UPDATE.plan.opened(terms.rule.needs),
        model_version=0,
        model_digest=_UNSAID,
        weight_list_digest=weight_list.digest(),
        closes_at_s=0,
    )
    try:
        check_for_every_site(announcement, weight_list, terms, SiteMemory())
    except PolicyRefusal as refused:
        return refused
    return None
