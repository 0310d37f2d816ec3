"""``moiety lab bench load``: many sites' agents in a few processes, held for the rounds of one study."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, Final

import numpy as np
import pandas as pd
from pydantic import Field

from client_agent.site.events import RoundEnd, RoundRecord
from harness.bench import meter
from harness.bench.load_agents import CallTimes, Played, called
from harness.bench.meter import Benchmark, Figures, facts, figures_table, scratch
from harness.bench.processes import ServersOnly
from harness.engine.parties import OPERATOR_NAMES
from harness.federation.federated_run import follow_study
from harness.federation.learners import light_sites, light_study
from harness.federation.processes import FederationSpec, Running, own_environment, spawn_module
from harness.warm import warm
from protocol.errors import Unavailable
from protocol.messages.control import RuleName, RuleSpec, Study
from protocol.sharing import Side
from servers.store.tables import METADATA

REQUESTER: Final = "requester"
_DATABASE: Final = "server.db"
_ROUND_DEADLINE_S: Final = 3600.0
_STALLED_S: Final = 900.0
_STOP_WITHIN_S: Final = 180.0
_ALL_STAY: Final = RuleSpec(name=RuleName.WEIGHT_EROSION, distance_penalty=1e-6, size_penalty=0.0)
"""Distances are opened in every round, and no weight erodes."""


class Sample(Figures):
    """Both servers together, but for ``resident_mb`` and ``open_files``, which are the larger one's.

    ``seconds``: since the first sample. ``database_bytes``: with its log. ``file_bytes``: everything else in
    ``data_dir``. ``process_log_bytes``: what both wrote to their standard output. ``agents_cpu_ns`` is the
    contributors'; memory and files of agents are the requester's too.
    """

    round: int
    seconds: float
    cpu_ns: int
    resident_mb: float
    open_files: int
    database_bytes: int
    file_bytes: int
    files: int
    process_log_bytes: int
    agents_cpu_ns: int
    agents_resident_mb: float
    agents_bytes: int


class LoadBenchmark(Benchmark):
    """Many sites in one study. CPU and memory are the servers' unless they say whose.

    CPU and growth are counted from the end of the first round on. ``errors``: failed calls by kind, complaints of
    agents, rounds without a sum. ``refusals``: requests that servers refused, by code, whether or not that is how it
    should be.
    """

    TITLE: ClassVar[str] = "Held: {sites} sites, {parameters:,} parameters, {rounds} rounds"
    KIND: ClassVar[str] = "load"
    parameters: int
    sites: int
    rounds: int
    processes: int
    machine_load: float
    released: int
    errors: dict[str, int]
    refusals: dict[str, int]
    seconds: float
    round_seconds: tuple[float, ...] = Field(repr=False)
    calls: tuple[CallTimes, ...]
    server_cpu_ms_per_site_round: float
    agent_cpu_ms_per_site_round: float
    server_idle_mb: float
    server_peak_mb: float
    server_mb_per_site: float
    open_files_most: int
    database_bytes_per_site_round: float
    file_bytes_at_end: int
    samples: tuple[Sample, ...] = Field(repr=False)
    rows: dict[str, int]

    def section(self) -> str:
        """With what grows, where there are enough rounds to say so."""
        grown = f"\n{figures_table(slopes(self.samples))}" if self.rounds >= _ENOUGH_ROUNDS else ""
        return super().section() + grown


class Held(ServersOnly):
    """Both servers, the requester's agent in a process of its own, so many contributors' in so many others."""

    def __init__(self, folder: Path, sites: int, processes: int) -> None:
        names = [f"site-{number}" for number in range(1, sites + 1)]
        parts = {f"agents-{n + 1}": names[n::processes] for n in range(min(processes, sites))}
        self.agents: dict[str, list[str]] = {REQUESTER: [REQUESTER], **parts}
        spec = FederationSpec("load", REQUESTER, light_sites((REQUESTER, *names)), ports=(0, 0))
        super().__init__(spec, folder, forked=False)

    def start(self) -> None:
        super().start()
        for name, sites in self.agents.items():
            log = self.folder / f"{name}.log"
            arguments = [str(self.folder), str(self._played_at(name)), *sites]
            process = spawn_module("harness.bench.load_agents", arguments, log, own_environment())
            self.running[name] = Running(name, process, log)
        self.begun_s = time.monotonic()

    def _played_at(self, name: str) -> Path:
        return self.folder / f"played-{name}.json"

    def played(self) -> list[Played]:
        """End the agents and read what they did. Raises: Unavailable, when a process does not end well"""
        ending = [self.running[name] for name in self.agents]
        for one in ending:
            one.process.send_signal(signal.SIGTERM)
        for one in ending:
            with suppress(subprocess.TimeoutExpired):
                one.process.wait(_STOP_WITHIN_S)
            if one.process.poll() != 0:
                raise Unavailable(f"{one.name} has not ended well in {_STOP_WITHIN_S:g} s: {one.tail()}")
        return [Played.model_validate_json(self._played_at(name).read_bytes()) for name in self.agents]

    @property
    def data(self) -> list[Path]:
        return [self.folder / name / "data" for name in OPERATOR_NAMES.values()]

    @property
    def logs(self) -> list[Path]:
        """Files with the standard output of both servers."""
        return [self.running[name].log for name in OPERATOR_NAMES.values()]

    def sample(self, number: int) -> Sample:
        """After the round of that number."""
        stored = [(path.name.startswith(_DATABASE), size) for folder in self.data for path, size in _sizes(folder)]
        files = [size for of_database, size in stored if not of_database]
        pids = {name: self.running[name].pid for name in self.agents}
        return Sample(
            round=number,
            seconds=time.monotonic() - self.begun_s,
            cpu_ns=self.cpu_ns(),
            resident_mb=max(map(meter.resident_mb, self.pids)),
            open_files=max(len(os.listdir(f"/proc/{pid}/fd")) for pid in self.pids),
            database_bytes=sum(size for of_database, size in stored if of_database),
            file_bytes=sum(files),
            files=len(files),
            process_log_bytes=sum(log.stat().st_size for log in self.logs),
            agents_cpu_ns=sum(meter.cpu_ns(pid) for name, pid in pids.items() if name != REQUESTER),
            agents_resident_mb=sum(map(meter.resident_mb, pids.values())),
            agents_bytes=sum(size for site in self.spec.sites for _, size in _sizes(self.state(site.name))),
        )

    def rows(self) -> dict[str, int]:
        """Rows of every table, of both servers together."""
        counted: Counter[str] = Counter()
        for folder in self.data:
            with closing(sqlite3.connect(f"file:{folder / _DATABASE}?mode=ro", uri=True)) as connection:
                for name in METADATA.tables:
                    found = connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()  # noqa: S608 - own names
                    counted[name] += int(found[0])
        return dict(counted)

    def refusals(self) -> dict[str, int]:
        """Requests that the servers refused so far, by code."""
        counted: Counter[str] = Counter()
        for side in Side:
            counted.update({one.labels["code"]: int(one.value) for one in self.samples(side, "moiety_refusals_total")})
        return {code: count for code, count in counted.items() if count}

    def internal_errors(self) -> int:
        """Count both servers' internal errors in their logs."""
        return sum(log.read_text(encoding="utf-8", errors="replace").count("internal error") for log in self.logs)


