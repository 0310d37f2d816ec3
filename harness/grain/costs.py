"""What a measured round with pairs costs between the servers, by the lengths of its products (docs/protocol.md 7, 8).

Every pair of sites, the requester among them, is one product of the sketched length in every block; every site's range
check is some products of length 1 in every block. An element of a product takes OT's bytes, by the extension that
sessions use, Gilboa's, and a masked element in either direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from harness.grain.blocks import Block
from protocol.parameters import RANGE_PROJECTIONS, StudyParameters

OT_BYTES: Final = 160
GILBOA_BYTES: Final = 252
MASKED_BYTES: Final = 16


@dataclass(frozen=True)
class MeasuredCost:
    """Of one measured round: products, their elements, opened numbers, bytes between the servers."""

    products: int
    elements: int
    opened: int

    @property
    def bytes(self) -> int:
        return self.elements * (OT_BYTES + GILBOA_BYTES + MASKED_BYTES)


def cost_of(blocks: Sequence[Block], contributors: int, sketch_length: int) -> MeasuredCost:
    """Raises: pydantic's error for a sketch length that no study has"""
    sites = contributors + 1
    pairs = sites * (sites - 1) // 2
    checks = sites * RANGE_PROJECTIONS
    elements = 0
    for block in blocks:
        parameters = StudyParameters(
            dimension=block.size, clip_norm=1.0, sketch_length=sketch_length, least_contributors=contributors
        )
        elements += pairs * parameters.sketched_length + checks
    return MeasuredCost(len(blocks) * (pairs + checks), elements, len(blocks) * pairs)
