"""Personal layers over two real servers: the sites' agents train them, kill -9 leaves them right, no message has them.

Three agents are threads of this process; c2 is a process of its own, killed once in the middle of a round in each of
two studies. Every step takes all rows of a site, so that a float64 twin (:mod:`tests.layered_softmax`) knows every
model, and how far off a run may be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from client_agent.learning.data import Examples, LocalData
from client_agent.learning.evaluation import evaluate
from client_agent.learning.flat_vector import load_personal, load_vector, model_vector
from client_agent.learning.learner import PersonalState
from client_agent.learning.models import PersonalPlace, build_model, dimension, model_spec
from client_agent.learning.sampling import site_seed
from client_agent.learning.trainer import train_round
from client_agent.net.ledger import read_ledger
from client_agent.site.events import RoundEnd
from harness.attack.signed_client import opened
from harness.engine.parties import OPERATOR_NAMES
from harness.engine.run_state import Progress
from harness.federation.processes import FederationSpec, SiteSpec
from protocol.messages.control import ContributionHeader, RuleName, RuleSpec, ShareKind, Study, TrainingSpec
from protocol.parameters import StudyParameters
from protocol.sharing import Side
from tests import layered_softmax as reference
from tests.adversarial.test_server_files import where
from tests.integration.agents import REQUESTER, final_model, finished, in_one_process, journal, rounds_of, wait_for
from tests.integration.crashes import died
from tests.kit.present import present
from tests.kit.processes import Federation, running_servers
from tests.kit.small_runs import run_plain
from tests.ports import free_ports

pytestmark = pytest.mark.slow
CPU = torch.device("cpu")
KILLED = "c2"
NAMES = (REQUESTER, "c1", KILLED, "c3")
ROUNDS, FEATURES, CLASSES = 3, 6, 3
RATE = 0.0625
TRAINING = TrainingSpec(
    update="local_sgd", epochs=2, batch_size=1000, local_learning_rate=RATE, server_learning_rate=RATE
)
FIRST_KILL = "before_update_encoded:3"
"""In round 3, trained, its personal layers on disk, its update not yet."""
SECOND_KILL = "after_shares_sealed:4"
"""In round 3 of the next study: the process that came back seals once in the first one."""
PLACES: dict[str, tuple[PersonalPlace, ...]] = {"with-input": ("input",), "with-both": ("input", "target")}


def site_data(place: int) -> LocalData:
    """Three classes; every site's first feature is shifted by something of its own."""
    random = np.random.default_rng([place, 5])
    centres = 1.5 * np.random.default_rng(1).normal(size=(CLASSES, FEATURES))

    def part(rows: int) -> Examples:
        y = random.integers(0, CLASSES, size=rows)
        X = centres[y] + random.normal(size=(rows, FEATURES))
        X[:, 0] += place
        return Examples(X.astype(np.float32), y)

    return LocalData(part(40 + place), part(30))


DATA = {name: site_data(place) for place, name in enumerate(NAMES)}
SITES = in_one_process(DATA)


@dataclass(frozen=True)
class Ran:
    """Two finished studies, their servers still up."""

    federation: Federation
    studies: dict[str, Study]

    def personal(self, site: str, study: str) -> PersonalState:
        return PersonalState(journal(self.federation, site, study).folder)

    def latest(self, site: str, study: str) -> np.ndarray:
        return present(self.personal(site, study).latest())


def study_of(federation: Federation, name: str) -> Study:
    model = model_spec("linear", (FEATURES,), (), CLASSES, personal=PLACES[name])
    return Study(
        name=name,
        roster_digest=federation.parties.roster.message.digest(),
        parameters=StudyParameters(dimension=dimension(model), clip_norm=8.0, least_contributors=3),
        rule=RuleSpec(name=RuleName.FEDAVG),
        model=model,
        training=TRAINING,
        rounds=ROUNDS,
        round_deadline_s=120.0,
        seed=11,
    )


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    sites = tuple(SiteSpec(name, data) for name, data in DATA.items())
    spec = FederationSpec("personal", REQUESTER, sites, seed=11, ports=free_ports(), bootstrap_samples=0)
    with running_servers(Federation(tmp_path_factory.mktemp("personal"), spec)) as federation:
        federation.start_agents(*(name for name in NAMES if name != KILLED))
        federation.start_party(KILLED, FIRST_KILL)
        studies = {name: study_of(federation, name) for name in PLACES}
        for (name, study), next_kill in zip(studies.items(), (SECOND_KILL, None), strict=True):
            federation.hand_in(study)
            died(federation, KILLED, 120.0)
            federation.start_party(KILLED, next_kill)
            wait_for(f"the end of {name}", finished(federation, name, *NAMES), 180, federation.site_tails)
        yield Ran(federation, studies)


