"""``moiety lab bench latency``: seconds from lock to release, and the network round trips that a round waits for.

The seconds are those of real processes; server A measures from both signatures under the agreed set to the released
sum, with the requester's queries, opening and release set in between. Round trips are counted in one process, on a
clock that stands still while anybody works (``harness/federation/in_memory_federation.py``).

Two servers and one contributor's agent as processes on loopback, TLS included. The studies were created and ended
before the agent starts; once it has heard of them, its ledger is read at both ends of a window, and the window's
exchanges are repeated for a day into a ledger of their own, whose files are measured.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Final

import httpx
import numpy as np

from client_agent.learning.data import Examples, LocalData
from client_agent.learning.models import dimension, model_spec
from client_agent.net.ledger import Ledger, LedgerEntry, read_ledger
from client_agent.net.server_client import ServerClient
from client_agent.net.transport import CountingTransport, tls_context
from client_agent.site.events import AgentEvent, EventKind
from harness.bench.meter import Benchmark, Figures, facts, scratch
from harness.bench.processes import ServersOnly
from harness.federation.federated_run import measure, run_study
from harness.federation.in_memory_federation import InMemoryFederation
from harness.federation.learners import EROSION, light_learner, light_sites, light_study
from harness.federation.network import Fate, Passing
from harness.federation.processes import FederationSpec, RunningFederation, SiteSpec
from harness.warm import warm
from protocol.errors import Unavailable
from protocol.messages.control import (
    EndCause,
    RuleName,
    RuleSpec,
    Study,
    StudyEnd,
    StudyEndState,
    TrainingSpec,
    sign,
)
from protocol.parameters import StudyParameters
from protocol.policy.site_policy import SitePolicy
from protocol.sharing import Side

_SITES: Final = ("requester", "c1", "c2", "c3", "c4")
_PARAMETERS: Final = 62
_DELAYED_ROUNDS: Final = 6
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


class DelayedRounds(Figures):
    """Mean waiting time of a rule's rounds over one delay, the first round left out.

    ``round_trips``: that time over the delay, less what the same rounds wait without one; None without a delay.
    """

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
    with scratch() as folder, _Timed(spec, folder, round_trip_s) as run:
        study = light_study(run.parties, "latency", rule, rounds=_DELAYED_ROUNDS, dimension=_PARAMETERS)
        run.start()
        run.hand_in(study)
        if not run.comes(lambda: run.ended, 3600.0) or len(run.over_s) < _DELAYED_ROUNDS:
            raise Unavailable(f"benchmark: the study has ended after {len(run.over_s)} of {_DELAYED_ROUNDS} rounds")
        over_s = run.over_s[:_DELAYED_ROUNDS]
        run.delayed.over = True
        run.comes(lambda: False, _SETTLED_S)  # nothing is on its way any more when agents are stopped
    return (over_s[-1] - over_s[0]) / (len(over_s) - 1)


CONTRIBUTORS: Final = 10
_INPUTS: Final = 9
_ROWS: Final = 64
_ROUNDS: Final = 10
_MODEL: Final = model_spec("linear", (_INPUTS,), (), 2)


class LatencyBenchmark(Benchmark):
    """Means over a study's rounds, real processes on one machine; ``lock_to_release_s`` is server A's own measure.

    ``delayed``: what rounds wait for where the network takes its time.
    """

    TITLE: ClassVar[str] = "What a round waits for"
    KIND: ClassVar[str] = "latency"
    contributors: int
    parameters: int
    released_rounds: int
    lock_to_release_s: float | None
    whole_round_s: float
    between_servers_bytes_per_contributor: float
    delayed: tuple[DelayedRounds, ...]


def benchmark_latency(delays_ms: Sequence[float]) -> LatencyBenchmark:
    """Run it, after a warm-up of the kernels; then studies in one process over each delay."""
    warm()
    with scratch() as folder, RunningFederation(_federation(CONTRIBUTORS), folder) as federation:
        study = _study(federation.parties.roster.message.digest(), "benchmark", _ROUNDS)
        run = run_study(federation, study, lambda progress: None)
        traffic = measure(federation, [run.history], dimension(_MODEL))
    later = run.round_seconds[1:]
    return LatencyBenchmark(
        **facts(f"latency --delays {','.join(f'{one:g}' for one in delays_ms)}"),
        contributors=CONTRIBUTORS,
        parameters=traffic.parameters,
        released_rounds=run.history.shared_rounds,
        lock_to_release_s=traffic.lock_to_release_s,
        whole_round_s=sum(later) / len(later),
        between_servers_bytes_per_contributor=traffic.between_servers_per_contributor_round,
        delayed=delayed_rounds(delays_ms),
    )


def _federation(contributors: int) -> FederationSpec:
    """A requester and so many sites, on made-up data, with seeded draws."""
    names = ("requester", *(f"site-{number}" for number in range(1, contributors + 1)))
    return FederationSpec("benchmark", "requester", tuple(_site(name, n) for n, name in enumerate(names)), seed=0)


def _study(roster_digest: str, name: str, rounds: int) -> Study:
    """Weight Erosion of a linear model."""
    return Study(
        name=name,
        roster_digest=roster_digest,
        parameters=StudyParameters(dimension=dimension(_MODEL), clip_norm=4.0, least_contributors=3),
        rule=RuleSpec(name=RuleName.WEIGHT_EROSION),
        model=_MODEL,
        training=TrainingSpec(batch_size=16),
        rounds=rounds,
        seed=0,
    )


def _site(name: str, number: int) -> SiteSpec:
    """Two blurred classes, the same at every site but for a shift."""
    rng = np.random.default_rng([number, _ROWS])
    y = rng.integers(0, 2, size=_ROWS)
    X = (rng.normal(size=(_ROWS, _INPUTS)) + y[:, None] + 0.1 * number).astype(np.float32)
    part = Examples(X, y.astype(np.int64))
    return SiteSpec(name, LocalData(part, part))


DAY_S: Final = 86400.0
_CONTRIBUTORS: Final = 3
_AGENT: Final = "site-1"
_IDLE_SETTLED_S: Final = 25.0
_MIDNIGHT_S: Final = 1_800_000_000.0


class IdleBenchmark(Benchmark):
    """Bytes are those at the socket, TLS included; ``ledger_bytes_per_day`` is what a day leaves on the disk."""

    TITLE: ClassVar[str] = "An agent without a study"
    past_studies: int
    seconds: float
    requests_per_day: float
    bytes_up_per_day: float
    bytes_down_per_day: float
    ledger_bytes_per_day: float
    requests_by_purpose: dict[str, int]


def benchmark_idle(past_studies: int, seconds: float, folder: Path | None = None) -> IdleBenchmark:
    """Count for so many seconds. Raises: Unavailable, when a process ends"""
    with scratch(folder) as place:
        with ServersOnly(_federation(_CONTRIBUTORS), place / "idle") as federation:
            _create_and_end(federation, past_studies)
            federation.start_agent(_AGENT)
            time.sleep(_IDLE_SETTLED_S)
            window = _window(federation.ledger(_AGENT), seconds)
        noted_bytes = a_day_on_disk(window, seconds, place / "day")
    return summary(window, past_studies, seconds, noted_bytes)


def summary(
    window: Sequence[LedgerEntry], past_studies: int, seconds: float, ledger_bytes_per_day: float
) -> IdleBenchmark:
    """The window's exchanges, as many a day as there would be."""
    days = seconds / DAY_S
    return IdleBenchmark(
        **facts(f"idle --past-studies {past_studies} --seconds {seconds:g}"),
        past_studies=past_studies,
        seconds=seconds,
        requests_per_day=sum(entry.count for entry in window) / days,
        bytes_up_per_day=sum(entry.socket_sent_bytes for entry in window) / days,
        bytes_down_per_day=sum(entry.socket_received_bytes for entry in window) / days,
        ledger_bytes_per_day=ledger_bytes_per_day,
        requests_by_purpose=dict(Counter(entry.purpose for entry in window)),
    )


