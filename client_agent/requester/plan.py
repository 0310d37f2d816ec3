"""Plan the requester's next round, and say what becomes of its summary (docs/protocol.md 4, 9, 10, 17).

A summary that cannot be had does not end a study that trains: ``summary.json`` then says why there is none.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple

from client_agent.requester.study import RequesterStudy, RoundPlan, Settled
from client_agent.site.context import agree_to_cohort
from client_agent.site.events import EventKind, RoundEnd
from client_agent.study.isolation import colluders, propose_sum
from client_agent.study.results import SUMMARY_FILE, Summary, summary_of
from protocol.arithmetic.ring import SEED_BYTES
from protocol.errors import Clause, PolicyRefusal
from protocol.messages.control import (
    MOST_COUNTS_ROUNDS,
    MOST_SUMMARY_ROUNDS,
    Announcement,
    EndCause,
    Purpose,
    WeightList,
    sign,
)
from protocol.policy.clauses import MOST_DISCARDED_SUMS, Terms, check_for_every_site
from protocol.rounds.agreement import model_digest
from protocol.rounds.planning import Candidate, Done, Situation, lists_to_try, next_purpose
from protocol.tags import seed_hash

SUMS_TOO_LONG: Final = 2
"""A discarded sum is tried once more, over exactly the same sites and weights: whoever broke it may not do so again."""


class Hindrance(NamedTuple):
    """Why the study ends as failed; the servers read ``public``, which tells nothing about the sites' data."""

    cause: EndCause
    public: str
    why: str = ""
    """The reason for this site alone, where it says more."""


def hindrance(owner: RequesterStudy) -> Hindrance | None:
    """Return what makes every further round pointless: discarded sums, or the class counts of a rule."""
    return _discarded(owner) or (_uncountable(owner) if owner.study.rule.name.counts_classes else None)


def _discarded(owner: RequesterStudy) -> Hindrance | None:
    if owner.state.altered:
        text = (
            f"the sum of round {owner.state.altered[0]} had wrong tags, against what a server had signed; verify the "
            "kept messages (moiety study verify), compare the operators' records, and start another study"
        )
        return Hindrance(cause=EndCause.SERVER_DEVIATED, public=text)
    if len(owner.state.discarded) >= MOST_DISCARDED_SUMS:
        text = (
            f"the sums of rounds {list(owner.state.discarded)} were not those of the released sites and were "
            "discarded; compare server a's records, and start another study"
        )
        return Hindrance(cause=EndCause.SUMS_DISCARDED, public=text)
    too_long = _too_long(owner)
    if len(too_long) >= SUMS_TOO_LONG:
        text = (
            f"the sums of rounds {list(too_long)}, one after the other over the same sites, were longer than clipped "
            "updates make them: a site or a server broke the protocol; start another study, with a norm_bound or a "
            "rule that measures, which show the requester who it is"
        )
        return Hindrance(cause=EndCause.SUM_TOO_LONG, public=text)
    return None


def _uncountable(owner: RequesterStudy) -> Hindrance | None:
    counted, progress = owner.state.counted, owner.progress
    if counted is None and progress.memory.counted is not None:
        text = "the sum of the class counts broke its bounds, and counts are summed once per study; start another one"
        return Hindrance(cause=EndCause.COUNTS_OUT_OF_BOUNDS, public=text)
    if counted is None and progress.counts_rounds >= MOST_COUNTS_ROUNDS:
        text = f"the class counts could not be summed in {MOST_COUNTS_ROUNDS} rounds; see why they were skipped"
        return Hindrance(cause=EndCause.COUNTS_NOT_SUMMED, public=text)
    named = owner.study.model.class_names or range(owner.study.model.classes)
    totals = () if counted is None else counted.totals
    missing = [name for name, total in zip(named, totals, strict=False) if total == 0]
    if missing:
        text = "no site has a training example of some class, so no site can weigh itself"
        why = f"{text}: classes {missing}; check the labels, or leave the classes out"
        return Hindrance(cause=EndCause.CLASS_WITHOUT_EXAMPLE, public=text, why=why)
    return None