# --- the models -------------------------------------------------------------------------------------------------------


def indices(name: str) -> tuple[int, ...]:
    return tuple(i for place in PLACES[name] for i in (reference.INPUT if place == "input" else reference.TARGET))


def exactly(study: Study, unit: float) -> reference.State:
    """The float64 twin's end, and how far off a run that encodes with this unit may be."""
    rows = [reference.Rows(s.train.X.astype(np.float64), np.eye(CLASSES)[s.train.y]) for s in SITES]
    vector = model_vector(build_model(study.model, 11)).astype(np.float64)
    shared = CLASSES * FEATURES
    state = reference.first(vector[:shared].reshape(CLASSES, FEATURES), vector[shared:], len(SITES))
    training = reference.Training(indices(study.name), TRAINING.epochs, RATE, RATE, unit)
    for _ in range(ROUNDS):
        assert reference.longest_update(state, rows, training) < study.parameters.clip_norm / 2  # nothing is clipped
        state = reference.after(state, rows, training, 1)
    return state


@pytest.mark.parametrize("name", list(PLACES))
def test_the_shared_part_is_the_plain_runs_within_the_bound(ran: Ran, name: str) -> None:
    study = ran.studies[name]
    models = {final_model(ran.federation, site, name) for site in NAMES}
    assert len(models) == 1
    ours = np.frombuffer(models.pop(), dtype="<f4").astype(np.float64)
    plain = run_plain(study, SITES).final_model.astype(np.float64)
    ours_exact, plain_exact = exactly(study, 1 / study.parameters.scale), exactly(study, 0.0)
    assert np.linalg.norm(plain - plain_exact.shared) <= plain_exact.shared_off
    allowed = ours_exact.shared_off + plain_exact.shared_off
    assert 0 < np.linalg.norm(ours - plain) <= allowed
    moved = np.linalg.norm(plain - model_vector(build_model(study.model, 11)))
    assert allowed < moved / 100


@pytest.mark.parametrize("name", list(PLACES))
def test_every_sites_own_layers_are_the_plain_runs_within_the_bound(ran: Ran, name: str) -> None:
    """The killed site's among them: what it had trained before it died was not trained twice."""
    study, seen = ran.studies[name], list[Progress]()
    run_plain(study, SITES, after_round=seen.append)
    ours_exact, plain_exact = exactly(study, 1 / study.parameters.scale), exactly(study, 0.0)
    layers = {site: ran.latest(site, name).astype(np.float64) for site in NAMES}
    for place, site in enumerate(NAMES):
        assert len(layers[site]) == 2 * FEATURES + 2 * CLASSES * ("target" in PLACES[name])
        allowed = ours_exact.personal_off(place, indices(name)) + plain_exact.personal_off(place, indices(name))
        apart = np.linalg.norm(layers[site] - seen[-1].state.personal[place])
        assert apart <= allowed
        assert allowed < np.linalg.norm(layers[site] - layers[NAMES[place - 1]]) / 100


@pytest.mark.parametrize("name", list(PLACES))
def test_the_last_round_trained_from_the_layers_of_the_one_before(ran: Ran, name: str) -> None:
    """To the bit, at every site: also where the process died after training, and trained the round again."""
    study = ran.studies[name]
    model = build_model(study.model, 11)
    for site in NAMES:
        before, after = ran.personal(site, name).before(ROUNDS), ran.latest(site, name)
        assert before is not None
        load_vector(model, journal(ran.federation, site, name).load_model(ROUNDS - 1))
        load_personal(model, before)
        seed = site_seed(11, site)
        trained = train_round(model, DATA[site].train, TRAINING, round=ROUNDS, seed=seed, device=CPU)
        np.testing.assert_array_equal(trained.personal, after)
        assert not np.array_equal(before, after)


