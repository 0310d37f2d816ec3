"""Rows of a site's memory of sums, from what a study's messages say (docs/protocol.md 13)."""

from __future__ import annotations

from collections.abc import Sequence

from client_agent.network.held_roster import HeldRoster
from client_agent.site.context import SiteContext
from protocol.messages.control import Announcement, WeightList
from protocol.policy.cohorts import Cohort
from protocol.policy.exposure import SummedRow, SummedWeight
from protocol.policy.memory import Layers
from protocol.rounds.evidence import PastRelease
from protocol.summary.protection import Question


def summed_row(announcement: Announcement, weight_list: WeightList, held: HeldRoster, layers: Layers) -> SummedRow:
    """The weights of one round's contributors by their keys; nobody knows yet who will be summed."""
    return SummedRow(
        study_digest=announcement.study_digest,
        round=announcement.round,
        dimension=sum(size for _, size in layers),
        layers=tuple(layers),
        weights=tuple(
            SummedWeight(site=held.name_of(weight.site), weight=weight.numerator / weight_list.grid)
            for weight in weight_list.weights
        ),
        least=announcement.least_contributors,
        requester=held.name_of(held.head.requester),
        model_version=announcement.model_version,
    )


def settle_sum(context: SiteContext, study_digest: str, past: PastRelease) -> None:
    """A release named who was summed, in a round that this site remembers.

    Requires: the evidence was checked, and both servers showed this release set, or outputs that name it
    """
    release, summed = past.release_set.message, summed_sites(context, past)
    context.sums.settle((study_digest, release.round), summed)
    context.cohorts.settle((study_digest, release.round), summed)


def summed_sites(context: SiteContext, past: PastRelease) -> tuple[str, ...]:
    """The contributors that a release set names, by their keys."""
    held = context.held
    return tuple(held.name_of(site) for site in past.release_set.message.sites if site != held.head.requester)


def drop_sum(context: SiteContext, study_digest: str, round_number: int) -> None:
    """Both servers signed that the round was skipped."""
    context.sums.drop((study_digest, round_number))
    context.cohorts.drop((study_digest, round_number))


def cohort_of(announcement: Announcement, held: HeldRoster, questions: Sequence[Question]) -> Cohort:
    """The contributors of a round of class counts or of a summary; nobody knows yet who will be summed."""
    return Cohort(
        study_digest=announcement.study_digest,
        round=announcement.round,
        listed=tuple(held.name_of(site) for site in announcement.listed),
        least=announcement.least_contributors,
        questions=tuple(questions),
        requester=held.name_of(held.head.requester),
    )


def agree_to_cohort(
    context: SiteContext, announcement: Announcement, colluders: int, questions: Sequence[Question]
) -> None:
    """Check over whom this round sums the data as they are and what it asks, remember both; then shares may leave.

    Raises: PolicyRefusal, clause ``cohort`` or ``question``
    """
    context.cohorts.agree(cohort_of(announcement, context.held, questions), colluders, context.policy)
