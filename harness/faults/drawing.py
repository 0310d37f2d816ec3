"""Schedules drawn from a seed alone: how often what happens to messages, and what happens to parties when."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from harness.attack.troubled_study import SITES
from harness.faults.schedule import (
    NEWCOMER,
    SERVERS,
    Away,
    Crashed,
    Full,
    Level,
    Lie,
    Lies,
    Migrated,
    Parted,
    Party,
    RosterChanged,
    Schedule,
    Stepped,
    Timed,
    named,
)
from harness.federation.network import Fate, Passing
from protocol.sharing import Side
from servers.failpoints import Point

PARTIES: Final = (*SITES, *SERVERS)
_HOUR_S: Final = 3600.0
Draw = random.Random
Accident = Timed | Crashed | Lies
Made = Callable[[float, float], Fate]
"""A fate, of a random share and of how long the message is on its way."""


@dataclass(frozen=True)
class Drawn:
    """``schedule``: accidents of parties; ``rates``: how often each fate strikes a message not of ``spared`` kinds."""

    schedule: Schedule
    rates: tuple[tuple[float, Made], ...]
    spared: frozenset[str] = frozenset()

    @classmethod
    def of(cls, seed: int, level: Level = Level.STUDIES) -> Drawn:
        return _of_studies(seed) if level is Level.STUDIES else _of_servers(seed)

    def fate(self, passing: Passing) -> Fate | None:
        """The fault of a message, or None for a plain delay; the same whatever passed before."""
        if passing.kind in self.spared:
            return None
        drawn = Draw(f"{self.schedule.seed} fate {named(passing)}")  # repeatable, no secret
        share, chance = drawn.random(), drawn.random()
        for rate, fate in self.rates:
            chance -= rate
            if chance < 0:
                return fate(share, self.schedule.delays(passing)[0])
        return None


# --- whole studies ----------------------------------------------------------------------------------------------------

_RATES: Final = (0.0, 0.0, 0.02, 0.1)
_RARE: Final = (0.0, 0.0, 0.005, 0.02)
_RESTARTS: Final = (0, 1, 2, 3)
_WITHIN_S: Final = 2.0
_WITHIN_DELAYS: Final = 12.0
"""Accidents come while the study runs: how long that is follows from the delays."""
_LONGEST_DELAYS_S: Final = (0.1, 1.0, 4.0)
_STEPS_S: Final = (-3600.0, -45.0, -5.0, 5.0, 45.0, 3600.0)
_ONE_IN: Final = 6
"""So many seeds have each of the rarer accidents of parties."""


def _of_studies(seed: int) -> Drawn:
    draw = Draw(f"moiety faults {seed}")  # repeatable, no secret
    lost, answer_lost, copied, cut, broken_off = (draw.choice(_RATES) for _ in range(5))
    held_back, silent, slow = (draw.choice(_RARE) for _ in range(3))
    delays_s = draw.choice(_LONGEST_DELAYS_S)
    accidents = _accidents_of_studies(draw, _WITHIN_S + _WITHIN_DELAYS * delays_s)
    rates: tuple[tuple[float, Made], ...] = (
        (lost, lambda share, there_s: Fate(arrives=False)),
        (answer_lost, lambda share, there_s: Fate(answer_arrives=False)),
        (copied, lambda share, there_s: Fate(again_after_s=share * 10.0)),
        (cut, lambda share, there_s: Fate(cut_to=share)),
        (cut, lambda share, there_s: Fate(answer_cut_to=share)),
        (broken_off, lambda share, there_s: Fate(cut_to=share, breaks_off=True, answer_arrives=share < 0.5)),
        (held_back, lambda share, there_s: Fate(held_s=30.0 + 200.0 * share)),
        (held_back / 4, lambda share, there_s: Fate(held_s=_HOUR_S)),
        (silent, lambda share, there_s: Fate(silent=True)),
        (slow, lambda share, there_s: Fate(pause_s=100.0 * share)),
    )
    return Drawn(Schedule(seed=seed, delays_s=delays_s, faults=accidents), rates)


def _accidents_of_studies(draw: Draw, within_s: float) -> tuple[Timed, ...]:
    """Restarts of one party or of several at once, an hour away, an upgrade, a disk, a clock, a way that is shut."""

    def at_s() -> float:
        return draw.uniform(0.0, within_s)

    found: list[Timed] = [
        Away(who=_some(draw), at_s=at_s(), for_s=draw.choice((0.0, draw.uniform(0.0, 30.0))))
        for _ in range(draw.choice(_RESTARTS))
    ]
    rarer: tuple[Callable[[], Iterable[Timed]], ...] = (
        lambda: [Away(who=(draw.choice(PARTIES),), at_s=at_s(), for_s=_HOUR_S)],
        lambda: _upgrade(draw, at_s()),
        lambda: [Full(who=draw.choice(PARTIES), at_s=at_s(), for_s=draw.choice((1.0, 20.0, 300.0)))],
        lambda: [_stepped(draw, at_s(), PARTIES, _STEPS_S, (30.0, 600.0))],
        lambda: [Parted(sender="server a", to=Side.B, at_s=at_s(), for_s=draw.choice((30.0, 600.0, _HOUR_S)))],
        lambda: [Away(who=(draw.choice(SITES[1:]),), at_s=at_s(), for_s=None)],  # the others are enough
    )
    return (*found, *(one for made in rarer if draw.randrange(_ONE_IN) == 0 for one in made()))


def _some(draw: Draw) -> tuple[Party, ...]:
    return tuple(draw.sample(PARTIES, draw.choice((1, 1, 1, 2, 3))))


def _upgrade(draw: Draw, first_s: float) -> Iterable[Timed]:
    """Both servers, one after the other, and all agents with the second."""
    first, second = draw.sample(tuple(SERVERS), 2)
    return [
        Away(who=(first,), at_s=first_s, for_s=20.0),
        Away(who=(second, *SITES), at_s=first_s + draw.uniform(0.0, 30.0), for_s=20.0),
    ]


def _stepped(
    draw: Draw, at_s: float, parties: tuple[Party, ...], steps_s: tuple[float, ...], lasts_s: tuple[float, ...]
) -> Timed:
    by_s = draw.choice(steps_s)
    return Stepped(who=draw.choice(parties), at_s=at_s, by_s=by_s, for_s=draw.choice(lasts_s))


# --- servers with scripted sites: few faults at a time, so that the effect of each is seen ----------------------------

_SCRIPTED: Final = ("requester", "c1", "c2")
_CONTRIBUTORS: Final = ("c1", "c2", "c3")
_SERVERS: Final = tuple(SERVERS)
_SERVERS_RATES: Final = (0.0, 0.02, 0.1)
_SERVERS_DELAYS_S: Final = (0.05, 0.5, 3.0)
_HOURS_ONE_IN: Final = 40
"""An hour of retries costs as much as twenty seeds without one."""
_UPGRADES_ONE_IN: Final = 20
_DEMANDS_ONE_IN: Final = 3
_SMOOTH: Final = (0.0, 0.0, 0.8, 1.0)
"""Shares of an update that are the same in every round: the more, the less another cohort may be summed."""
_LATER: Final = 0.4
_TOGETHER_S: Final = 0.01
"""Most copies come in while the first one does: that takes as long."""
_LASTS: Final = 12.0
"""A round takes about so many delays."""
_NOT_HERE: Final = frozenset({Point.DISK_FULL, Point.UPLOAD_MIDWAY})
_OF_OTHER_ROUNDS: Final = ("mail", "half", "tag", "go_", "sum_signed")
POINTS: Final = tuple(
    point for point in Point if point not in _NOT_HERE and not any(word in point for word in _OF_OTHER_ROUNDS)
)
"""Failpoints that a round of scripted sites reaches."""


def _of_servers(seed: int) -> Drawn:
    draw = Draw(f"moiety faults of servers {seed}")  # repeatable, no secret
    rates = tuple(draw.choice(_SERVERS_RATES) if draw.random() < 0.4 else 0.0 for _ in range(6))
    delays_s = draw.choice(_SERVERS_DELAYS_S)
    lasts_s, smooth = 1.0 + _LASTS * delays_s, None
    accidents = _accidents_of_servers(draw, lasts_s)
    if draw.randrange(_DEMANDS_ONE_IN) == 0:
        accidents += _membership(draw, lasts_s)
        smooth = draw.choice(_SMOOTH)
    made: tuple[Made, ...] = (
        lambda share, there_s: Fate(arrives=False),
        lambda share, there_s: Fate(answer_arrives=False),
        lambda share, there_s: Fate(again_after_s=share * 10.0 if share < _LATER else there_s + _TOGETHER_S * share),
        lambda share, there_s: Fate(cut_to=share),
        lambda share, there_s: Fate(held_s=70.0 * share),
        lambda share, there_s: Fate(silent=True),
    )
    schedule = Schedule(seed=seed, delays_s=delays_s, level=Level.SERVERS, smooth=smooth, faults=tuple(accidents))
    return Drawn(schedule, tuple(zip(rates, made, strict=True)), frozenset({"view"}))


def _accidents_of_servers(draw: Draw, lasts_s: float) -> list[Accident]:
    found: list[Accident] = [
        Crashed(who=draw.choice(_SERVERS), point=draw.choice(POINTS), of_point=draw.choice((0, 0, 1, 2)), for_s=away_s)
        for away_s in [draw.choice((0.1, 5.0, 90.0)) for _ in range(draw.choice((0, 1, 1, 2)))]
    ]
    often: tuple[Callable[[float], Accident], ...] = (
        lambda at_s: _restart(draw, at_s),
        lambda at_s: _restart(draw, at_s),
        lambda at_s: Full(who=draw.choice(_SERVERS), at_s=at_s, for_s=draw.choice((0.5, 5.0, 100.0))),
        lambda at_s: _stepped(draw, at_s, _SERVERS, (-3600.0, -40.0, 40.0, 3600.0), (20.0, 200.0)),
        lambda at_s: Parted(sender="server a", to=Side.B, at_s=at_s, for_s=draw.choice((20.0, 200.0))),
        lambda at_s: _lies(draw),
    )
    found += [one(draw.uniform(0.0, lasts_s)) for one in often if draw.randrange(5) == 0]
    if draw.randrange(_HOURS_ONE_IN) == 0:
        found.append(_hour_away(draw, draw.uniform(0.0, lasts_s)))
    if draw.randrange(_UPGRADES_ONE_IN) == 0:
        found.append(Migrated(who=draw.choice(_SERVERS), at_s=draw.uniform(0.0, lasts_s), for_s=5.0))
    return found


def _restart(draw: Draw, at_s: float) -> Timed:
    who: tuple[Party, ...] = tuple(draw.sample((*_SERVERS, *_SCRIPTED), draw.choice((1, 1, 2))))
    return Away(who=who, at_s=at_s, for_s=draw.choice((0.1, draw.uniform(0.0, 100.0), draw.uniform(0.0, 300.0))))


def _lies(draw: Draw) -> Lies:
    """A contributor's, for the whole study."""
    return Lies(who=draw.choice(_SCRIPTED[1:]), lies=tuple(draw.sample(tuple(Lie), draw.choice((1, 1, 3)))))


