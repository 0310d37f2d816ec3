"""Shared parts of tests of whole federations: a small linear model, its data, and how a study ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest

from client_agent.learning.data import Examples, LocalData
from client_agent.learning.models import model_spec
from client_agent.learning.study_file import FinishTable
from client_agent.net.server_client import ServerClient
from client_agent.site.events import RoundRecord, read_metrics
from client_agent.site.journal import StudyJournal
from client_agent.study.contribution import EncodedUpdate
from client_agent.study.participant import Participant
from harness.datasets.site_data import SiteData
from harness.engine.parties import Parties
from harness.federation.in_memory_federation import InMemoryFederation
from harness.federation.learners import Learners, light_learner, light_sites, torch_learner
from harness.federation.processes import FederationSpec, SiteSpec
from moiety import main
from protocol.messages.control import Announcement, RuleName, RuleSpec, Study, TrainingSpec
from protocol.parameters import StudyParameters
from protocol.policy.site_policy import SitePolicy
from tests.kit.present import present
from tests.ports import free_ports

REQUESTER = "requester"
MODEL = model_spec("linear", (5,), (), 2)
FEDAVG = RuleSpec(name=RuleName.FEDAVG)
EROSION = RuleSpec(name=RuleName.WEIGHT_EROSION, distance_penalty=0.01, size_penalty=0.1)


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


def in_memory(
    folder: Path,
    sites: Sequence[str] = ("requester", "c1", "c2", "c3"),
    policy: SitePolicy | None = None,
    **policies: SitePolicy,
) -> InMemoryFederation:
    """Both servers and light sites, the first of which is the requester; two contributors are enough for them.

    ``policies``: those of some sites in place of everybody's.
    """
    asked = policy or SitePolicy(least_isolation=0.0, least_contributors=2)
    light = tuple(replace(one, policy=policies.get(one.name, asked)) for one in light_sites(sites))
    made = FederationSpec("memory", sites[0], light, seed=5, ports=free_ports())
    return InMemoryFederation(made, folder, light_learner)


def trained(
    folder: Path,
    data: Mapping[str, LocalData],
    policy: SitePolicy | None = None,
    *,
    learner: Learners = torch_learner,
    **policies: SitePolicy,
) -> InMemoryFederation:
    """As ``in_memory``, with sites that train on their data in earnest, and demand nothing unless told."""
    asked = policy or SitePolicy(least_isolation=0.0)
    sites = tuple(SiteSpec(name, own, policies.get(name, asked)) for name, own in data.items())
    made = FederationSpec("trained", sites[0].name, sites, seed=11, ports=free_ports(), bootstrap_samples=0)
    return InMemoryFederation(made, folder, learner)


def in_one_process(data: Mapping[str, LocalData]) -> list[SiteData]:
    """The sites as the engine has them, where no process is another's."""
    made = []
    for name, own in data.items():
        none = replace(own.train, X=own.train.X[:0], y=own.train.y[:0])
        made.append(SiteData(name, own.train, own.validation or none, own.test))
    return made


def changed(study: Study, **fields: Any) -> Study:
    """The study with other fields, of its own or of its parameters."""
    inner = {name: fields.pop(name) for name in tuple(fields) if name in StudyParameters.model_fields}
    parameters = StudyParameters.model_validate({**dict(study.parameters), **inner})
    return Study.model_validate({**dict(study), "parameters": parameters, **fields})


def run_to_end(
    running: InMemoryFederation, study: Study, *sites: str, finish: FinishTable | None = None
) -> tuple[RoundRecord, ...]:
    """Hand in the study and wait until it is over at these sites, or all; return the requester's rounds."""
    running.hand_in(study, finish)
    names = sites or tuple(site.name for site in running.spec.sites)
    running.until(f"the end of {study.name}", finished(running, study.name, *names))
    return rounds_of(running, running.spec.requester, study.name)


def out_of_range(monkeypatch: pytest.MonkeyPatch, name: str, when: Callable[[Announcement], bool]) -> None:
    """This site adds 2^63 to the first coordinate of what it shares in these rounds."""
    encode = Participant.encode

    def wild(owner: Participant, announcement: Announcement, numerator: int) -> EncodedUpdate:
        made = encode(owner, announcement, numerator)
        if owner.context.site == name and when(announcement):
            path = owner.encoded_file(announcement).path
            words = np.fromfile(path, dtype="<u8")
            words[:1] += np.uint64(2**63)
            words.tofile(path)
        return made

    monkeypatch.setattr(Participant, "encode", wild)


class Federated(Protocol):
    """A federation of processes, or one in memory."""

    @property
    def parties(self) -> Parties: ...

    def state(self, site: str) -> Path: ...


def study_for(
    federation: Federated, name: str, rule: RuleSpec = FEDAVG, rounds: int = 2, deadline_s: float = 60.0
) -> Study:
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


def moiety(*arguments: str) -> int:
    """Run a command in this process; return its exit code."""
    with pytest.raises(SystemExit) as done:
        main(arguments)
    return int(done.value.code or 0)


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
    state = present(own.site_state())
    return own.load_model(present(state.model_version)).tobytes()


def rounds_of(federation: Federated, site: str, study: str) -> tuple[RoundRecord, ...]:
    return read_metrics(journal(federation, site, study).folder / "metrics.jsonl")


def party_of(client: ServerClient) -> str:
    """The name of whose requests these are."""
    return client._way._enclosing._keys.name
