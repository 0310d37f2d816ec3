"""What an attack on one finished study found, as a line of JSON."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict

from harness.adversaries.reconstruction import Prior
from harness.simulate.run_line import Values
from protocol.clauses import Clause

FORMAT: Final = "moiety-attack/2"


class PartyErrors(BaseModel):
    """What one party got with one prior: by site, the relative error of every released round."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    party: tuple[str, ...]
    prior: Prior
    errors: dict[str, Values]

    def median(self, site: str) -> float | None:
        """The error of a middling round, None for a site that was in no sum."""
        found = sorted(error for error in self.errors.get(site, ()) if error is not None)
        return found[len(found) // 2] if found else None

    def least(self, site: str) -> float | None:
        """The error of the round that is known best."""
        return min((error for error in self.errors.get(site, ()) if error is not None), default=None)


class AttackLine(BaseModel):
    """One study, run once and attacked by everybody in it; lists have one entry a released round, ``isolation`` one
    for every round of the study.

    ``setting`` names what was changed about the study, ``rounds`` are the numbers of the released rounds, ``weight``
    the weights in the sums, ``lists`` how many different ones there were. ``isolation`` is what each site worked out
    before it contributed, the requester's own among them. ``ended_by`` is the
    policy's clause that ended the shared part, None where none did.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    format: str = FORMAT
    study: str
    variant: str
    setting: str
    requester: str
    seed: int
    rule: str
    end: str
    reason: str
    ended_by: Clause | None
    parameters: int
    test_accuracy: float
    rounds: tuple[int, ...]
    lists: int
    weight: dict[str, Values]
    isolation: dict[str, Values]
    attacks: tuple[PartyErrors, ...]
    seconds: float
    versions: dict[str, str]

    def by(self, party: tuple[str, ...], prior: Prior) -> PartyErrors | None:
        """One party's result, None where it was not tried."""
        return next((one for one in self.attacks if (one.party, one.prior) == (party, prior)), None)

    @property
    def least_isolation(self) -> float | None:
        """The smallest figure that any site found in a round whose sum was opened."""
        opened = {number - 1 for number in self.rounds}
        found = [
            value
            for values in self.isolation.values()
            for place, value in enumerate(values)
            if value is not None and place in opened
        ]
        return min(found, default=None)

    @property
    def key(self) -> tuple[str, str, str, str, int]:
        """What tells a line from another."""
        return (self.study, self.variant, self.setting, self.requester, self.seed)