def a_day_on_disk(window: Sequence[LedgerEntry], seconds: float, folder: Path) -> float:
    """Bytes of a ledger's files after a day of such windows, from one midnight to the next."""
    folder.mkdir(parents=True)
    ledger = Ledger(folder / "ledger.jsonl")
    for number in range(int(DAY_S / seconds)):
        for place, entry in enumerate(window):
            at_s = _MIDNIGHT_S + seconds * (number + place / len(window))
            ledger.append(entry.model_copy(update={"time_s": at_s}))
    ledger.close()
    return float(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()))


def _window(ledger: Path, seconds: float) -> list[LedgerEntry]:
    before = len(read_ledger(ledger))
    time.sleep(seconds)
    return list(read_ledger(ledger)[before:])


def _create_and_end(federation: RunningFederation, count: int) -> None:
    """So many studies at both servers, over before anybody joined."""
    roster = federation.parties.roster.message
    keys = federation.parties.keys_of(roster.requester)
    ledger = Ledger(federation.folder / "requester.jsonl")
    context = tls_context(federation.ca_file)
    for side in Side:
        operator = roster.operator(side)
        client = ServerClient(side, operator, keys, CountingTransport(operator.name, context, ledger))
        for number in range(count):
            study = _study(roster.digest(), f"past-{number:03d}", 3)
            end = StudyEnd(
                study_digest=study.digest(),
                state=StudyEndState.COMPLETED,
                cause=EndCause.ALL_ROUNDS_DONE,
                reason="done",
            )
            client.create_study(sign(study, keys.name, keys.signing))
            client.end(study.name, sign(end, keys.name, keys.signing))
        client.close()
    ledger.close()
