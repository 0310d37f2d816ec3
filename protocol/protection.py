"""What hides single updates in a study, and all that follows from that, in one table (docs/protocol.md 2, 3, 11)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class StudyProtection(StrEnum):
    """What hides single updates: additive shares at two servers, or ciphertexts that server A adds."""

    SHARES = "shares"
    CKKS = "ckks"

    @property
    def plan(self) -> ProtectionPlan:
        """What a study under this protection is like."""
        return PLANS[self]


@dataclass(frozen=True)
class ProtectionPlan:
    """What a study's rounds of updates are like; all other rounds travel as shares.

    ``keyed``: the sites encrypt under a key that they all have, and server A alone holds what they send. ``opens``:
    something about single sites can be opened to the requester. ``rounded``: an update is rounded to fixed point, by
    less than one unit per coordinate, before it leaves its site.
    """

    keyed: bool
    opens: bool
    rounded: bool


PLANS: Final[Mapping[StudyProtection, ProtectionPlan]] = {
    StudyProtection.SHARES: ProtectionPlan(keyed=False, opens=True, rounded=True),
    StudyProtection.CKKS: ProtectionPlan(keyed=True, opens=False, rounded=False),
}
