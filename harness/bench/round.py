"""One whole round over real processes: two servers, every contributor in a process of its own, a scripted requester.

The servers' CPU time is split at moments at which they have nothing to do: the round locks only with the small half of
the requester's contribution, is released only after the openings, and outputs are fetched once the correlations for
the next round are in stock. So ``distances`` holds one lock, sketch and product phase and one batch of correlations.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

from harness.bench import meter
from harness.bench.meter import BothServers, RoundBenchmark, ServerCpu, facts, scratch
from harness.bench.processes import ServersOnly
from harness.bench.round_parties import KEPT_OPEN, ContributorProcess, Played, ScriptedRequester
from harness.bench.synthetic import (
    Place,
    SyntheticAgent,
    largest_allowed_difference,
    parameters_for,
    plain_average,
    update_of,
)
from harness.federation.learners import light_sites, light_study
from harness.federation.processes import FederationSpec
from harness.warm import warm
from protocol.errors import ProtocolViolation
from protocol.messages.control import RuleName, RuleSpec, Study
from protocol.parameters import WORD_BITS, RingBits
from protocol.sharing import Side

_REQUESTER: Final = "requester"
_WARM_UP_VALUES: Final = 10**7
"""Parameters of all sites together."""
_WARM_UP_SITES: Final = 10
_ROUND_DEADLINE_S: Final = 4 * 3600.0
_MASKED_SUM: Final = "masked_sum"


@dataclass
class _Phases:
    servers: ServersOnly
    seconds: dict[str, float] = field(default_factory=dict)
    cpu_ns: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        begun, used = time.perf_counter(), self.servers.cpu_ns()
        yield
        self.seconds[name] = time.perf_counter() - begun
        self.cpu_ns[name] = self.servers.cpu_ns() - used


@dataclass(frozen=True)
class _Round:
    phases: _Phases
    contributed: Played
    opened: Played
    difference: float


def benchmark_round(
    dimension: int, sites: int, folder: Path | None = None, *, tags: bool = False, ring_bits: RingBits = WORD_BITS
) -> RoundBenchmark:
    """Start everything, warm up on a smaller model, measure one round, with or without tags, stop everything.

    Raises: ProtocolViolation, when the opened average is not numpy's
    """
    warm()
    with scratch(folder) as place, ServersOnly(_spec(sites), place, forked=False) as servers:
        contributors = ContributorProcess(place)
        try:
            return _measured(servers, contributors, place, _Size(dimension, sites, tags, ring_bits))
        finally:
            contributors.close()


@dataclass(frozen=True)
class _Size:
    dimension: int
    sites: int
    tags: bool
    ring_bits: RingBits

    @property
    def options(self) -> str:
        """The command's options besides the size."""
        ring = "" if self.ring_bits == WORD_BITS else " --ring-48"
        return f"{' --tags' if self.tags else ''}{ring}"

    @property
    def smaller(self) -> _Size:
        """The round to warm up with."""
        sites = self.sites if self.sites < KEPT_OPEN else _WARM_UP_SITES  # connections and sessions that are kept
        return replace(self, dimension=min(self.dimension, _WARM_UP_VALUES // sites), sites=sites)


def _measured(servers: ServersOnly, contributors: ContributorProcess, place: Path, size: _Size) -> RoundBenchmark:
    where = Place(place)
    agent = SyntheticAgent(where, where.roster(), _REQUESTER)
    try:
        _play(servers, contributors, _study(servers, agent, "warm-up", size.smaller))
        requester = _study(servers, agent, "measured", size)
        meter.wait_until_idle(servers.pids)
        idle = BothServers(**{side.value: meter.resident_mb(servers.pid(side)) for side in Side})
        idle_agent = meter.resident_mb(contributors.pid)
        for pid in (*servers.pids, contributors.pid):
            meter.reset_peak(pid)
        before = _sent_between(servers)
        done = _play(servers, contributors, requester)
        sums, others = (after - before for after, before in zip(_sent_between(servers), before, strict=True))
    finally:
        agent.close()
    plain = plain_average(list(range(size.sites + 1)), requester.study.parameters).cpu_ns
    dimension, sites, cpu = size.dimension, size.sites, done.phases.cpu_ns
    per_agent, per_round = sites * dimension, (sites + 1) * dimension
    return RoundBenchmark(
        **facts(f"round --parameters {dimension} --sites {sites}{size.options}"),
        parameters=dimension,
        sites=sites,
        tags=size.tags,
        ring_bits=size.ring_bits,
        seconds=sum(done.phases.seconds.values()),
        seconds_by_phase=done.phases.seconds,
        bytes_up_per_parameter=(done.contributed.sent_bytes + done.opened.sent_bytes) / per_agent,
        bytes_down_per_parameter=(done.contributed.received_bytes + done.opened.received_bytes) / per_agent,
        bytes_between_servers_per_contributor=others / sites,
        bytes_between_servers_per_parameter=sums / dimension,
        server_peak_rss_mb=BothServers(**{side.value: meter.peak_mb(servers.pid(side)) for side in Side}),
        server_idle_rss_mb=idle,
        agent_peak_rss_mb=meter.peak_mb(contributors.pid),
        agent_idle_rss_mb=idle_agent,
        cpu_ns_per_parameter_contributor=ServerCpu(
            distances=(cpu["distances"] + cpu["correlations"]) / per_round,
            sum=cpu["sum"] / per_round,
            ingest=(cpu["announcing"] + cpu["contributing"]) / per_round,
            output=cpu["output"] / per_agent,
            tags=cpu.get("tags", 0) / per_round,
        ),
        agent_cpu_ns_per_parameter=(done.contributed.cpu_ns + done.opened.cpu_ns) / per_agent,
        plain_fedavg_cpu_ns_per_parameter=plain / dimension,
        upload_gb_per_s=done.contributed.sealed_bytes / done.contributed.upload_s / 1e9,
        max_abs_difference_to_plain=done.difference,
    )


def _play(servers: ServersOnly, contributors: ContributorProcess, requester: ScriptedRequester) -> _Round:
    """The study's first round, from the announcement to the opened sums."""
    study, phases = requester.study, _Phases(servers)
    own = update_of(0, study.parameters.dimension)
    meter.wait_until_idle(servers.pids)
    with phases.phase("announcing"):
        announcement, weights = requester.announce(1)
        record = requester.prepare(announcement, weights, own)
    del own
    with phases.phase("contributing"):
        contributed = contributors.contribute(study, announcement, weights)
        requester.send_half(record, vector=True)
    phases.seconds["contributing"] -= contributed.making_s
    with phases.phase("distances"):
        requester.send_half(record, vector=False)
        agreed = requester.measure(announcement)
    with phases.phase("sum"):
        past = requester.release(announcement, weights, agreed)
    if study.tags:
        with phases.phase("tags"):
            past = requester.go(past)
    with phases.phase("correlations"):
        meter.wait_until_idle(servers.pids)
    del phases.seconds["correlations"]  # in the background of whatever the sites do next
    with phases.phase("output"):
        opened = contributors.open(study, past)
    difference = _difference(requester, requester.average(past))
    requester.agent.tidy(study)
    return _Round(phases, contributed, opened, difference)


def _difference(requester: ScriptedRequester, average: np.ndarray[tuple[int], np.dtype[np.float32]]) -> float:
    """Largest coordinate difference between the opened average and numpy's.

    Raises: ProtocolViolation, when it is more than rounding explains
    """
    parameters = requester.study.parameters
    places = list(range(len(requester.listed) + 1))
    plain = plain_average(places, parameters).average
    np.subtract(plain, average, out=plain)
    found = float(max(np.max(plain), -np.min(plain)))
    allowed = largest_allowed_difference(places, parameters)
    if found > allowed:
        raise ProtocolViolation(f"benchmark: the opened average is off by {found:g}, rounding explains {allowed:g}")
    return found


def _study(servers: ServersOnly, agent: SyntheticAgent, name: str, size: _Size) -> ScriptedRequester:
    parameters = parameters_for(size.dimension, size.sites + 1).model_copy(update={"ring_bits": size.ring_bits})
    rule = RuleSpec(name=RuleName.WEIGHT_EROSION)
    study = light_study(servers.parties, name, rule, rounds=1, dimension=size.dimension)
    changes = {"parameters": parameters, "round_deadline_s": _ROUND_DEADLINE_S, "tags": size.tags}
    requester = ScriptedRequester(agent, Study.model_validate(dict(study) | changes), size.sites)
    requester.create()
    return requester


def _sent_between(servers: ServersOnly) -> tuple[int, int]:
    """Bytes in both directions since the start: of masked sums, and of everything else."""
    sent = servers.samples(Side.A, "moiety_peer_bytes_total")
    sums = sum(int(one.value) for one in sent if one.labels["kind"] == _MASKED_SUM)
    return sums, sum(int(one.value) for one in sent) - sums


def _spec(sites: int) -> FederationSpec:
    names = (_REQUESTER, *(f"site-{number}" for number in range(1, sites + 1)))
    return FederationSpec("bench", _REQUESTER, light_sites(names), ports=(0, 0))