def _too_long(owner: RequesterStudy) -> tuple[int, ...]:
    """The rounds released against the present model, whose sums were discarded: else there would be a newer one."""
    version = owner.state.model_version or 0
    return tuple(
        past.announcement.round for past in owner.progress.history if past.announcement.model_version == version
    )


def new_plan(owner: RequesterStudy) -> RoundPlan:
    """The next round; of several lists for updates, the first that isolates every site's update enough.

    Raises: PolicyRefusal, when a site following the policy would decline; UnusableUpdate, this site's own
    """
    now = situation(owner)
    purpose, tried = next_purpose(now), lists_to_try(now)
    if purpose.plan.steps_model:
        return _isolated_plan(owner, tried)
    if purpose.plan.of_data:
        return _plan_over_cohort(owner, purpose, tried[0])
    announcement, weight_list = _announced(owner, purpose, tried[0])
    _check_policy(owner, announcement, weight_list)
    return _plan(owner, announcement, weight_list, None)


def _plan_over_cohort(owner: RequesterStudy, purpose: Purpose, everybody: Candidate) -> RoundPlan:
    """Over everybody, so that it is known whom a sum is over; after a round without one, the least number first.

    Raises: PolicyRefusal, when a site following the policy would decline either
    """
    questions, least, listed = owner.questions(purpose), everybody.least, len(everybody.weights)

    def agree(announcement: Announcement, _: WeightList) -> None:
        agree_to_cohort(owner.context, announcement, colluders(owner), questions)

    numbers = (least, listed) if owner.progress.too_few else (listed, least)
    return _first_agreed(owner, purpose, tuple(replace(everybody, least=number) for number in numbers), agree)


def _announced(owner: RequesterStudy, purpose: Purpose, chosen: Candidate) -> tuple[Announcement, WeightList]:
    number, study = owner.progress.next_round, owner.study
    randomness, label = owner.context.randomness, f"{owner.study_digest} round {number}"
    salt = randomness.bytes(32, f"weight list salt {label}")
    seed = randomness.bytes(SEED_BYTES, f"tag seed {label}") if study.tagged(purpose) else None
    weight_list = WeightList(
        study_digest=owner.study_digest,
        round=number,
        grid=study.parameters.weight_grid,
        weights=chosen.weights,
        requester=chosen.requester,
        salt=salt.hex(),
        tag_seed=None if seed is None else seed.hex(),
    )
    announcement = Announcement(
        study_digest=owner.study_digest,
        round=number,
        listed=tuple(weight.site for weight in chosen.weights),
        least_contributors=chosen.least,
        opens=purpose.plan.opened(owner.rule.needs),
        purpose=purpose,
        model_version=owner.state.model_version or 0,
        model_digest=_model_digest(owner, number),
        weight_list_digest=weight_list.digest(),
        closes_at_s=math.ceil(owner.context.clock.now() + study.round_deadline_s),
        ckks_key_id=owner.ckks_key_id(purpose),
        tag_seed_hash=None if seed is None else seed_hash(owner.study_digest, number, seed),
        roster_head=owner.context.held.chain.named_head,
    )
    return announcement, weight_list


def _plan(
    owner: RequesterStudy, announcement: Announcement, weight_list: WeightList, isolation: float | None
) -> RoundPlan:
    own, key, counted = owner.context.site, owner.context.keys.signing, owner.state.counted
    return RoundPlan(
        announcement=sign(announcement, own, key),
        weight_list=weight_list,
        previous=owner.progress.previous,
        skipped=owner.progress.skipped,
        counted=None if counted is None else sign(counted, own, key),
        isolation=isolation,
    )


def _isolated_plan(owner: RequesterStudy, tried: tuple[Candidate, ...]) -> RoundPlan:
    """The first list that isolates every site's update; its row is remembered."""

    def agree(announcement: Announcement, weight_list: WeightList) -> float | None:
        found = propose_sum(owner, announcement, weight_list)
        return None if found is None else found.least

    return _first_agreed(owner, Purpose.UPDATE, tried, agree)


