"""How well one study's updates were located, as a line of JSON."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict

FORMAT: Final = "moiety-distances/1"


class Located(BaseModel):
    """Medians over honest sites and rounds of ||estimate - g|| / ||g||, but for ``offset`` and ``expected``.

    ``colluders`` accomplices; ``chosen``: they send zeros and random points, else their honest updates. ``rounds`` were
    measured. ``single``: from each round alone; ``summed``: from it and a sum of the same updates; ``together``: from
    all of them, updates moving as the requester's own do; ``true``: as each site's own do, which nobody knows.
    Both are with the ridge that serves best, which an attacker has to guess.
    ``offset`` is the root mean square of ``single``'s error against ||g - g_0||, ``expected`` what random directions
    give.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    colluders: int
    chosen: bool
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
