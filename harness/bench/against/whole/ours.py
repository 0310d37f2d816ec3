"""Whole rounds of Moiety with real agents: two servers, an agent for the requester and for each client, over HTTPS."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from client_agent.learning.data import Examples, LocalData
from client_agent.learning.models import dimension, model_spec
from client_agent.network.ledger import read_ledger
from harness.bench.against.whole.gauge import Gauge, between
from harness.bench.against.whole.taken import Asked, Taken
from harness.bench.vectors import parameters_for
from harness.engine.parties import OPERATOR_NAMES
from harness.federation.federated_run import Progress, run_study
from harness.federation.processes import FederationSpec, RunningFederation, SiteSpec
from protocol.errors import ConfigurationError
from protocol.sharing import Side
from protocol.wire.messages import ModelSpec, RuleName, RuleSpec, Study, TrainingSpec

_REQUESTER: Final = "requester"
_CLASSES: Final = 2
_PEER_BYTES: Final = "moiety_peer_bytes_total"


def our_rounds(asked: Asked, folder: Path) -> tuple[Taken, float]:
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

        def show(progress: Progress) -> None:
            while len(ends) < len(progress.records):
                ends.append((time.monotonic(), time.time()))
                sent.append(_between_servers(federation.metrics(Side.A)))

        with Gauge(operators, agents) as gauge:
            run_study(federation, _study(federation, model, asked), show)
        first, last = 0, asked.rounds
        up, down = _at_sockets(federation, spec, ends[first][1], ends[last][1])
    measured = between(gauge.readings, ends[first][0], ends[last][0])
    counted = measured.with_bytes(up, down)
    return Taken(counted, asked.rounds), (sent[last] - sent[first]) / asked.rounds


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


def _between_servers(page: str) -> float:
    return sum(_values(page.splitlines()))


def _values(lines: Sequence[str]) -> list[float]:
    return [float(line.rpartition(" ")[2]) for line in lines if line.startswith(_PEER_BYTES)]
