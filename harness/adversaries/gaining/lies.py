"""What sites that lie about their update write, to gain weight and then to harm.

A liar knows what every listed site knows: the model, the lists, the opened averages, its own honest update and those of
the liars it works with. From an average it takes its own part out: what is left is mostly the requester's update where
the requester has most weight, and what it takes for the requester's last direction.

Two rounds differ. Where updates are measured the lie has to look good; where they are only summed, with norms opened or
nothing, nobody sees what the liar adds. Under rules that measure what they sum it must do both with one vector.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Reals = NDArray[np.float64]
Written: TypeAlias = dict[str, Reals]
_SMALL: Final = 0.01


class Lie(StrEnum):
    """How a liar looks where it is measured.

    REVERSED does not try: it sends the harm itself. NEAR has the requester's last known direction and its own length,
    SMALL is a hundredth of its own update, COPY the last average, REPLAY what it takes for the requester's last update,
    OPPOSED a pair of liars at both sides of that, whose mean it is. ORACLE is the requester's update itself, which
    nobody has: what a perfect lie would gain.
    """

    REVERSED = "reversed"
    NEAR = "near"
    SMALL = "small"
    COPY = "copy"
    REPLAY = "replay"
    OPPOSED = "opposed"
    ORACLE = "oracle"


@dataclass(frozen=True, eq=False)
class Seen:
    """A round as colluding liars see it; vectors are float64[D].

    ``own`` are their honest updates, ``average`` the last opened one, ``rest`` that without their own part, both None
    before the first sum that they were in. ``requester`` is the truth, which only ORACLE looks at.
    """

    own: Mapping[str, Reals] = field(repr=False)
    average: Reals | None = field(repr=False)
    rest: Reals | None = field(repr=False)
    requester: Reals = field(repr=False)
    clip_norm: float

    @property
    def harm(self) -> Reals:
        """The direction, of length 1, that raises the liars' own loss the most, as far as they know."""
        return -_direction(np.sum(list(self.own.values()), axis=0))

    def reach(self, site: str) -> float:
        """How far the site's honest update is from what it takes for the requester's: nobody expects it nearer."""
        own = self.own[site]
        return _length(own if self.rest is None else own - self.rest)


def shown(lie: Lie, seen: Seen) -> Written:
    """What liars send where they are measured and not summed."""
    return {site: _clipped(vector, seen.clip_norm) for site, vector in _FACES[lie](seen).items()}


def summed(lie: Lie, seen: Seen, *, measured: bool) -> Written:
    """What liars send into a sum; ``measured``: distances to it are opened too, so the harm keeps within reach."""
    if not measured or lie is Lie.REVERSED:
        return dict.fromkeys(seen.own, seen.clip_norm * seen.harm)
    faces = _FACES[lie](seen)
    harmful = {site: face + seen.reach(site) * seen.harm for site, face in faces.items()}
    return {site: _clipped(vector, seen.clip_norm) for site, vector in harmful.items()}


def _reversed(seen: Seen) -> Written:
    return dict.fromkeys(seen.own, seen.clip_norm * seen.harm)


def _near(seen: Seen) -> Written:
    if seen.rest is None:
        return dict(seen.own)
    return {site: _length(own) * _direction(seen.rest) for site, own in seen.own.items()}


def _small(seen: Seen) -> Written:
    return {site: _SMALL * own for site, own in seen.own.items()}


def _copy(seen: Seen) -> Written:
    return dict(seen.own) if seen.average is None else dict.fromkeys(seen.own, seen.average)


def _replay(seen: Seen) -> Written:
    return dict(seen.own) if seen.rest is None else dict.fromkeys(seen.own, seen.rest)


def _opposed(seen: Seen) -> Written:
    """By turns at either side; one that is left over stands in the middle."""
    if seen.rest is None:
        return dict(seen.own)
    sites, apart = list(seen.own), max(seen.reach(site) for site in seen.own)
    pairs = 2 * (len(sites) // 2)
    sides = [(1 if place % 2 else -1) if place < pairs else 0 for place in range(len(sites))]
    return {site: seen.rest + side * apart * seen.harm for site, side in zip(sites, sides, strict=True)}


def _oracle(seen: Seen) -> Written:
    return dict.fromkeys(seen.own, seen.requester)


_FACES: Final[Mapping[Lie, Callable[[Seen], Written]]] = {
    Lie.REVERSED: _reversed,
    Lie.NEAR: _near,
    Lie.SMALL: _small,
    Lie.COPY: _copy,
    Lie.REPLAY: _replay,
    Lie.OPPOSED: _opposed,
    Lie.ORACLE: _oracle,
}


def _length(vector: Reals) -> float:
    return float(np.linalg.norm(vector))


def _direction(vector: Reals) -> Reals:
    length = _length(vector)
    return vector if length == 0 else vector / length


def _clipped(vector: Reals, clip_norm: float) -> Reals:
    """No longer than what passes where norms are opened."""
    return vector * min(1.0, clip_norm / max(_length(vector), clip_norm))
