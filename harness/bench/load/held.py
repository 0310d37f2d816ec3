"""Two servers and many agents in a few processes, held for the rounds of one study."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from client_agent.site.events import METRICS, RoundEnd, RoundRecord, read_metrics
from client_agent.site.journal import StudyJournal
from harness.bench.load.agents import Played
from harness.bench.load.samples import Sample, Sampler
from harness.bench.round import ServersOnly
from harness.federation.forked import one_thread
from harness.federation.memory.learners import light_sites, light_study
from harness.federation.processes import FederationSpec
from protocol.errors import Unavailable
from protocol.wire.messages import RuleName, RuleSpec, Study

REQUESTER: Final = "requester"
_PROJECT: Final = Path(__file__).resolve().parents[3]
_ROUND_DEADLINE_S: Final = 3600.0
_LOOK_S: Final = 0.2
_STALLED_S: Final = 900.0
_END_WITHIN_S: Final = 120.0
_STOP_WITHIN_S: Final = 180.0
_ALL_STAY: Final = RuleSpec(name=RuleName.WEIGHT_EROSION, distance_penalty=1e-6, size_penalty=0.0)
"""Distances are opened in every round, and no weight erodes."""


class AgentProcess:
    """One process of several agents."""

    def __init__(self, folder: Path, sites: Sequence[str], environment: dict[str, str]) -> None:
        self._out = folder / f"played-{sites[0]}.json"
        self._log: IO[bytes] = (folder / f"agents-{sites[0]}.log").open("wb")
        self._process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-m", "harness.bench.load.agents", str(folder), str(self._out), *sites],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            cwd=_PROJECT,
            env=environment,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def check(self) -> None:
        """Raises: Unavailable, when it has ended by itself"""
        code = self._process.poll()
        if code is not None:
            raise Unavailable(f"a process of agents ended with exit code {code}; see {self._log.name}")

    def ask_to_end(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def played(self) -> Played:
        """Wait for its end. Raises: Unavailable"""
        if self._process.wait(_STOP_WITHIN_S) != 0:
            raise Unavailable(f"a process of agents failed; see {self._log.name}")
        return Played.model_validate_json(self._out.read_bytes())

    def kill(self) -> None:
        """Where it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._log.close()


@dataclass
class Held:
    """A running federation with its agents."""

    servers: ServersOnly
    agents: list[AgentProcess]
    sampler: Sampler

    def check(self) -> None:
        self.servers.check()
        for agent in self.agents:
            agent.check()

    def played(self) -> list[Played]:
        """Stop the agents and take what they did. Raises: Unavailable"""
        for agent in self.agents:
            agent.ask_to_end()
        return [agent.played() for agent in self.agents]


@contextmanager
def held_federation(folder: Path, sites: int, processes: int) -> Iterator[Held]:
    """The requester in a process of its own, so many contributors in so many others; all stopped in the end."""
    names = [f"site-{number}" for number in range(1, sites + 1)]
    spec = FederationSpec("load", REQUESTER, light_sites((REQUESTER, *names)), ports=(0, 0))
    environment = one_thread(dict(os.environ))
    agents: list[AgentProcess] = []
    with ServersOnly(spec, folder, forked=False) as servers:
        try:
            for part in ([REQUESTER], *(names[n::processes] for n in range(min(processes, sites)))):
                agents.append(AgentProcess(servers.folder, part, environment))
            requester, *contributors = (agent.pid for agent in agents)
            yield Held(servers, agents, Sampler(servers, requester, contributors))
        finally:
            for agent in agents:
                agent.kill()


def held_study(servers: ServersOnly, dimension: int, rounds: int) -> Study:
    """Nobody may be missing in any round, and distances are opened in every one."""
    study = light_study(servers.parties, "load", _ALL_STAY, rounds=rounds, dimension=dimension)
    return study.model_copy(update={"round_deadline_s": _ROUND_DEADLINE_S})


@dataclass(frozen=True)
class Rounds:
    """Every round as the requester noted it, and a sample before the first one and after each."""

    records: tuple[RoundRecord, ...]
    samples: tuple[Sample, ...]

    @property
    def released(self) -> int:
        return sum(record.state is RoundEnd.RELEASED for record in self.records)


def hold(held: Held, study: Study, tell: Callable[[str], None]) -> Rounds:
    """Hand the study in and look after every round, until all sites have ended it.

    Raises: Unavailable, when a process ends or no round does
    """
    metrics = StudyJournal(held.servers.state(REQUESTER), study.name).folder / METRICS
    samples = [held.sampler.sample(0)]
    held.servers.hand_in(study)
    seen, last = 0, time.monotonic()
    while not _over(held, study, REQUESTER):
        held.check()
        records = read_metrics(metrics)
        if len(records) > seen:
            seen, last = len(records), time.monotonic()
            samples.append(held.sampler.sample(records[-1].round))
            tell(f"round {records[-1].round}: {records[-1].state.value}, {samples[-1].seconds:.1f} s")
        if time.monotonic() - last > _STALLED_S:
            raise Unavailable(f"study {study.name!r}: no round ended in {_STALLED_S:g} s")
        time.sleep(_LOOK_S)
    _await_sites(held, study)
    records = read_metrics(metrics)
    if len(records) > seen:
        samples.append(held.sampler.sample(records[-1].round))
    return Rounds(records, tuple(samples))


def _await_sites(held: Held, study: Study) -> None:
    deadline = time.monotonic() + _END_WITHIN_S
    names = [site.name for site in held.servers.spec.sites]
    while late := [name for name in names if not _over(held, study, name)]:
        if time.monotonic() > deadline:
            raise Unavailable(f"{len(late)} sites have not ended the study {_END_WITHIN_S:g} s after the requester")
        time.sleep(_LOOK_S)


def _over(held: Held, study: Study, site: str) -> bool:
    state = StudyJournal(held.servers.state(site), study.name).site_state()
    return state is not None and state.over
