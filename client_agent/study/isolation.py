"""Exposure by a round's sum, at one site: computed from its own update before anything is shared.

The update is trained first, since isolation is about it; a site that declines keeps it to itself (docs/protocol.md 13).
"""

from __future__ import annotations

from contextlib import suppress

from client_agent.site.context import reconcile, settle_sum, summed_row, summed_sites
from client_agent.site.failpoints import Point
from client_agent.study.participant import Participant
from protocol.arithmetic.fixed_point import Real, scaling_of
from protocol.errors import MoietyError, PolicyRefusal
from protocol.messages.control import Announcement, WeightList
from protocol.messages.purpose import RoundStep
from protocol.policy.exposure import Exposure, SummedRow, SummedWeight
from protocol.policy.memory import rounding_noise
from protocol.rounds.evidence import PastRelease, check_release


def agree_to_sum(owner: Participant, announcement: Announcement, weight_list: WeightList) -> Exposure:
    """Train, check, and remember the round's row durably; afterwards shares may leave.

    Raises: PolicyRefusal, clause ``isolation``; the list is then remembered as one by which the others may be summed.
            UnusableUpdate, which names the layer
    """
    row, kept = candidate(owner, announcement, weight_list)
    sums = owner.context.sums
    owner.journal.reach(Point.BEFORE_SUM_REMEMBERED)
    try:
        found = sums.agree(row, kept, owner.context.policy, colluders(owner))
    except PolicyRefusal:
        sums.remember(_without(row, owner.context.held.name_of(owner.context.site)), kept, proven=True)
        raise
    owner.journal.reach(Point.AFTER_SUM_REMEMBERED)
    return found


def propose_sum(owner: Participant, announcement: Announcement, weight_list: WeightList) -> Exposure | None:
    """As every listed site will, with the requester's update in place of theirs; the row is remembered if it passes.

    An update of zero stands in for nothing: then the sites' own figures decide, and None is known here.
    Raises: PolicyRefusal, clause ``isolation``; UnusableUpdate
    """
    row, kept = candidate(owner, announcement, weight_list)
    if not kept.any():
        return None
    owner.journal.reach(Point.BEFORE_SUM_REMEMBERED)
    found = owner.context.sums.propose(row, kept, owner.context.policy, colluders(owner))
    owner.journal.reach(Point.AFTER_SUM_REMEMBERED)
    return found


def candidate(owner: Participant, announcement: Announcement, weight_list: WeightList) -> tuple[SummedRow, Real]:
    """The row that a round would add, and what is kept of this site's update; trained only the first time.

    Raises: UnusableUpdate, which names the layer
    """
    study, own = owner.study, owner.own_weight()
    update = owner.trained(announcement.round)
    scaling = scaling_of(update, owner.layers, study.parameters)
    factor = scaling.unit * scaling.factor if scaling.clips else 1.0
    listed = weight_list.numerator_of(owner.context.site)
    weight = own if own is not None else (listed or 0) / weight_list.grid
    rounded = study.protection.plan.rounded
    noise = rounding_noise(update, weight * factor, study.parameters.scale) if rounded else 0.0
    row = summed_row(announcement, weight_list, owner.context.held, owner.layers)
    if own is not None:
        row = _self_weighted(row, owner.context.held.name_of(owner.context.site), own, weight_list.grid)
    return row.model_copy(update={"noise": noise}), owner.context.sums.kept(update, owner.layers) * factor


def note_sum(owner: Participant, past: PastRelease) -> None:
    """A sum that this site was not in and that its requester tells it of; its nearest update stands in for its own.

    A release set has the requester's signature alone, which may sign several and show each site another one. So its
    word adds a round that this site knew nothing of, and narrows none that it agreed to: ``show_sum`` does. It accounts
    for its round where it leaves nothing open of what both servers signed: who was summed, or that no updates were.
    Raises: what evidence that does not hold is refused with
    """
    name = (owner.study_digest, past.announcement.round)
    if name in owner.context.sums.rounds() or owner.context.sums.accounted(name):
        return
    check_release(past, owner.context.roster, owner.study_digest)
    if not past.announcement.purpose.plan.steps_model:
        owner.context.sums.rule_out(name)
        return
    row = summed_row(past.announcement, past.weight_list, owner.context.held, owner.layers)
    told = row.model_copy(update={"released": summed_sites(owner.context, past)})
    owner.context.sums.remember(told, None, proven=_leaves_nothing_open(past, row))


def note_welcomed(owner: Participant, past: PastRelease) -> None:
    """The sum that led to a model which this site takes; like ``note_sum``, and never in the way of the model.

    Before it fills what a memory lacks, the memory must be whole: where that cannot be asked now, it stays unknown.
    """
    with suppress(MoietyError):
        reconcile(owner.context)
        note_sum(owner, past)


def show_sum(owner: Participant, past: PastRelease) -> None:
    """A released sum as both servers show it, whether this site was in it or not.

    Raises: what evidence that does not hold is refused with
    """
    name = (owner.study_digest, past.announcement.round)
    if past.announcement.purpose.plan.steps_model and not owner.context.sums.accounted(name):
        check_release(past, owner.context.roster, owner.study_digest)
        row = summed_row(past.announcement, past.weight_list, owner.context.held, owner.layers)
        owner.context.sums.remember(row, None, proven=True)
        settle_sum(owner.context, owner.study_digest, past)


def _leaves_nothing_open(past: PastRelease, row: SummedRow) -> bool:
    """Both servers signed which sum it is, or its announcement, of which a round has one, admits no other sum."""
    if RoundStep.COUNTERSIGN in past.announcement.protection.plan.steps:
        return True
    weighed = {weight.site for weight in past.weight_list.weights}
    return row.possible == 1 and weighed == set(past.announcement.listed)


def colluders(owner: Participant) -> int:
    """t: the larger of the study's and the site's."""
    return max(owner.study.parameters.assumed_colluders, owner.context.policy.assumed_colluders)


def _self_weighted(row: SummedRow, own: str, weight: float, grid: int) -> SummedRow:
    """The row where sites weigh themselves: each knows its own weight, others may be as small as the grid allows."""
    weights = tuple(SummedWeight(site=w.site, weight=weight if w.site == own else 1 / grid) for w in row.weights)
    return row.model_copy(update={"weights": weights, "own": SummedWeight(site=own, weight=weight)})


def _without(row: SummedRow, own: str) -> SummedRow:
    weights = tuple(weight for weight in row.weights if weight.site != own)
    return row.model_copy(update={"weights": weights})
