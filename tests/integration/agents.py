"""What tests of whole federations have in common: a small linear model, its data, and how a study ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np

from client_agent.learning.data import Examples, LocalData
from client_agent.learning.models import model_spec
from client_agent.site.events import RoundRecord, read_metrics
from client_agent.site.journal import StudyJournal
from harness.engine.parties import Parties
from harness.federation.processes import FederationSpec, SiteSpec
from protocol.messages.control import RuleName, RuleSpec, Study, TrainingSpec
from protocol.parameters import StudyParameters
from protocol.policy.site_policy import SitePolicy
from tests.ports import free_ports

REQUESTER = "requester"
MODEL = model_spec("linear", (5,), (), 2)


def site_data(seed: int) -> LocalData:
    rng = np.random.default_rng(seed)

    def part(count: int) -> Examples:
        X = rng.normal(size=(count, 5)).astype(np.float32)
        direction = np.array([1.0, -1.0, 0.5, 0.0, 0.1 * seed])
        return Examples(X, (X @ direction + 0.2 * rng.normal(size=count) > 0).astype(np.int64))

    return LocalData(part(60), part(20))


def spec(policies: dict[str, SitePolicy], seed: int | None = 3) -> FederationSpec:
    names = (REQUESTER, *(name for name in policies if name != REQUESTER))
    sites = tuple(
        SiteSpec(name, site_data(i), policies.get(name, SitePolicy(least_isolation=0.0)))
        for i, name in enumerate(names)
    )
    return FederationSpec("testing", REQUESTER, sites, seed=seed, ports=free_ports(), bootstrap_samples=0)


class Federated(Protocol):
    """A federation of processes, or one in memory."""

    @property
    def parties(self) -> Parties: ...

    def state(self, site: str) -> Path: ...


def study_for(federation: Federated, name: str, rule: RuleSpec, rounds: int, deadline_s: float) -> Study:
    return Study(
        name=name,
        roster_digest=federation.parties.roster.message.digest(),
        parameters=StudyParameters(dimension=12, clip_norm=4.0, least_contributors=3),
        rule=rule,
        model=MODEL,
        training=TrainingSpec(batch_size=16, server_learning_rate=0.5),
        rounds=rounds,
        round_deadline_s=deadline_s,
        seed=11,
    )


EROSION = RuleSpec(name=RuleName.WEIGHT_EROSION, distance_penalty=0.01, size_penalty=0.1)


def wait_for(what: str, condition: Callable[[], bool], within_s: float = 90.0, tails: Callable[[], str] = str) -> None:
    """``tails``: what to show when it does not come to pass."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}\n{tails()}"
        time.sleep(0.1)


def journal(federation: Federated, site: str, study: str) -> StudyJournal:
    return StudyJournal(federation.state(site), study)


def finished(federation: Federated, study: str, *sites: str) -> Callable[[], bool]:
    def condition() -> bool:
        states = [journal(federation, site, study).site_state() for site in sites]
        return all(state is not None and state.finished is not None for state in states)

    return condition


def final_model(federation: Federated, site: str, study: str) -> bytes:
    own = journal(federation, site, study)
    state = own.site_state()
    assert state is not None
    assert state.model_version is not None
    return own.load_model(state.model_version).tobytes()


def rounds_of(federation: Federated, site: str, study: str) -> tuple[RoundRecord, ...]:
    return read_metrics(journal(federation, site, study).folder / "metrics.jsonl")
