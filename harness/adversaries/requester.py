"""What a malicious requester can announce and release (docs/protocol.md 4, 8, 9)."""

from __future__ import annotations

from protocol.wire.messages import AgreedSet, Announcement, ReleaseSet


def equivocating_announcement(announcement: Announcement) -> tuple[Announcement, Announcement]:
    """One announcement for each server, alike but for the digest of the weight list."""
    flipped = f"{int(announcement.weight_list_digest, 16) ^ 1:064x}"
    return announcement, announcement.model_copy(update={"weight_list_digest": flipped})


def release_set(agreed: AgreedSet, sites: tuple[str, ...], failed_check: tuple[str, ...] = ()) -> ReleaseSet:
    """A release of any sites at all, the agreed ones or not."""
    return ReleaseSet(
        study_digest=agreed.study_digest,
        round=agreed.round,
        attempt=agreed.attempt,
        agreed_set_digest=agreed.digest(),
        sites=sites,
        failed_check=failed_check,
    )