def _first_agreed(
    owner: RequesterStudy,
    purpose: Purpose,
    tried: tuple[Candidate, ...],
    agree: Callable[[Announcement, WeightList], float | None],
) -> RoundPlan:
    """The first that this site's own memory agrees to; one that breaks another clause of the policy ends the search.

    Raises: PolicyRefusal, of the last one
    """
    refused = PolicyRefusal(Clause.ISOLATION, "sites declined every list that this rule and the last sum leave")
    for one in tried:
        announcement, weight_list = _announced(owner, purpose, one)
        _check_policy(owner, announcement, weight_list)
        try:
            isolation = agree(announcement, weight_list)
        except PolicyRefusal as refusal:
            refused = refusal
        else:
            return _plan(owner, announcement, weight_list, isolation)
    raise refused


def situation(owner: RequesterStudy) -> Situation:
    """Return the situation from which the next round is planned."""
    study, progress, state = owner.study, owner.progress, owner.state
    removed = tuple(one.site for one in progress.welcomed if one.site not in owner.contributors)
    return Situation(
        study=study,
        rule=owner.rule,
        rule_state=progress.rule_state,
        memory=progress.memory,
        contributors=owner.contributors,
        away=(*progress.dropped, *progress.tags_wrong, *removed),
        model_version=state.model_version or 0,
        least_isolation=owner.context.policy.least_isolation,
        list_kept=progress.list_kept,
        exposing=progress.exposing,
        too_few=progress.too_few,
        measure_tries=progress.measure_tries,
        done=Done(
            ranked=study.ranking is None or progress.ranked,
            summarised=study.summary is None or progress.summarised,
            counted=not study.rule.name.counts_classes or state.counted is not None,
        ),
        unsummarised=progress.unsummarised,
    )


def _model_digest(owner: RequesterStudy, round_number: int) -> str:
    key = bytes.fromhex(owner.state.site_key or "")
    return model_digest(key, owner.study_digest, round_number, owner.kept_octets())


def _check_policy(owner: RequesterStudy, announcement: Announcement, weight_list: WeightList) -> None:
    terms = Terms(owner.study.parameters, owner.contributors, owner.rule, owner.context.policy)
    check_for_every_site(announcement, weight_list, terms, owner.progress.memory)


_OUT_OF_BOUNDS = (
    "the sum broke its bounds: a site or a server broke the protocol, and a summary is summed once per study"
)


def plan_round(owner: RequesterStudy) -> RoundPlan | None:
    """The next round; where no list for the summary passes, the one after it, None where there is nothing else.

    Raises: PolicyRefusal, when a site following the policy would decline; UnusableUpdate, this site's own
    """
    try:
        return new_plan(owner)
    except PolicyRefusal as refusal:
        if next_purpose(situation(owner)) is not Purpose.SUMMARY:
            raise
        _give_up(owner, owner.progress.next_round, refusal.detail)
        owner.keep(summarised=True)
    return new_plan(owner) if owner.study.rounds else None


def after_summary(owner: RequesterStudy, settled: Settled, announcement: Announcement) -> dict[str, object]:
    """Return the requester's state after a summary: it is here, tried once more without who declined, or given up."""
    number, tries = announcement.round, owner.progress.summary_rounds + 1
    declined = {refused.site for refused in settled.declines if not refused.passes}
    changes: dict[str, object] = {
        "too_few": False,
        "summary_rounds": tries,
        "summarised": settled.past is not None,
        "unsummarised": tuple(sorted({*owner.progress.unsummarised, *declined})),
    }
    if settled.past is not None:
        if settled.end is RoundEnd.DISCARDED:
            _give_up(owner, number, _OUT_OF_BOUNDS)
        return changes
    if tries >= MOST_SUMMARY_ROUNDS:
        _give_up(owner, number, f"{tries} rounds were skipped, the last one because: {settled.reason}")
        return changes | owner.after_skip(settled, number) | {"summarised": True}
    return changes | owner.after_skip(settled, number) | {"too_few": True}


def summary_missing(owner: RequesterStudy) -> str:
    """Why this study has no summary; "" where it has one, or asks for none."""
    found = owner.journal.read(owner.journal.folder / SUMMARY_FILE, Summary)
    return "" if found is None else found.problem


def _give_up(owner: RequesterStudy, number: int, problem: str) -> None:
    owner.journal.write(owner.journal.folder / SUMMARY_FILE, summary_of(owner.study, number, problem=problem))
    owner.event(EventKind.STUDY, number, f"there is no summary: {problem}")
