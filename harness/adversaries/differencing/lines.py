"""One study in which a site was away at the second sum, as a line of JSON."""

from __future__ import annotations

from typing import Final, TypeAlias

from pydantic import BaseModel, ConfigDict

FORMAT: Final = "moiety-differencing/1"
DifferencedKey: TypeAlias = tuple[str, str, str, str, int]


class DifferencedLine(BaseModel):
    """``site`` was in the first sum and away at the second; errors are of its update in the first, relative to its
    length: ``difference`` of the two sums, the requester's part taken out, over the site's weight; the others by what
    the attacker takes the sites' updates to do (``reconstruction.Prior``).

    ``predicted`` is the least isolation that anybody worked out before the second sum, about whomever's update.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    format: str = FORMAT
    study: str
    variant: str
    setting: str
    requester: str
    site: str
    seed: int
    rule: str
    sites: int
    parameters: int
    weight: float
    predicted: float
    difference: float
    average: float
    own: float
    fitted: float
    true: float
    seconds: float

    @property
    def key(self) -> DifferencedKey:
        """What tells a line from another."""
        return (self.study, self.variant, self.setting, self.requester, self.seed)

    @property
    def achieved(self) -> float:
        """By whoever has the sums, the lists and its own updates: the best of what it can try."""
        return min(self.difference, self.average, self.own, self.fitted)