@pytest.mark.parametrize("name", list(PLACES))
def test_every_round_was_released_with_all_sites(ran: Ran, name: str) -> None:
    for site in NAMES:
        records = rounds_of(ran.federation, site, name)
        assert [(r.state, r.attempt, r.took_part) for r in records] == [(RoundEnd.RELEASED, 1, NAMES)] * ROUNDS
        assert not any(record.clipped for record in records)


@pytest.mark.parametrize("name", list(PLACES))
def test_a_sites_report_is_about_its_own_layers(ran: Ran, name: str) -> None:
    """The accuracy in its metrics is that of the shared part between its own layers, which its folder holds."""
    study = ran.studies[name]
    model = build_model(study.model, 11)
    for site in NAMES:
        own = journal(ran.federation, site, name)
        load_vector(model, own.load_model(ROUNDS))
        load_personal(model, ran.latest(site, name))
        reported = rounds_of(ran.federation, site, name)[-1].test_accuracy
        assert reported == evaluate(model, DATA[site].test, CPU).accuracy
        with safe_open(own.folder / f"personal-{ROUNDS:06d}.safetensors", framework="numpy") as file:
            assert file.metadata() == {"moiety": f"study {study.digest()}, personal layers after round {ROUNDS}"}


# --- what leaves ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(PLACES))
def test_a_contribution_holds_the_shared_parameters_alone(ran: Ran, name: str) -> None:
    """Every share that a site sealed, opened with its server's key: 8 bytes a shared parameter, or a seed."""
    shared = dimension(ran.studies[name].model)
    assert shared == CLASSES * FEATURES + CLASSES
    lengths = []
    for site in NAMES:
        folder = journal(ran.federation, site, name).folder
        assert {path.stat().st_size for path in folder.glob("rounds/*/encoded.ring")} == {8 * shared}
        for side in Side:
            for path in folder.glob(f"rounds/*/attempt-*/{side}.sealed"):
                key = ran.federation.parties.keys_of(OPERATOR_NAMES[side]).sealing
                header, share = opened(path.read_bytes(), key, ContributionHeader)
                assert header.length == shared
                assert len(share) == (8 * shared if header.share_kind is ShareKind.VECTOR else 32)
                lengths.append(len(share))
    assert lengths.count(8 * shared) == lengths.count(32) >= len(NAMES)


def test_every_body_that_a_site_sent_is_as_long_as_without_personal_layers(ran: Ran) -> None:
    """The same study but for what is personal: a body that held any of it would be longer.

    All requests have one target, so the studies' bodies are looked at together: a vector's and a seed's lengths, which
    are padded to one where both are short.
    """
    for site in NAMES:
        sent = Counter(
            entry.body_sent_bytes
            for entry in read_ledger(ran.federation.ledger(site))
            if entry.purpose == "contribution" and entry.status == 200
        )
        assert len(sent) in (1, 2)
        assert sum(sent.values()) >= 2 * len(PLACES) * ROUNDS
        assert all(times >= len(PLACES) * ROUNDS for times in sent.values())


@pytest.mark.parametrize("name", list(PLACES))
def test_neither_a_server_nor_a_model_file_holds_a_personal_layer(ran: Ran, name: str) -> None:
    stored = {
        str(path): path.read_bytes()
        for side in Side
        for path in (ran.federation.folder / OPERATOR_NAMES[side]).rglob("*")
        if path.is_file()
    }
    assert any("server.db" in path for path in stored)
    elsewhere = dict(stored)
    kept: dict[str, Any] = {}
    for site in NAMES:
        folder = journal(ran.federation, site, name).folder
        elsewhere |= {str(path): path.read_bytes() for path in folder.glob("model-*.safetensors")}
        kept |= {str(path): path.read_bytes() for path in folder.glob("personal-*.safetensors")}
        with safe_open(folder / f"model-{ROUNDS:06d}.safetensors", framework="numpy") as file:
            assert list(file.keys()) == ["model"]
            assert file.get_tensor("model").shape == (dimension(ran.studies[name].model),)
    for site in NAMES:
        layers = ran.latest(site, name)
        assert where(layers.tobytes(), kept)  # the search finds it where it is
        for kind in ("<f4", "<f8"):
            assert where(layers.astype(kind).tobytes(), elsewhere) == []
