"""What poisoners reached in one study, as a line of JSON."""

from __future__ import annotations

from typing import Final, TypeAlias

from pydantic import BaseModel, ConfigDict

from harness.adversaries.poisoning.poisons import Poison

FORMAT: Final = "moiety-poisoning/1"

RunKey: TypeAlias = tuple[str, str, str, int, int, str]


def run_key(study: str, variant: str, protection: str, seed: int, poisoners: int, poison: Poison | None) -> RunKey:
    """What tells a run from another."""
    return (study, variant, protection, seed, poisoners, "" if poison is None else poison.value)


class PoisonedLine(BaseModel):
    """One study of one rule with poisoners; ``poison`` None is the study without, over the same sites and seed.

    ``weight`` is the poisoners' share of a sum, the mean over released rounds. ``accuracy`` and ``log_loss`` are the
    requester's model's on its test part; ``triggered`` the share of its test examples of other classes that a trigger
    turns into the target class.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    format: str = FORMAT
    study: str
    variant: str
    rule: str
    protection: str
    seed: int
    sites: int
    poisoners: int
    poison: Poison | None
    end: str
    released: int
    weight: float
    accuracy: float
    log_loss: float
    triggered: float
    seconds: float

    @property
    def key(self) -> RunKey:
        """What tells a line from another."""
        return run_key(self.study, self.variant, self.protection, self.seed, self.poisoners, self.poison)
