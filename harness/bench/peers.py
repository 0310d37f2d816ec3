"""``moiety lab bench peers``: whole rounds of several systems, one after the other, in one sitting on one machine.

Ours runs with real agents: two servers, an agent for the requester and for each client, over HTTPS.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from subprocess import SubprocessError
from typing import ClassVar, Final

import numpy as np
from pydantic import Field

from client_agent.learning.data import Examples, LocalData
from client_agent.learning.models import dimension, model_spec
from client_agent.net.ledger import read_ledger
from client_agent.site.events import RoundRecord
from harness.bench.meter import Benchmark, Between, Figures, Gauge, between, facts, figures_table, scratch
from harness.bench.peer_systems import FLOWER, NVFLARE, TENSEAL, Asked, flower_rounds, nvflare_rounds
from harness.bench.synthetic import parameters_for
from harness.engine.parties import OPERATOR_NAMES
from harness.federation.federated_run import run_study
from harness.federation.processes import FederationSpec, RunningFederation, SiteSpec
from protocol.errors import ConfigurationError, MoietyError
from protocol.messages.control import ModelSpec, RuleName, RuleSpec, Study, TrainingSpec
from protocol.sharing import Side

_REQUESTER: Final = "requester"
_CLASSES: Final = 2


class WholeRounds(Figures):
    """Whole rounds of one system over real processes; of a system that did not run, ``error`` says why.

    CPU seconds are of all processes of either group, per round. Bytes are per parameter and client, at the clients'
    sockets, and between the servers where there are two. Memory is the largest sum of resident sets.
    """

    name: str
    version: str | None
    how: str = Field(repr=False)
    protected: str = Field(repr=False)
    error: str | None = Field(default=None, repr=False)
    rounds: int = 0
    seconds: float | None = None
    server_cpu_s: float | None = None
    client_cpu_s: float | None = None
    bytes_up_per_parameter: float | None = None
    bytes_down_per_parameter: float | None = None
    bytes_between_servers_per_parameter: float | None = None
    server_peak_mb: float | None = None
    client_peak_mb: float | None = None


class PeersBenchmark(Benchmark):
    TITLE: ClassVar[str] = "Whole rounds of other systems: {parameters:,} parameters, {sites} clients, {date:.10}"
    KIND: ClassVar[str] = "peers"
    parameters: int
    sites: int
    rounds: tuple[WholeRounds, ...] = Field(repr=False)

    def section(self) -> str:
        """A row for each system that ran; below it what protects whom, or why it did not run."""
        measured = [one for one in self.rounds if one.error is None]
        told = [f"- {one.name}: {one.how}. Protected: {one.protected}." for one in measured]
        told += [f"- {one.name}: not measured: {one.error}" for one in self.rounds if one.error is not None]
        shown = [figures_table(measured)] if measured else []
        return "\n".join([super().section(), *shown, *told, ""])


def our_rounds(asked: Asked, folder: Path) -> tuple[Between, float]:
    """Weight Erosion: distances opened to the requester, weights by them. With it bytes between the servers per round.

    One round more is run than is measured, so that the last measured one ends as another one begins.
    Raises: Unavailable; ConfigurationError for a number of parameters that is odd
    """
    spec, model = _spec(asked), _model(asked.parameters)
    ends: list[tuple[float, float]] = []
    with RunningFederation(spec, folder / "moiety", forked=False) as federation:
        ids = federation.process_ids
        operators = [ids[OPERATOR_NAMES[side]] for side in Side]
        agents = [ids[site.name] for site in spec.sites]
        sent: list[float] = []

        def show(records: tuple[RoundRecord, ...]) -> None:
            while len(ends) < len(records):
                ends.append((time.monotonic(), time.time()))
                sent.append(sum(one.value for one in federation.samples(Side.A, "moiety_peer_bytes_total")))

        with Gauge(operators, agents) as gauge:
            run_study(federation, _study(federation, model, asked), show)
        first, last = 0, asked.rounds
        up, down = _at_sockets(federation, spec, ends[first][1], ends[last][1])
    measured = between(gauge.readings, ends[first][0], ends[last][0])
    return replace(measured, up_bytes=up, down_bytes=down), (sent[last] - sent[first]) / asked.rounds


def _study(federation: RunningFederation, model: ModelSpec, asked: Asked) -> Study:
    return Study(
        name="peers",
        roster_digest=federation.parties.roster.message.digest(),
        parameters=parameters_for(asked.parameters, asked.clients + 1),
        rule=RuleSpec(name=RuleName.WEIGHT_EROSION, distance_penalty=1e-4),
        model=model,
        training=TrainingSpec(batch_size=1, local_learning_rate=1e-6, server_learning_rate=1e-6),
        rounds=asked.all_rounds + 1,
        seed=0,
    )


def _model(parameters: int) -> ModelSpec:
    """A linear model of two classes. Raises: ConfigurationError"""
    model = model_spec("linear", (parameters // _CLASSES - 1,), (), _CLASSES)
    if dimension(model) != parameters:
        raise ConfigurationError(f"whole rounds are measured of an even number of parameters, found {parameters}")
    return model


def _spec(asked: Asked) -> FederationSpec:
    """One example at every site, so that next to nothing is training."""
    names = (_REQUESTER, *(f"site-{place}" for place in range(1, asked.clients + 1)))
    inputs = asked.parameters // _CLASSES - 1
    sites = []
    for place, name in enumerate(names):
        X = np.random.default_rng([place, inputs]).normal(size=(1, inputs)).astype(np.float32)
        part = Examples(X, np.array([place % _CLASSES], dtype=np.int64))
        none = Examples(np.zeros((0, inputs), dtype=np.float32), np.zeros(0, dtype=np.int64))
        sites.append(SiteSpec(name, LocalData(part, none)))
    return FederationSpec("peers", _REQUESTER, tuple(sites), ports=(0, 0))


def _at_sockets(
    federation: RunningFederation, spec: FederationSpec, begin_s: float, end_s: float
) -> tuple[float, float]:
    """Bytes at the clients' sockets in between, by their own ledgers; the requester's are not counted."""
    entries = [
        entry
        for site in spec.sites
        if site.name != spec.requester
        for entry in read_ledger(federation.ledger(site.name))
        if begin_s <= entry.time_s <= end_s
    ]
    return float(sum(e.socket_sent_bytes for e in entries)), float(sum(e.socket_received_bytes for e in entries))


_NOTHING: Final = "nothing: the server sees every client's model"


@dataclass(frozen=True)
class System:
    """One row: what it is, and what runs it in a folder; with the bytes between servers per round, if it has two.

    ``most_rounds`` are measured however many are asked for: some take minutes each.
    """

    key: str
    name: str
    version: str
    how: str
    protected: str
    most_rounds: int
    run: Callable[[Asked, Path, Path], tuple[Between, float | None]] = field(repr=False)


SYSTEMS: Final = (
    System(
        "moiety",
        "Moiety, Weight Erosion",
        version("moiety"),
        "two servers over TLS 1.3, an agent for every client and for the requester, weights by distances",
        "updates and weights from both servers, sites and requester, unless both servers work together; distances are "
        "opened to the requester alone, the sum to the sites alone",
        8,
        lambda asked, cache, folder: our_rounds(asked, folder),
    ),
    System(
        "nvflare",
        "NVFlare FedAvg",
        NVFLARE,
        "a server and job processes, mutual TLS, the Client API's script inside of the job process",
        _NOTHING,
        8,
        lambda asked, cache, folder: (nvflare_rounds(asked, cache, folder, encrypted=False), None),
    ),
    System(
        "nvflare-he",
        "NVFlare FedAvg, HE",
        f"{NVFLARE}, TenSEAL {TENSEAL}",
        "the same, weights under CKKS (8192, scale 2^40) with its own filters",
        "updates and sum from the server, unless it works together with any one client: all clients hold one "
        "decryption key, and each opens the sum",
        2,
        lambda asked, cache, folder: (nvflare_rounds(asked, cache, folder, encrypted=True), None),
    ),
    System(
        "flower",
        "Flower FedAvg",
        FLOWER,
        "a SuperLink, SuperNodes and the processes they start for each message, without TLS",
        _NOTHING,
        2,
        lambda asked, cache, folder: (flower_rounds(asked, cache, folder, secure=False), None),
    ),
    System(
        "flower-secagg",
        "Flower FedAvg, SecAgg+",
        FLOWER,
        "the same under SecAggPlusWorkflow and secaggplus_mod, 3 shares of which 2 open a key, 22 bits a parameter",
        "updates from the other clients and from a server that follows the protocol; the sum is open to the server",
        1,
        lambda asked, cache, folder: (flower_rounds(asked, cache, folder, secure=True), None),
    ),
)
KEYS: Final = tuple(one.key for one in SYSTEMS)


def benchmark_peers(
    asked: Asked, cache: Path, only: Sequence[str], say: Callable[[str], None] = lambda text: None
) -> PeersBenchmark:
    """Whole rounds of ``only`` or of all. Raises: as :func:`whole_rounds`"""
    named = "".join(f" --only {one}" for one in only)
    load = os.getloadavg()[0]
    rounds = whole_rounds(asked, cache, only, say)
    found = facts(f"peers --parameters {asked.parameters} --sites {asked.clients} --rounds {asked.rounds}{named}")
    found["machine"] += f", load {load:.1f}"
    return PeersBenchmark(**found, parameters=asked.parameters, sites=asked.clients, rounds=rounds)


def whole_rounds(
    asked: Asked, cache: Path, only: Sequence[str] = (), say: Callable[[str], None] = lambda text: None
) -> tuple[WholeRounds, ...]:
    """Those of ``only``, or of all. What does not install or run has a row that says so.

    Raises: ConfigurationError for a name in ``only`` that is none
    """
    strange = [one for one in only if one not in KEYS]
    if strange:
        raise ConfigurationError(f"--only: {strange[0]!r} is no system, there are {', '.join(KEYS)}")
    kept = Path(os.path.realpath(cache.expanduser()))
    say(f"environments of other systems are kept in {kept}")
    rows = []
    for system in SYSTEMS:
        if not only or system.key in only:
            own = replace(asked, rounds=min(asked.rounds, system.most_rounds))
            say(f"{system.key}: 1 round to warm up, {own.rounds} measured")
            rows.append(_row(system, own, kept))
    return tuple(rows)


def _row(system: System, asked: Asked, cache: Path) -> WholeRounds:
    empty = WholeRounds(name=system.name, version=system.version, how=system.how, protected=system.protected)
    try:
        with scratch() as folder:
            one, between_servers = system.run(asked, cache, folder)
    except MoietyError as failure:
        return empty.model_copy(update={"error": failure.detail})
    except (OSError, SubprocessError) as failure:
        return empty.model_copy(update={"error": f"{type(failure).__name__}: {failure}"})
    per = asked.rounds * asked.parameters * asked.clients
    return empty.model_copy(
        update={
            "rounds": asked.rounds,
            "seconds": one.seconds / asked.rounds,
            "server_cpu_s": one.server_cpu_s / asked.rounds,
            "client_cpu_s": one.client_cpu_s / asked.rounds,
            "bytes_up_per_parameter": one.up_bytes / per,
            "bytes_down_per_parameter": one.down_bytes / per,
            "bytes_between_servers_per_parameter": (
                None if between_servers is None else between_servers / (asked.parameters * asked.clients)
            ),
            "server_peak_mb": one.server_peak_mb,
            "client_peak_mb": one.client_peak_mb,
        }
    )
