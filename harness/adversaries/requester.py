"""What a malicious requester can announce, list and release (docs/protocol.md 4, 8, 9)."""

from __future__ import annotations

from protocol.wire.messages import AgreedSet, Announcement, ListedWeight, ReleaseSet, WeightList


def equivocating_announcement(announcement: Announcement) -> tuple[Announcement, Announcement]:
    """One announcement for each server, alike but for the digest of the weight list."""
    flipped = f"{int(announcement.weight_list_digest, 16) ^ 1:064x}"
    return announcement, announcement.model_copy(update={"weight_list_digest": flipped})


def with_weight(weight_list: WeightList, site: str, numerator: int) -> WeightList:
    """One site's weight replaced: raised, off the grid, or above 1."""
    changed = tuple(
        ListedWeight(site=w.site, numerator=numerator) if w.site == site else w for w in weight_list.weights
    )
    return weight_list.model_copy(update={"weights": changed})


def everybody_else_without_weight(weight_list: WeightList, site: str) -> WeightList:
    """The smallest weights for all but one site, so that the sum is nearly that site's update."""
    changed = tuple(
        ListedWeight(site=w.site, numerator=weight_list.grid if w.site == site else 1) for w in weight_list.weights
    )
    return weight_list.model_copy(update={"weights": changed})


def list_for_other_sites(weight_list: WeightList, left_out: str) -> WeightList:
    """A list that leaves out a site that was announced."""
    return weight_list.model_copy(update={"weights": tuple(w for w in weight_list.weights if w.site != left_out)})


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
