"""Whole studies: two server processes and the agents, as threads (with a broken site) and as processes (killed)."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from client_agent.daemon import create_study, run_agent
from client_agent.data import Examples, LocalData
from client_agent.events import AgentEvent, EventKind, RoundEnd, RoundRecord, read_metrics
from client_agent.journal import StudyJournal
from client_agent.learner import Learner, TorchLearner
from client_agent.ledger import read_ledger
from client_agent.models import model_spec
from client_agent.settings import load_settings
from harness.processes import FederationSpec, RunningFederation, SiteSpec
from protocol.parameters import StudyParameters
from protocol.policy import SitePolicy
from protocol.sharing import Side
from protocol.wire.messages import RuleName, RuleSpec, Study, TrainingSpec

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
    names = (REQUESTER, *policies)
    sites = tuple(SiteSpec(name, site_data(i), policies.get(name, SitePolicy())) for i, name in enumerate(names))
    return FederationSpec("testing", REQUESTER, sites, seed=seed)


def study_for(federation: RunningFederation, name: str, rule: RuleSpec, rounds: int, deadline_s: float) -> Study:
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


def wait_for(
    what: str, condition: Callable[[], bool], events: Sequence[AgentEvent] = (), within_s: float = 40.0
) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        seen = "\n".join(f"{e.site} {e.kind} {e.round} {e.text}" for e in events)
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}\n{seen}"
        time.sleep(0.1)


def journal(federation: RunningFederation, site: str, study: str) -> StudyJournal:
    return StudyJournal(federation.state(site), study)


def finished(federation: RunningFederation, study: str, *sites: str) -> Callable[[], bool]:
    def condition() -> bool:
        states = [journal(federation, site, study).site_state() for site in sites]
        return all(state is not None and state.finished is not None for state in states)

    return condition


def final_model(federation: RunningFederation, site: str, study: str) -> bytes:
    own = journal(federation, site, study)
    state = own.site_state()
    assert state is not None
    assert state.model_version is not None
    return own.load_model(state.model_version).tobytes()


def rounds_of(federation: RunningFederation, site: str, study: str) -> tuple[RoundRecord, ...]:
    return read_metrics(journal(federation, site, study).folder / "metrics.jsonl")


class BrokenInRound2:
    """A site whose second layer turns to NaN in round 2."""

    def __init__(self, inner: Learner) -> None:
        self._inner = inner

    def prepare(self) -> None:
        self._inner.prepare()

    def initial(self) -> np.ndarray:
        return self._inner.initial()

    def update(self, model: np.ndarray, round_number: int) -> np.ndarray:
        update = self._inner.update(model, round_number)
        if round_number == 2:
            update[-1] = np.nan
        return update

    def apply(self, model: np.ndarray, aggregate: np.ndarray) -> np.ndarray:
        return self._inner.apply(model, aggregate)

    def accuracy(self, model: np.ndarray) -> float | None:
        return self._inner.accuracy(model)


class AgentThreads:
    """The agents of a federation as threads of this process."""

    def __init__(self, federation: RunningFederation, broken: str | None = None) -> None:
        self.events: list[AgentEvent] = []
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(federation, site.name, broken), name=f"agent {site.name}")
            for site in federation.spec.sites
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, federation: RunningFederation, site: str, broken: str | None) -> None:
        settings = load_settings(federation.config(site))

        def learner(study: Study, seed: int) -> Learner:
            real = TorchLearner(study, settings.data, None, "cpu", seed)
            return BrokenInRound2(real) if site == broken else real

        run_agent(settings, self._stop, self.events.append, learner)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()

    def texts(self, kind: EventKind, site: str) -> list[str]:
        return [event.text for event in self.events if event.kind is kind and event.site == site]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFederation]:
    policies = {f"c{i}": SitePolicy() for i in range(1, 6)}
    policies["c5"] = SitePolicy(least_contributors=4)
    federation = RunningFederation(spec(policies), tmp_path_factory.mktemp("federation"))
    try:
        for side in Side:
            federation.start_server(side)
        for side in Side:
            federation.wait_for(side, "/healthz")
        yield federation
    finally:
        federation.stop()


def test_a_study_with_a_broken_site_and_a_refusing_one(servers: RunningFederation) -> None:
    """c5's policy wants more contributors than the study guarantees; c4 computes NaN once; the study goes on."""
    agents = AgentThreads(servers, broken="c4")
    try:
        create_study(servers.state(REQUESTER), study_for(servers, "erosion", EROSION, 3, 4.0))
        followers = ("c1", "c2", "c3", "c4")
        wait_for("the study's end", finished(servers, "erosion", REQUESTER, *followers))
        create_study(servers.state(REQUESTER), study_for(servers, "alone", RuleSpec(name=RuleName.LOCAL), 2, 4.0))
        wait_for("the local study's end", finished(servers, "alone", REQUESTER))
    finally:
        agents.stop()

    records = rounds_of(servers, REQUESTER, "erosion")
    assert [r.state for r in records] == [RoundEnd.RELEASED] * 3
    assert [r.took_part for r in records] == [
        (REQUESTER, "c1", "c2", "c3", "c4"),
        (REQUESTER, "c1", "c2", "c3"),
        (REQUESTER, "c1", "c2", "c3", "c4"),
    ]
    assert [r.declined for r in records] == [("c5",), ("c4",), ()]
    assert [len(r.weights) for r in records] == [5, 4, 4]
    assert all(len(r.distances) == len(r.took_part) - 1 for r in records)

    refusal = agents.texts(EventKind.DECLINED, "c5")
    assert len(refusal) == 1
    assert "enough_contributors: 3 contributors" in refusal[0]
    assert "at least 4 are demanded" in refusal[0]
    (nan,) = agents.texts(EventKind.DECLINED, "c4")
    assert nan.startswith("unusable_update: layer '1.bias': 1 of 2 values are NaN")

    models = {final_model(servers, site, "erosion") for site in (REQUESTER, *followers)}
    assert len(models) == 1
    contributor = rounds_of(servers, "c1", "erosion")
    assert [r.state for r in contributor] == [RoundEnd.RELEASED] * 3
    assert all(not r.distances and not r.alphas for r in contributor)

    alone = rounds_of(servers, REQUESTER, "alone")
    assert [r.state for r in alone] == [RoundEnd.ALONE] * 2
    assert "the rule uses no contributor" in alone[0].reason


