"""The network of a simulated study: what a schedule says, or what a seed draws, which is then written down."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from harness.adversaries.troubled.networks import kinds
from harness.faults.drawing import delays
from harness.faults.schedule import Schedule, Troubled, named
from harness.federation.memory.network import Fate, Judge, Passing
from protocol.sharing import Side

Draw = Callable[[Passing], Fate | None]


class FaultyNetwork(Judge):
    """``found`` are the faults of messages that struck; ``steps`` counts all messages."""

    def __init__(self, schedule: Schedule, draw: Draw | None = None) -> None:
        """``draw`` decides where the seed does, in place of the schedule's faults of messages."""
        super().__init__()
        self._schedule = schedule
        self._listed = {one.names: one.fate for one in schedule.faults if isinstance(one, Troubled)}
        self._draw = draw or self._from_list
        self.found: list[Troubled] = []
        self.injected: Counter[str] = Counter()
        self.parted: Counter[tuple[str, Side]] = Counter()
        self.steps = 0

    def _from_list(self, passing: Passing) -> Fate | None:
        return self._listed.get(named(passing))

    def fate(self, passing: Passing) -> Fate:
        self.steps += 1
        if self.parted[passing.sender, passing.to]:
            self.injected["parted"] += 1
            return Fate(arrives=False)
        fate = self._draw(passing)
        if fate is not None:
            sender, to, kind, of_kind = named(passing)
            self.found.append(Troubled(sender=sender, to=to, kind=kind, of_kind=of_kind, fate=fate))
            self.injected.update(kinds(fate))
        there_s, back_s = delays(self._schedule.seed, self._schedule.delays_s, passing)
        fate = fate or Fate()
        return replace(fate, held_s=fate.held_s + there_s, answer_held_s=fate.answer_held_s + back_s)
