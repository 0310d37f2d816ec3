"""What goes wrong in one study: drawn from a seed alone, so that the seed is the whole command to see it again."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from harness.adversaries.troubled.study import SITES
from harness.federation.memory.network import Fate, Passing
from protocol.sharing import Side

_RATES: Final = (0.0, 0.0, 0.02, 0.1)
_RARE: Final = (0.0, 0.0, 0.005, 0.02)
_RESTARTS: Final = (0, 1, 2, 3)
_WITHIN_S: Final = 60.0
_LONGEST_DELAYS_S: Final = (0.1, 1.0, 4.0)


@dataclass(frozen=True)
class Restart:
    """A party dies at ``at_s`` (after the study was handed in) and comes back ``away_s`` later."""

    who: str | Side
    at_s: float
    away_s: float


@dataclass(frozen=True)
class Schedule:
    """How often what happens to a request; and who restarts when."""

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
    restarts: tuple[Restart, ...]

    @classmethod
    def drawn(cls, seed: int) -> Schedule:
        draw = random.Random(f"moiety faults {seed}")  # noqa: S311
        lost, answer_lost, copied, cut, broken_off = (draw.choice(_RATES) for _ in range(5))
        held_back, silent, slow = (draw.choice(_RARE) for _ in range(3))
        who: tuple[str | Side, ...] = (*SITES, *Side)
        restarts = [
            Restart(draw.choice(who), draw.uniform(0.0, _WITHIN_S), draw.choice((0.0, draw.uniform(0.0, 30.0))))
            for _ in range(draw.choice(_RESTARTS))
        ]
        return cls(
            seed=seed,
            delays_s=draw.choice(_LONGEST_DELAYS_S),
            lost=lost,
            answer_lost=answer_lost,
            copied=copied,
            cut=cut,
            broken_off=broken_off,
            held_back=held_back,
            silent=silent,
            slow=slow,
            restarts=tuple(sorted(restarts, key=lambda one: one.at_s)),
        )

    def fate(self, drawn: random.Random, passing: Passing) -> Fate:
        """Of one request: delayed, and at most one thing more."""
        held_s, answer_held_s = drawn.uniform(0.0, self.delays_s), drawn.uniform(0.0, self.delays_s)
        share, chance = drawn.random(), drawn.random()
        fates = (
            (self.lost, Fate(arrives=False)),
            (self.answer_lost, Fate(held_s=held_s, answer_arrives=False)),
            (self.copied, Fate(held_s=held_s, again_after_s=share * 10.0)),
            (self.cut, Fate(held_s=held_s, cut_to=share)),
            (self.cut, Fate(held_s=held_s, answer_cut_to=share)),
            (self.broken_off, Fate(held_s=held_s, cut_to=share, breaks_off=True, answer_arrives=share < 0.5)),
            (self.held_back, Fate(held_s=30.0 + 200.0 * share)),
            (self.silent, Fate(silent=True)),
            (self.slow, Fate(pause_s=100.0 * share)),
        )
        for rate, fate in fates:
            chance -= rate
            if chance < 0:
                return fate
        return Fate(held_s=held_s, answer_held_s=answer_held_s)
