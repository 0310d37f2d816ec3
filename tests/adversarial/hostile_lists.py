"""Weight lists that a requester changes: weights that it may not give, sites that it leaves out."""

from __future__ import annotations

from protocol.wire.messages import ListedWeight, WeightList


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