def test_what_the_sites_leave_behind(servers: RunningFederation) -> None:
    """Runs after the study above: the ledger names every purpose, and nothing secret is in the metrics."""
    entries = read_ledger(servers.state("c1") / "ledger.jsonl")
    purposes = {entry.purpose for entry in entries}
    assert {"handshake", "contribution", "output", "view", "ready", "list studies"} <= purposes
    assert {entry.tls_version for entry in entries} == {"TLSv1.3"}
    assert all(e.socket_sent_bytes > e.body_sent_bytes for e in entries if e.purpose == "contribution")
    text = (journal(servers, "c1", "erosion").folder / "metrics.jsonl").read_text()
    state = journal(servers, "c1", "erosion").site_state()
    assert state is not None
    assert state.site_key is not None
    assert state.site_key not in text
    assert state.site_key not in repr(state)


def test_killed_processes_come_back(tmp_path: Path) -> None:
    """kill -9 of a site and of server B in the middle of a study: it goes on, and no share is made twice."""
    federation = RunningFederation(spec({f"c{i}": SitePolicy() for i in range(1, 4)}, seed=None), tmp_path)
    with federation:
        federation.hand_in(study_for(federation, "erosion", EROSION, 5, 60.0))
        recorded = lambda site, count: lambda: len(rounds_of(federation, site, "erosion")) >= count  # noqa: E731
        wait_for("round 1", recorded(REQUESTER, 1))
        federation.kill("c1")
        sealed = {p: p.read_bytes() for p in journal(federation, "c1", "erosion").folder.glob("rounds/*/*/*.sealed")}
        federation.start_agent("c1")
        wait_for("round 3", recorded(REQUESTER, 3))
        federation.kill("operator-b")
        federation.start_server(Side.B)
        everybody = (REQUESTER, "c1", "c2", "c3")
        wait_for("the end", finished(federation, "erosion", *everybody), within_s=120.0)
        for path, content in sealed.items():
            assert not path.exists() or path.read_bytes() == content
        assert len({final_model(federation, site, "erosion") for site in everybody}) == 1
        records = rounds_of(federation, REQUESTER, "erosion")
        assert [r.round for r in records] == [1, 2, 3, 4, 5]
        assert records[-1].model_version == sum(r.state is RoundEnd.RELEASED for r in records)
        watched = federation.run_cli("study", "watch", "erosion", "--config", str(federation.config("c1")), "--json")
        states = [json.loads(line) for line in watched.splitlines() if "ready" in json.loads(line)]
        assert states[-1]["state"] == "completed"
