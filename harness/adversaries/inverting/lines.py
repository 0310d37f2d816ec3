"""What came of one average that was attacked, as a line of JSON."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, TypeAlias

from pydantic import BaseModel, ConfigDict

FORMAT: Final = "moiety-inversion/1"
InversionKey: TypeAlias = tuple[str, int, int, int]


class How(StrEnum):
    """ANALYTIC: rows over biases. OPTIMISED: descent. GUESSED: without the average; as many guesses as the larger of
    both attacks' candidates."""

    ANALYTIC = "analytic"
    OPTIMISED = "optimised"
    GUESSED = "guessed"


class Inverted(BaseModel):
    """One attack: shares of the true records that it has exactly and closely; PSNR and SSIM of images."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    how: How
    candidates: int
    exact: float
    close: float
    noise: float | None
    alike: float | None


class InversionLine(BaseModel):
    """One average over ``sites`` sites' gradients, ``batch`` records each."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    format: str = FORMAT
    target: str
    sites: int
    batch: int
    seed: int
    parameters: int
    attacks: tuple[Inverted, ...]
    seconds: float
    versions: dict[str, str]

    @property
    def key(self) -> InversionKey:
        """What tells a line from another."""
        return (self.target, self.sites, self.batch, self.seed)

    def by(self, how: How) -> Inverted:
        return next(one for one in self.attacks if one.how is how)
