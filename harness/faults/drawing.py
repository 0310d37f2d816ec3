"""Schedules drawn from a seed alone: how often what happens to messages, and what happens to parties when."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from harness.adversaries.troubled_study import SITES
from harness.faults.schedule import Away, Full, Parted, Party, Stepped, Timed, named
from harness.federation.memory.network import Fate, Passing
from protocol.sharing import Side

SERVERS: Final = tuple(f"server {side.value}" for side in Side)
PARTIES: Final = (*SITES, *SERVERS)
_RATES: Final = (0.0, 0.0, 0.02, 0.1)
_RARE: Final = (0.0, 0.0, 0.005, 0.02)
_RESTARTS: Final = (0, 1, 2, 3)
_WITHIN_S: Final = 2.0
_WITHIN_DELAYS: Final = 12.0
"""Accidents come while the study runs: how long that is follows from the delays."""
_HOUR_S: Final = 3600.0
_LONGEST_DELAYS_S: Final = (0.1, 1.0, 4.0)
_STEPS_S: Final = (-3600.0, -45.0, -5.0, 5.0, 45.0, 3600.0)
_ONE_IN: Final = 6
"""So many seeds have each of the rarer accidents of parties."""


@dataclass(frozen=True)
class Drawn:
    """The rates at which a seed troubles messages, and its accidents of parties."""

    seed: int
    delays_s: float
    lost: float
    answer_lost: float
    copied: float
    cut: float
    broken_off: float
    held_back: float
    silent: float
    slow: float
    timed: tuple[Timed, ...]

    @classmethod
    def of(cls, seed: int) -> Drawn:
        draw = random.Random(f"moiety faults {seed}")  # noqa: S311  # repeatable, no secret
        lost, answer_lost, copied, cut, broken_off = (draw.choice(_RATES) for _ in range(5))
        held_back, silent, slow = (draw.choice(_RARE) for _ in range(3))
        delays_s = draw.choice(_LONGEST_DELAYS_S)
        return cls(
            seed=seed,
            delays_s=delays_s,
            lost=lost,
            answer_lost=answer_lost,
            copied=copied,
            cut=cut,
            broken_off=broken_off,
            held_back=held_back,
            silent=silent,
            slow=slow,
            timed=_accidents(draw, _WITHIN_S + _WITHIN_DELAYS * delays_s),
        )

    def fate(self, passing: Passing) -> Fate | None:
        """Of one message, None where it only takes its time; the same whatever passed before."""
        drawn = random.Random(f"{self.seed} fate {named(passing)}")  # noqa: S311  # repeatable, no secret
        share, chance = drawn.random(), drawn.random()
        fates = (
            (self.lost, Fate(arrives=False)),
            (self.answer_lost, Fate(answer_arrives=False)),
            (self.copied, Fate(again_after_s=share * 10.0)),
            (self.cut, Fate(cut_to=share)),
            (self.cut, Fate(answer_cut_to=share)),
            (self.broken_off, Fate(cut_to=share, breaks_off=True, answer_arrives=share < 0.5)),
            (self.held_back, Fate(held_s=30.0 + 200.0 * share)),
            (self.held_back / 4, Fate(held_s=_HOUR_S)),
            (self.silent, Fate(silent=True)),
            (self.slow, Fate(pause_s=100.0 * share)),
        )
        for rate, fate in fates:
            chance -= rate
            if chance < 0:
                return fate
        return None


def delays(seed: int, longest_s: float, passing: Passing) -> tuple[float, float]:
    """How long a message and its answer are on their way."""
    drawn = random.Random(f"{seed} delay {named(passing)}")  # noqa: S311  # repeatable, no secret
    return drawn.uniform(0.0, longest_s), drawn.uniform(0.0, longest_s)


def _accidents(draw: random.Random, within_s: float) -> tuple[Timed, ...]:
    """Restarts of one party or of several at once, an hour away, an upgrade, a disk, a clock, a way that is shut."""
    found: list[Timed] = [
        Away(who=_some(draw), at_s=draw.uniform(0.0, within_s), for_s=draw.choice((0.0, draw.uniform(0.0, 30.0))))
        for _ in range(draw.choice(_RESTARTS))
    ]
    rarer = (_hour_away, _upgrade, _full, _stepped, _parted, _gone)
    return (*found, *(one for made in rarer if draw.randrange(_ONE_IN) == 0 for one in made(draw, within_s)))


def _some(draw: random.Random) -> tuple[Party, ...]:
    return tuple(draw.sample(PARTIES, draw.choice((1, 1, 1, 2, 3))))


def _hour_away(draw: random.Random, within_s: float) -> list[Timed]:
    return [Away(who=(draw.choice(PARTIES),), at_s=draw.uniform(0.0, within_s), for_s=_HOUR_S)]


def _upgrade(draw: random.Random, within_s: float) -> list[Timed]:
    """Both servers, one after the other, and all agents with the second."""
    first_s = draw.uniform(0.0, within_s)
    first, second = draw.sample(SERVERS, 2)
    return [
        Away(who=(first,), at_s=first_s, for_s=20.0),
        Away(who=(second, *SITES), at_s=first_s + draw.uniform(0.0, 30.0), for_s=20.0),
    ]


def _full(draw: random.Random, within_s: float) -> list[Timed]:
    return [Full(who=draw.choice(PARTIES), at_s=draw.uniform(0.0, within_s), for_s=draw.choice((1.0, 20.0, 300.0)))]


def _stepped(draw: random.Random, within_s: float) -> list[Timed]:
    at_s, by_s = draw.uniform(0.0, within_s), draw.choice(_STEPS_S)
    return [Stepped(who=draw.choice(PARTIES), at_s=at_s, by_s=by_s, for_s=draw.choice((30.0, 600.0)))]


def _parted(draw: random.Random, within_s: float) -> list[Timed]:
    return [
        Parted(
            sender="server a", to=Side.B, at_s=draw.uniform(0.0, within_s), for_s=draw.choice((30.0, 600.0, _HOUR_S))
        )
    ]


def _gone(draw: random.Random, within_s: float) -> list[Timed]:
    """A contributor that never comes back: the others are enough."""
    return [Away(who=(draw.choice(SITES[1:]),), at_s=draw.uniform(0.0, within_s), for_s=None)]
