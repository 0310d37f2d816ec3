"""A released round as a proof: what shows which sum it opened, and who must have signed it (docs/protocol.md 9, 11)."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from protocol.errors import AnnouncementMismatch, BadSignature, ProtocolViolation, TranscriptMismatch
from protocol.protection.plan import RoundStep
from protocol.tags.verdicts import require_judged
from protocol.wire.authentic import require_signatures
from protocol.wire.message import Message
from protocol.wire.messages import AgreedSet, Announcement, Go, ReleaseSet, Roster, Signed, SumRelease, WeightList


class PastRelease(Message):
    """A released round with its evidence, for a site that did not see the release itself.

    The agreed set (both servers) names the announcement, the announcement the weight list; the release set carries
    the requester's signature. ``sum_release``: in a round of ciphertexts, both servers' signatures under the sum.
    """

    KIND: ClassVar[str] = "past_release"
    announcement: Announcement
    weight_list: WeightList
    agreed_set: Signed[AgreedSet]
    release_set: Signed[ReleaseSet]
    sum_release: Signed[SumRelease] | None = None
    go: Signed[Go] | None = Field(default=None, exclude_if=lambda found: found is None)


def check_release(past: PastRelease, roster: Roster, study_digest: str) -> None:
    """The evidence of a release of this study hangs together and carries everybody's signature.

    Raises: BadSignature, AnnouncementMismatch, ProtocolViolation
    """
    agreed = require_signatures(past.agreed_set, roster, (roster.operator_a.name, roster.operator_b.name))
    release = require_signatures(past.release_set, roster, (roster.requester,))
    announcement = past.announcement
    if not announcement.purpose.plan.summed:
        does = announcement.purpose.plan.does
        raise ProtocolViolation(f"round {announcement.round} {does}; its vectors are never summed")
    if {announcement.study_digest, agreed.study_digest, release.study_digest} != {study_digest}:
        raise AnnouncementMismatch(f"round {announcement.round}: the release is of another study")
    if agreed.announcement_digest != announcement.digest():
        raise AnnouncementMismatch(f"round {announcement.round}: the agreed set is bound to another announcement")
    if past.weight_list.digest() != announcement.weight_list_digest:
        raise AnnouncementMismatch(f"round {announcement.round}: the weight list is not the announced one")
    if release.agreed_set_digest != agreed.digest() or (release.round, release.attempt) != (
        agreed.round,
        agreed.attempt,
    ):
        raise TranscriptMismatch(f"round {announcement.round}: the release set is for another agreed set")
    strangers = sorted(set(release.sites) - set(agreed.sites))
    if strangers or len(set(release.sites)) != len(release.sites):
        raise ProtocolViolation(f"round {announcement.round}: the release set names {strangers} or a site twice")
    left_out = [site for site in agreed.sites if site not in release.sites]
    if [site for site in left_out if site in release.failed_check] != list(release.failed_check):
        raise ProtocolViolation(
            f"round {announcement.round}: failed_check names {list(release.failed_check)}, left out were {left_out}"
        )
    if RoundStep.COUNTERSIGN in announcement.protection.plan.steps:
        require_sum_release(past, roster)
    if announcement.tagged:
        require_go(past, roster)
    if roster.requester not in release.sites or len(release.sites) - 1 < announcement.least_contributors:
        raise ProtocolViolation(
            f"round {announcement.round}: {len(release.sites)} sites were released, needed are the requester and "
            f"{announcement.least_contributors} contributors"
        )


def require_sum_release(past: PastRelease, roster: Roster) -> SumRelease:
    """Require both servers' signatures under the end of a round of ciphertexts: this release set, and the sum's digest.

    Raises: BadSignature, AnnouncementMismatch
    """
    number, release = past.announcement.round, past.release_set.message
    if past.sum_release is None:
        raise BadSignature(f"round {number}: its sum comes without both servers' signatures under it; it is not opened")
    ended = require_signatures(past.sum_release, roster, (roster.operator_a.name, roster.operator_b.name))
    named = (ended.study_digest, ended.round, ended.attempt, ended.release_digest)
    if named != (release.study_digest, release.round, release.attempt, release.digest()):
        raise AnnouncementMismatch(f"round {number}: what both servers signed is the sum of another round or release")
    return ended


def require_go(past: PastRelease, roster: Roster) -> Go:
    """Require the go that lets servers serve a release with tags, and both servers' commitments to what they serve.

    Raises: BadSignature, AnnouncementMismatch, ProtocolViolation
    """
    if past.go is None:
        raise BadSignature(
            f"round {past.announcement.round}: its sum has tags and comes without the requester's go; it is not opened"
        )
    return require_judged(past.go, past.release_set.message, roster)


def sum_of_numerators(past: PastRelease, roster: Roster) -> int:
    """The released sites' weights times the grid, the requester's among them."""
    total, listed = past.weight_list.own_numerator, past.weight_list.numerators()
    for site in past.release_set.message.sites:
        if site == roster.requester:
            continue
        if site not in listed:
            raise ProtocolViolation(f"site {site!r} was released without a weight on the list")
        total += listed[site]
    return total