def _sizes(folder: Path) -> Iterator[tuple[Path, int]]:
    """Every file below a folder in which others write and delete."""
    for place, _, names in os.walk(folder):
        for path in (Path(place, name) for name in names):
            try:
                yield path, path.stat().st_size
            except FileNotFoundError:
                continue


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
    """Hand the study in and look after every round, until all sites have ended it. Raises: as ``follow_study``"""
    samples = [held.sample(0)]

    def show(records: tuple[RoundRecord, ...]) -> None:
        if records and records[-1].round > samples[-1].round:
            samples.append(held.sample(records[-1].round))
            tell(f"round {records[-1].round}: {records[-1].state.value}, {samples[-1].seconds:.1f} s")

    return Rounds(follow_study(held, study, show, _STALLED_S), tuple(samples))


def benchmark_load(
    dimension: int, sites: int, rounds: int, processes: int, tell: Callable[[str], None], folder: Path | None = None
) -> LoadBenchmark:
    """Start everything, hold it for so many rounds, stop everything.

    CPU and growth are of all rounds but the first, where there are enough: in it sites greet, connect and read the
    study. Raises: Unavailable, when a process ends or no round does
    """
    warm()
    with scratch(folder) as place, Held(place, sites, processes) as held:
        meter.wait_until_idle(held.pids)
        idle_mb = max(map(meter.resident_mb, held.pids))
        done = hold(held, held_study(held, dimension, rounds), tell)
        peak_mb, load = max(map(meter.peak_mb, held.pids)), os.getloadavg()[1]
        rows, refusals, played, internal = held.rows(), held.refusals(), held.played(), held.internal_errors()
    first, last = done.samples[1 if len(done.samples) > 2 else 0], done.samples[-1]
    site_rounds = sites * max(1, last.round - first.round)
    return LoadBenchmark(
        **facts(f"load --sites {sites} --parameters {dimension} --rounds {rounds} --processes {processes}"),
        parameters=dimension,
        sites=sites,
        rounds=rounds,
        processes=processes,
        machine_load=load,
        released=done.released,
        errors=found_errors(done, played, internal),
        refusals=refusals,
        seconds=last.seconds,
        round_seconds=tuple(round(b.seconds - a.seconds, 3) for a, b in pairwise(done.samples)),
        calls=called([one.milliseconds for one in played]),
        server_cpu_ms_per_site_round=(last.cpu_ns - first.cpu_ns) / 1e6 / site_rounds,
        agent_cpu_ms_per_site_round=(last.agents_cpu_ns - first.agents_cpu_ns) / 1e6 / site_rounds,
        server_idle_mb=idle_mb,
        server_peak_mb=peak_mb,
        server_mb_per_site=(peak_mb - idle_mb) / sites,
        open_files_most=max(sample.open_files for sample in done.samples),
        database_bytes_per_site_round=(last.database_bytes - first.database_bytes) / site_rounds,
        file_bytes_at_end=last.file_bytes,
        samples=done.samples,
        rows=rows,
    )


