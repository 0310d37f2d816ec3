"""What a seed draws for the servers' level: troubles of messages, and crashes between two steps of a server."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from harness.faults.drawing import delays
from harness.faults.schedule import (
    Away,
    Crashed,
    Full,
    Lie,
    Lies,
    Migrated,
    Parted,
    Party,
    RosterChanged,
    Stepped,
    Timed,
    named,
)
from harness.faults.servers_only.federation import NEWCOMER
from harness.federation.memory.network import Fate, Passing
from protocol.sharing import Side
from servers.points import Point

_SITES: Final = ("requester", "c1", "c2")
_CONTRIBUTORS: Final = ("c1", "c2", "c3")
_SERVERS: Final = ("server a", "server b")
_RATES: Final = (0.0, 0.02, 0.1)
_DELAYS_S: Final = (0.05, 0.5, 3.0)
_HOUR_S: Final = 3600.0
_HOURS_ONE_IN: Final = 40
"""An hour of retries costs as much as twenty seeds without one."""
_UPGRADES_ONE_IN: Final = 20
_DEMANDS_ONE_IN: Final = 3
_SMOOTH: Final = (0.0, 0.0, 0.8, 1.0)
"""How much of an update is the same in every round: the more, the less another cohort may be summed."""
_LATER: Final = 0.4
_TOGETHER_S: Final = 0.01
"""Most copies come in while the first one does: that takes as long."""
_LASTS: Final = 12.0
"""A round takes about so many delays."""
_NOT_HERE: Final = frozenset({"disk_full", "upload_midway"})
_OF_OTHER_ROUNDS: Final = ("mail", "half", "tag", "go_", "sum_signed")
_POINTS: Final = tuple(
    point.value
    for point in Point
    if point.value not in _NOT_HERE and not any(word in point.value for word in _OF_OTHER_ROUNDS)
)


@dataclass(frozen=True)
class DrawnForServers:
    """Few faults at a time: what each of them does is then seen."""

    seed: int
    delays_s: float
    rates: tuple[float, ...]
    accidents: tuple[Timed | Crashed | Lies, ...]
    smooth: float | None

    @classmethod
    def of(cls, seed: int) -> DrawnForServers:
        draw = random.Random(f"moiety faults of servers {seed}")  # noqa: S311  # repeatable, no secret
        rates = tuple(draw.choice(_RATES) if draw.random() < 0.4 else 0.0 for _ in range(6))
        delays_s = draw.choice(_DELAYS_S)
        accidents = _accidents(draw, 1.0 + _LASTS * delays_s)
        if draw.randrange(_DEMANDS_ONE_IN) > 0:
            return cls(seed, delays_s, rates, accidents, None)
        return cls(
            seed, delays_s, rates, (*accidents, *_membership(draw, 1.0 + _LASTS * delays_s)), draw.choice(_SMOOTH)
        )

    def fate(self, passing: Passing) -> Fate | None:
        if passing.kind == "view":
            return None
        drawn = random.Random(f"{self.seed} fate {named(passing)}")  # noqa: S311  # repeatable, no secret
        share, chance = drawn.random(), drawn.random()
        there_s, _ = delays(self.seed, self.delays_s, passing)
        fates = (
            Fate(arrives=False),
            Fate(answer_arrives=False),
            Fate(again_after_s=share * 10.0 if share < _LATER else there_s + _TOGETHER_S * share),
            Fate(cut_to=share),
            Fate(held_s=70.0 * share),
            Fate(silent=True),
        )
        for rate, fate in zip(self.rates, fates, strict=True):
            chance -= rate
            if chance < 0:
                return fate
        return None


def _accidents(draw: random.Random, lasts_s: float) -> tuple[Timed | Crashed | Lies, ...]:
    crashes = [
        Crashed(who=draw.choice(_SERVERS), point=draw.choice(_POINTS), of_point=draw.choice((0, 0, 1, 2)), for_s=away_s)
        for away_s in [draw.choice((0.1, 5.0, 90.0)) for _ in range(draw.choice((0, 1, 1, 2)))]
    ]
    made = (_restart, _restart, _full, _stepped, _parted, _lies)
    found: list[Timed | Lies] = [one(draw, draw.uniform(0.0, lasts_s)) for one in made if draw.randrange(5) == 0]
    if draw.randrange(_HOURS_ONE_IN) == 0:
        found.append(_hour_away(draw, draw.uniform(0.0, lasts_s)))
    if draw.randrange(_UPGRADES_ONE_IN) == 0:
        found.append(Migrated(who=draw.choice(_SERVERS), at_s=draw.uniform(0.0, lasts_s), for_s=5.0))
    return (*crashes, *found)


def _restart(draw: random.Random, at_s: float) -> Timed:
    who: tuple[Party, ...] = tuple(draw.sample((*_SERVERS, *_SITES), draw.choice((1, 1, 2))))
    return Away(who=who, at_s=at_s, for_s=draw.choice((0.1, draw.uniform(0.0, 100.0), draw.uniform(0.0, 300.0))))


def _lies(draw: random.Random, at_s: float) -> Lies:
    """A contributor's, for the whole study."""
    return Lies(who=draw.choice(_SITES[1:]), lies=tuple(draw.sample(tuple(Lie), draw.choice((1, 1, 3)))))


def _hour_away(draw: random.Random, at_s: float) -> Timed:
    """Of one party, or of the way between the servers."""
    if draw.randrange(4) == 0:
        return Parted(sender="server a", to=Side.B, at_s=at_s, for_s=_HOUR_S)
    return Away(who=(draw.choice((*_SERVERS, *_SITES)),), at_s=at_s, for_s=_HOUR_S)


def _full(draw: random.Random, at_s: float) -> Timed:
    return Full(who=draw.choice(_SERVERS), at_s=at_s, for_s=draw.choice((0.5, 5.0, 100.0)))


def _stepped(draw: random.Random, at_s: float) -> Timed:
    by_s = draw.choice((-3600.0, -40.0, 40.0, 3600.0))
    return Stepped(who=draw.choice(_SERVERS), at_s=at_s, by_s=by_s, for_s=draw.choice((20.0, 200.0)))


def _parted(draw: random.Random, at_s: float) -> Timed:
    return Parted(sender="server a", to=Side.B, at_s=at_s, for_s=draw.choice((20.0, 200.0)))


def _membership(draw: random.Random, lasts_s: float) -> tuple[Timed, ...]:
    """Sites come and go in the middle of the study: by a change of the roster, or one never comes back."""
    found: list[Timed] = []
    if draw.randrange(2) == 0:
        found.append(_roster(draw, lasts_s, adds=NEWCOMER))
    if draw.randrange(2) == 0:
        found.append(_roster(draw, lasts_s, removes=(draw.choice(_CONTRIBUTORS),)))
    if draw.randrange(4) == 0:
        found.append(Away(who=(draw.choice(_CONTRIBUTORS),), at_s=draw.uniform(0.0, lasts_s), for_s=None))
    return tuple(found)


def _roster(draw: random.Random, lasts_s: float, *, adds: Party = "", removes: tuple[Party, ...] = ()) -> RosterChanged:
    """The other server's people have the file at once, or put it in place some time later."""
    first, at_s = draw.choice(tuple(Side)), draw.uniform(0.0, lasts_s)
    for_s = draw.choice((0.1, draw.uniform(0.1, 5.0), draw.uniform(0.1, 100.0)))
    return RosterChanged(adds=adds, removes=removes, first=first, at_s=at_s, for_s=for_s)
