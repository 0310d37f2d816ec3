"""How well one study's updates were located, as a line of JSON."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from pydantic import BaseModel, ConfigDict


class Points(StrEnum):
    """What accomplices send: their honest updates, random points, or random points but for one that sends zeros."""

    HONEST = "honest"
    RANDOM = "random"
    ZEROS = "zeros"


FORMAT: Final = "moiety-distances/1"


class Located(BaseModel):
    """Medians over honest sites and rounds of ||estimate - g|| / ||g||, but for ``offset`` and ``expected``.

    ``colluders`` accomplices send ``points``; ``rounds`` were measured. ``single``: from each round alone; ``summed``:
    from it and a sum of the same updates; ``together``: from all rounds, updates moving as the requester's own do;
    ``true``: as each site's own do, which nobody knows, both with the ridge that serves best, which an attacker has to
    guess. ``offset`` is the root mean square of ``single``'s error against ||g - g_0||, ``expected`` what random
    directions give.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    colluders: int
    points: Points
    rounds: int
    single: float
    summed: float
    together: float
    true: float
    offset: float
    expected: float


class LocatingLine(BaseModel):
    """One study, its updates located by every number of colluders."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    format: str = FORMAT
    study: str
    variant: str
    setting: str
    requester: str
    seed: int
    sites: int
    parameters: int
    located: tuple[Located, ...]
    seconds: float
    versions: dict[str, str]