def _hour_away(draw: Draw, at_s: float) -> Timed:
    """Draw an absence of an hour: of one party, or of the way between the servers."""
    if draw.randrange(4) == 0:
        return Parted(sender="server a", to=Side.B, at_s=at_s, for_s=_HOUR_S)
    return Away(who=(draw.choice((*_SERVERS, *_SCRIPTED)),), at_s=at_s, for_s=_HOUR_S)


def _membership(draw: Draw, lasts_s: float) -> list[Accident]:
    """Sites come and go in the middle of the study: by a change of the roster, or one never comes back."""
    found: list[Accident] = []
    if draw.randrange(2) == 0:
        found.append(_roster(draw, lasts_s, adds=NEWCOMER))
    if draw.randrange(2) == 0:
        found.append(_roster(draw, lasts_s, removes=(draw.choice(_CONTRIBUTORS),)))
    if draw.randrange(4) == 0:
        found.append(Away(who=(draw.choice(_CONTRIBUTORS),), at_s=draw.uniform(0.0, lasts_s), for_s=None))
    return found


def _roster(draw: Draw, lasts_s: float, *, adds: Party = "", removes: tuple[Party, ...] = ()) -> RosterChanged:
    """The other server's people have the file at once, or put it in place some time later."""
    first, at_s = draw.choice(tuple(Side)), draw.uniform(0.0, lasts_s)
    for_s = draw.choice((0.1, draw.uniform(0.1, 5.0), draw.uniform(0.1, 100.0)))
    return RosterChanged(adds=adds, removes=removes, first=first, at_s=at_s, for_s=for_s)