def found_errors(done: Rounds, played: Sequence[Played], internal: int) -> dict[str, int]:
    """Failed calls, complaints, rounds without a sum, and what servers logged as their own error."""
    found: Counter[str] = Counter()
    for one in played:
        found.update(one.failed)
        found.update(problem.partition(": ")[2] or problem for problem in one.problems)
    found["rounds without a sum"] = len(done.records) - done.released
    found["internal errors of servers"] = internal
    return {what: count for what, count in found.items() if count}


# --- what grows from round to round ---

_ENOUGH_ROUNDS: Final = 20
"""Fewest rounds through which straight lines are drawn."""
_SETTLED: Final = 0.2
"""Share of the rounds left out of slopes: in the first ones kernels are loaded and pools are filled."""
_NONCES_S: Final = 660.0
"""Nonces of requests are kept for so long; before, the databases grow by them too."""
_END: Final = 0.1


class Slope(Figures):
    """A straight line through what was measured after every round.

    ``first`` and ``last``: medians of the first and the last tenth of the rounds that count.
    """

    what: str
    per_round: float
    first: float
    last: float


def slopes(samples: Sequence[Sample]) -> tuple[Slope, ...]:
    """Fit a line to every figure, and to what time and CPU each round takes, without the first fifth of the rounds.

    Where the study takes twice as long as nonces are kept, the rounds before the first nonce expires are left out too.
    The last sample is taken after the study's end.
    """
    table = pd.DataFrame([dict(one) for one in samples]).set_index("round")
    whole_s = table["seconds"].iloc[-1]
    begins_s = _NONCES_S if whole_s > 2 * _NONCES_S else 0.0
    counted = table[(table.index > _SETTLED * table.index[-1]) & (table["seconds"] > begins_s)]
    counted = counted.iloc[:-1] if len(counted) > 2 else counted
    steps = counted[["seconds", "cpu_ns"]].diff().div(counted.index.diff(), axis="index").iloc[1:]
    grown = counted.drop(columns=["seconds", "cpu_ns", "agents_cpu_ns"])
    series = [*grown.items(), *steps.add_suffix(" of a round").items()]
    return tuple(_slope(str(name).replace("_", " "), values) for name, values in series)


def _slope(what: str, values: pd.Series[float]) -> Slope:
    """Least squares; medians of both ends."""
    some = max(1, round(_END * len(values)))
    per_round = np.polyfit(values.index, values, 1)[0] if len(values) > 1 else 0.0
    first, last = values.iloc[:some].median(), values.iloc[-some:].median()
    return Slope(what=what, per_round=float(per_round), first=float(first), last=float(last))
