"""Who was in a study over a random half of its patients, as a line of JSON."""

from __future__ import annotations

from typing import Final, TypeAlias

from pydantic import BaseModel, ConfigDict

from harness.adversaries.inferring.lines import Told

FORMAT: Final = "moiety-memorised/1"
MemorisedKey: TypeAlias = tuple[str, str, int]


class MemorisedLine(BaseModel):
    """One study. ``by_loss`` has an entry for every model after a round, ``by_average`` one for every opened average,
    both in order; ``rounds`` are the numbers of the latter's rounds. ``by_averages`` is over all rounds together.

    ``epsilon`` is each contributor's, of the unit record over the whole study, at the delta of ``memorised_run``; empty
    where there is no noise.

    ``members`` says of every contributor's record, in the data's order, whether it was trained on, ``confidence`` is
    log p / (1 - p) of its class under the last model. ``known`` and ``unknown`` are that model's accuracy on both.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    format: str = FORMAT
    study: str
    variant: str
    rule: str
    seed: int
    end: str
    parameters: int
    released: int
    known: float
    unknown: float
    rounds: tuple[int, ...]
    by_loss: tuple[Told, ...]
    by_average: tuple[Told, ...]
    by_averages: Told | None
    members: tuple[bool, ...]
    confidence: tuple[float, ...]
    epsilon: dict[str, float] = {}
    seconds: float
    versions: dict[str, str]

    @property
    def key(self) -> MemorisedKey:
        """What tells a line from another."""
        return (self.study, self.variant, self.seed)
