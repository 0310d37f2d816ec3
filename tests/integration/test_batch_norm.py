"""A small ResNet with batch norm over agents and servers, and in a simulation: its own statistics, or averaged ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from client_agent.learning.data import Examples, LocalData
from client_agent.learning.learner import Learner, PersonalState
from client_agent.learning.models import completed, installed_version, network_of
from client_agent.learning.settings import ModelSources
from client_agent.learning.torch_learner import TorchLearner
from client_agent.settings import AgentSettings
from client_agent.site.events import RoundEnd
from client_agent.site.journal import StudyJournal
from protocol.messages.control import ModelSpec, Study, TrainingSpec
from protocol.messages.model import ArchitectureSpec, Argument, Buffers
from protocol.parameters import StudyParameters
from tests.integration.agents import FEDAVG, final_model, in_one_process, run_to_end, trained
from tests.unlimited import run_plain

SITES = ("requester", "c1", "c2", "c3")
ROUNDS = 2
LISTED = ModelSources(("monai.ResNet",))
ARGUMENTS = (
    Argument(name="block", value="basic"),
    Argument(name="layers", value=(1, 1, 1, 1)),
    Argument(name="block_inplanes", value=(4, 4, 4, 4)),
    Argument(name="spatial_dims", value=2),
    Argument(name="n_input_channels", value=1),
    Argument(name="conv1_t_size", value=3),
    Argument(name="num_classes", value=2),
)


def images(place: int) -> LocalData:
    """Another contrast at every site: what FedBN is for."""
    random = np.random.default_rng([place, 3])

    def part(rows: int) -> Examples:
        y = random.integers(0, 2, rows)
        X = (1 + place) * (random.normal(size=(rows, 1, 12, 12)) + y[:, None, None, None])
        return Examples(X.astype(np.float32), y)

    return LocalData(part(12), part(8))


DATA = {name: images(place) for place, name in enumerate(SITES)}


def resnet(buffers: Buffers) -> ModelSpec:
    version = installed_version("monai")
    architecture = ArchitectureSpec(library="monai", library_version=version, name="ResNet", arguments=ARGUMENTS)
    given = ModelSpec(kind="library", inputs=(1, 12, 12), architecture=architecture, buffers=buffers, layers=())
    return completed(given, network_of(given, LISTED))


def study(buffers: Buffers, roster_digest: str) -> Study:
    model = resnet(buffers)
    return Study(
        name="images",
        roster_digest=roster_digest,
        parameters=StudyParameters(
            dimension=sum(int(np.prod(layer.shape)) for layer in model.layers), clip_norm=64.0, least_contributors=3
        ),
        rule=FEDAVG,
        model=model,
        training=TrainingSpec(update="local_sgd", batch_size=6, local_learning_rate=0.05, server_learning_rate=0.05),
        rounds=ROUNDS,
        round_deadline_s=600.0,
        seed=4,
    )


def learner(settings: AgentSettings, of: Study, seed: int) -> Learner:
    folder = StudyJournal(settings.state_dir, of.name).folder
    return TorchLearner(of, settings.data, None, "cpu", seed, folder, LISTED)


@pytest.mark.slow
@pytest.mark.parametrize("buffers", list(Buffers))
def test_agents_train_a_small_resnet(buffers: Buffers, tmp_path: Path) -> None:
    with trained(tmp_path, DATA, learner=learner) as running:
        of = study(buffers, running.parties.roster.message.digest())
        running.start()
        assert [record.state for record in run_to_end(running, of)] == [RoundEnd.RELEASED] * ROUNDS
        models = {final_model(running, site, "images") for site in SITES}
        own = [PersonalState(StudyJournal(running.state(site), "images").folder).latest() for site in SITES]
    assert len(models) == 1
    names = [layer.name for layer in of.model.layers]
    assert any("running_var" in name for name in names) == (buffers is Buffers.SHARED)
    if buffers is Buffers.LOCAL:
        assert not any("bn" in name for name in names)
        assert all(layers is not None for layers in own)
        assert len({layers.tobytes() for layers in own if layers is not None}) == len(SITES)
    else:
        assert own == [None] * len(SITES)


@pytest.mark.parametrize("buffers", list(Buffers))
def test_a_simulation_trains_it_too(buffers: Buffers) -> None:
    of = study(buffers, "00" * 32)
    ran = run_plain(of, in_one_process(DATA))
    assert ran.shared_rounds == ROUNDS
    assert ran.final_model.shape == (of.model_dimension,)
    for layer, piece in zip(of.model.layers, pieces(of, ran.final_model), strict=True):
        if layer.name.endswith("running_var"):
            assert (piece > 0).all()
            assert (piece != 1).all()


def pieces(of: Study, vector: np.ndarray) -> list[np.ndarray]:
    ends = np.cumsum([int(np.prod(layer.shape)) for layer in of.model.layers])[:-1]
    return np.split(vector, ends)
