"""One table of protections, and all that follows from each for a round (docs/protocol.md 2, 3, 11)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from protocol.purpose import Purpose
from protocol.sharing import Side


class StudyProtection(StrEnum):
    """The protection of single updates: additive shares at two servers, or ciphertexts that server A adds."""

    SHARES = "shares"
    CKKS = "ckks"

    @property
    def plan(self) -> ProtectionPlan:
        """The properties of a round under this protection."""
        return PROTECTION_PLANS[self]

    def of(self, purpose: Purpose) -> StudyProtection:
        """The protection in a study's rounds of one purpose: all but updates travel as shares."""
        return self if purpose.plan.steps_model else StudyProtection.SHARES

    @classmethod
    def under(cls, key_id: str | None) -> StudyProtection:
        """The protection of a round whose announcement names this key of the sites."""
        return cls.SHARES if key_id is None else cls.CKKS


class RoundStep(StrEnum):
    """The servers' steps in a round that not every round has."""

    TOSS = "toss"
    """Both lock the set that both hold, and draw a challenge."""
    MULTIPLY = "multiply"
    """Both measure single sites and open to the requester what the rule needs."""
    MASK = "mask"
    """One side hands its sum to the other under a mask; each serves a half."""
    COUNTERSIGN = "countersign"
    """B signs what A alone knows: the set, and the sum as the round's one end."""


@dataclass(frozen=True)
class ProtectionPlan:
    """The properties of rounds under one protection.

    ``name`` as runs are called by it. ``holders``: the servers that get a part of an update. ``keyed``: the sites
    encrypt under a key that they all have, and whether a sum is what it should be shows. ``rounded``: an update is
    rounded to fixed point, by less than one unit per coordinate, before it leaves its site.
    """

    name: str
    holders: frozenset[Side]
    steps: frozenset[RoundStep]
    keyed: bool
    rounded: bool

    @property
    def opens(self) -> bool:
        """True if something about single sites can be opened to the requester."""
        return RoundStep.MULTIPLY in self.steps


USUAL_PROTECTION: Final = StudyProtection.SHARES
"""Where nobody says another."""

PROTECTION_PLANS: Final[Mapping[StudyProtection, ProtectionPlan]] = {
    StudyProtection.SHARES: ProtectionPlan(
        name="secure",
        holders=frozenset(Side),
        steps=frozenset({RoundStep.TOSS, RoundStep.MULTIPLY, RoundStep.MASK}),
        keyed=False,
        rounded=True,
    ),
    StudyProtection.CKKS: ProtectionPlan(
        name="ckks",
        holders=frozenset({Side.A}),
        steps=frozenset({RoundStep.COUNTERSIGN}),
        keyed=True,
        rounded=False,
    ),
}
