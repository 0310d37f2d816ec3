"""Troubled networks: what becomes of each request is drawn from a seed, from who asks whom and from how often it did.

So the same request meets the same trouble in every run, whatever else passes meanwhile.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from harness.federation.memory.network import Fate, Judge, Passing

Draw = Callable[[random.Random, Passing], Fate]


class Troubled(Judge):
    """``draw`` says what becomes of a request, over its own random numbers; ``injected`` counts what did, by kind.

    ``steps`` are all requests.
    """

    def __init__(self, draw: Draw, seed: int) -> None:
        super().__init__()
        self._draw, self._seed = draw, seed
        self.injected: Counter[str] = Counter()
        self.steps = 0

    def fate(self, passing: Passing) -> Fate:
        drawn = random.Random(f"{self._seed} {passing.sender} {passing.to} {passing.number}")  # noqa: S311
        fate = self._draw(drawn, passing)
        self.injected.update(kinds(fate))
        self.steps += 1
        return fate


def kinds(fate: Fate) -> list[str]:
    """What a fate does, in words."""
    found = {
        "request held": fate.held_s > 0,
        "request lost": not fate.arrives,
        "request copied": fate.again_after_s is not None,
        "request cut": fate.cut_to < 1 and not fate.breaks_off,
        "request broken off": fate.breaks_off,
        "answer held": fate.answer_held_s > 0,
        "answer lost": not fate.answer_arrives,
        "answer cut": fate.answer_cut_to < 1,
        "answer slow": fate.pause_s > 0,
        "silence": fate.silent,
    }
    return [kind for kind, there in found.items() if there]
