"""How many network round trips a round takes, counted: whole studies over a network that holds everything back.

Agents and servers are the real ones, in one process, on a clock that stands still while any of them works
(``harness/federation/memory``). So the time of a round is what it waits for: the network, and timers of its own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import httpx
from pydantic import BaseModel, ConfigDict

from client_agent.site.events import AgentEvent, EventKind
from harness.federation.memory.federation import InMemoryFederation
from harness.federation.memory.learners import EROSION, light_learner, light_sites, light_study
from harness.federation.memory.network import Fate, Passing
from harness.federation.processes import FederationSpec
from protocol.errors import Unavailable
from protocol.policy.site_policy import SitePolicy
from protocol.wire.messages import RuleName, RuleSpec

_SITES: Final = ("requester", "c1", "c2", "c3", "c4")
_PARAMETERS: Final = 62
_ROUNDS: Final = 6
_MEASURED: Final = EROSION
_SUMMED: Final = RuleSpec(name=RuleName.FEDAVG)
_PAIR: Final = 2
_SETTLED_S: Final = 60.0


class Delayed:
    """Every request and answer, between the servers too, takes half of ``round_trip_s`` on its way; until over."""

    def __init__(self, round_trip_s: float) -> None:
        self._one_way_s = round_trip_s / _PAIR
        self.over = False

    def fate(self, passing: Passing) -> Fate:
        return Fate() if self.over else Fate(held_s=self._one_way_s, answer_held_s=self._one_way_s)

    def arrived(self, passing: Passing, after_s: float, answer: httpx.Response) -> None:
        """Nothing to remember."""


class _Timed(InMemoryFederation):
    """Notes when each round is over at the requester."""

    def __init__(self, spec: FederationSpec, folder: Path, round_trip_s: float) -> None:
        self.over_s: list[float] = []
        self.ended = False
        self.delayed = Delayed(round_trip_s)
        super().__init__(spec, folder, light_learner, network=self.delayed)

    def _emit(self, event: AgentEvent) -> None:
        if event.site == self.spec.requester:
            if event.kind is EventKind.ROUND:
                self.over_s.append(self.clock.monotonic())
            self.ended = self.ended or event.kind is EventKind.FINISHED
        super()._emit(event)


class DelayedRounds(BaseModel):
    """Of one rule, over one delay: the mean of all rounds after the first, as long as they wait.

    ``round_trips``: that time over the delay, less what the same rounds wait without one; None without a delay.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    rule: str
    delay_ms: float
    waited_s: float
    round_trips: float | None


def delayed_rounds(delays_ms: Sequence[float]) -> tuple[DelayedRounds, ...]:
    """A rule that has distances opened, and one that only sums, over each delay."""
    found = []
    for rule in (_MEASURED, _SUMMED):
        still_s = _waited_s(rule, 0.0)
        for delay_ms in delays_ms:
            waited_s = still_s if not delay_ms else _waited_s(rule, delay_ms / 1e3)
            trips = (waited_s - still_s) / (delay_ms / 1e3) if delay_ms else None
            found.append(DelayedRounds(rule=rule.name.value, delay_ms=delay_ms, waited_s=waited_s, round_trips=trips))
    return tuple(found)


def _waited_s(rule: RuleSpec, round_trip_s: float) -> float:
    """Raises: Unavailable, when the study does not end"""
    policy = SitePolicy(least_isolation=0.0, least_contributors=len(_SITES) - 1)
    spec = FederationSpec("latency", _SITES[0], light_sites(_SITES, policy), seed=0)
    with (
        tempfile.TemporaryDirectory(prefix="moiety-bench-") as folder,
        _Timed(spec, Path(folder), round_trip_s) as run,
    ):
        study = light_study(run.parties, "latency", rule, rounds=_ROUNDS, dimension=_PARAMETERS)
        run.start()
        run.hand_in(study)
        if not run.comes(lambda: run.ended, 3600.0) or len(run.over_s) < _ROUNDS:
            raise Unavailable(f"benchmark: the study has ended after {len(run.over_s)} of {_ROUNDS} rounds")
        over_s = run.over_s[:_ROUNDS]
        run.delayed.over = True
        run.comes(lambda: False, _SETTLED_S)  # nothing is on its way any more when agents are stopped
    return (over_s[-1] - over_s[0]) / (len(over_s) - 1)
