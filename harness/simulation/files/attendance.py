"""``[case.attendance]``: who comes late and who is away, the same in every variant with a seed."""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from harness.engine.run_state import EVERYBODY, Attendance
from protocol.errors import ConfigurationError

Round = Annotated[int, Field(ge=1)]


class AttendanceTable(BaseModel):
    """``late``: site -> the first round that it can be listed in. ``missed``: site -> rounds in which it was listed and
    sends nothing. ``dropout``: the chance that a contributor misses a round, drawn anew for every seed, site and round.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    late: dict[str, Round] = {}
    missed: dict[str, list[Round]] = {}
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0

    def require_sites(self, names: Collection[str], source: str) -> None:
        """Raises: ConfigurationError for a site that there is not"""
        unknown = sorted((self.late.keys() | self.missed.keys()) - set(names))
        if unknown:
            raise ConfigurationError(
                f"{source}: [case.attendance]: {unknown[0]!r} is no site; the sites are {', '.join(names)}"
            )

    def attendance(self, sites: Collection[str], rounds: int, seed: int) -> Attendance:
        """Of a run over so many rounds, and as many of class counts; what is said of the requester does not matter."""
        if self == ALL_THERE:
            return EVERYBODY
        missed = {(number, site) for site, numbers in self.missed.items() for number in numbers}
        for site in sites:
            drawn = random.Random(f"attendance {seed} {site}")  # noqa: S311  # a simulation's dice
            missed |= {(number, site) for number in range(1, 2 * rounds + 1) if drawn.random() < self.dropout}
        return Attendance(tuple(self.late.items()), frozenset(missed))


ALL_THERE: Final = AttendanceTable()
