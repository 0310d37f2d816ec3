"""The model that a site holds of a study, requester or contributor, as a network that predicts.

Every site that took a study's sums has the same shared layers in its journal; its personal layers and statistics, where
the study has them stay, are its own.

Is the federated model better here than one that this site would have trained alone? That baseline begins with the
study's first model and takes as many rounds of the same steps as the federated model had, with this site's data alone:
the same batches, clip norm and server step. Both are judged on the same test examples of this site, so the difference
is taken example by example: in every bootstrap draw both models see the same examples.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import nn

from client_agent.learning.flat_vector import load_personal, load_vector, personal_vector
from client_agent.learning.learner import PersonalState, Vector
from client_agent.learning.metrics import Paired, paired_scores
from client_agent.learning.plugin import study_model, study_plugin
from client_agent.learning.scores import FinalScores
from client_agent.learning.torch_learner import TorchLearner
from client_agent.settings import AgentSettings
from client_agent.site.context import site_learner
from client_agent.site.events import METRICS, RoundRecord, read_metrics
from client_agent.site.identity import load_identity
from client_agent.site.journal import (
    FINAL_SCORES,
    SHARED_SCORES,
    FinishedModel,
    Kept,
    SiteState,
    StudyJournal,
    finished_model,
    kept_model,
    load_finished,
    load_kept,
)
from client_agent.site.privacy_budget import Training, budget_memory
from client_agent.study.outbox import PRETRAINED, load_pretrained
from host.frozen import Frozen
from protocol.arithmetic.fixed_point import check_finite, clip
from protocol.errors import ConfigurationError
from protocol.messages.control import Signed, Study, StudyState
from protocol.policy.site_policy import SitePolicy
from protocol.shared_model import first_model, initial_state, model_digest_of, model_part


@dataclass(frozen=True, eq=False)
class HeldModel:
    """A study's model by the journal: ``model`` float32[D], and the network with all values in place.

    ``finish`` says how the requester finished it alone; None where it did not, or the shared model is asked for.
    ``spent`` are this site's trainings with noise, in all studies, ``policy`` has its budget. ``simulated``: no site
    holds it, a simulation made it.
    """

    study: Study
    state: SiteState
    version: int
    model: NDArray[np.float32] = field(repr=False)
    network: nn.Module = field(repr=False)
    records: tuple[RoundRecord, ...] = field(repr=False)
    scores: FinalScores | None = None
    finish: FinishedModel | None = None
    spent: tuple[Training, ...] = ()
    policy: SitePolicy = field(default_factory=SitePolicy)
    simulated: bool = False

    @property
    def ended(self) -> StudyState:
        """The end of the study, by its requester's signed word; open before that."""
        end = self.state.ended_by
        return StudyState.OPEN if end is None else StudyState(end.message.state.value)

    @property
    def why(self) -> str:
        """The reason that the requester gave."""
        return "" if self.state.ended_by is None else self.state.ended_by.message.reason


def held_model(settings: AgentSettings, name: str, *, unfinished: bool = False, which: Kept | None = None) -> HeldModel:
    """The study's model, finished where this site finished it; ``unfinished``: the shared one behind that.

    ``which``: an earlier one that the requester kept, as it was after that round.

    Raises: ConfigurationError when this site has no such study, no model of it yet, or could not finish it
    """
    folder = settings.state_dir / "studies" / name
    if not (folder / "study.json").exists():
        raise ConfigurationError(f"this site has no study {name!r} in {settings.state_dir / 'studies'}")
    journal = StudyJournal(settings.state_dir, name)
    signed = journal.read(folder / "study.json", Signed[Study])
    state = journal.site_state()
    finish = None if unfinished or which else finished_model(journal)
    if signed is None or state is None or not (state.model_version or finish):
        raise ConfigurationError(f"study {name!r} has no model here yet: no sum was applied at this site")
    if finish is not None and finish.failed:
        raise ConfigurationError(f"study {name!r}: {finish.text}; --unfinished takes the shared model as it is")
    study, version = signed.message, state.model_version or 0
    if which is not None:
        version, model = _kept(journal, name, which)
    else:
        model = journal.load_model(version) if finish is None else load_finished(journal)
    network = _filled(settings, study, folder, model)
    records = read_metrics(folder / METRICS)
    if which is not None:
        until = tuple(record for record in records if record.model_version <= version)
        return HeldModel(study, state, version, model, network.eval(), until)
    of_shared = unfinished and finished_model(journal) is not None
    scores = journal.read(folder / (SHARED_SCORES if of_shared else FINAL_SCORES), FinalScores)
    spent: tuple[Training, ...] = ()
    if study.record_noise is not None:
        _, came_with = load_identity(settings)
        spent = budget_memory(settings.state_dir, came_with).trainings
    return HeldModel(study, state, version, model, network.eval(), records, scores, finish, spent, settings.policy)


def _filled(settings: AgentSettings, study: Study, folder: Path, model: NDArray[np.float32]) -> nn.Module:
    """The network with the shared layers, and this site's own where it has some. Raises: ConfigurationError"""
    network = study_model(study, study_plugin(study, settings.plugin), settings.sources)
    load_vector(network, model)
    if len(personal_vector(network)):
        own = PersonalState(folder).latest()
        if own is None:
            raise ConfigurationError(
                f"study {study.name!r} has layers that stay at their site, and this site trained none"
            )
        load_personal(network, own)
    return network


def _kept(journal: StudyJournal, name: str, which: Kept) -> tuple[int, NDArray[np.float32]]:
    facts = kept_model(journal, which)
    if facts is None:
        why = {
            Kept.FEDERATED: "this site did not go on alone after the shared part; the model is the federated one",
            Kept.BEST: "no sum was applied at this site as a requester with a validation part",
        }
        raise ConfigurationError(f"study {name!r} has no such model here: {why[which]}; leave --{which.value} out")
    return facts.version, load_kept(journal, which, facts)


class Comparison(Frozen):
    """Both models on this site's test part; ``model_version`` is also the rounds of each.

    ``finish`` says how the federated one was finished here, None where it is the shared one; the other never is.
    """

    study: str
    model_version: int
    examples: int
    samples: int
    scores: tuple[Paired, ...]
    finish: FinishedModel | None = None


def compare(held: HeldModel, settings: AgentSettings, samples: int) -> Comparison:
    """Trains the baseline on this machine; nothing of it leaves. Raises: ConfigurationError, UnusableUpdate"""
    study, folder = held.study, settings.state_dir / "studies" / held.study.name
    seed = held.state.training_seed
    federated = site_learner(study, settings, seed, folder)
    with tempfile.TemporaryDirectory(prefix="moiety-baseline-") as alone:
        baseline = site_learner(study, settings, seed, Path(alone))
        own = train_baseline(baseline, study, _first(study, folder), held.version)
        predictions = federated.predicted(held.model), baseline.predicted(own)
    if predictions[0] is None or predictions[1] is None:
        raise ConfigurationError(
            f"study {study.name!r}: this site has no test examples, or the task has no metrics of Moiety's"
        )
    paired = paired_scores(predictions[0], predictions[1], samples, int(study.digest()[:8], 16))
    return Comparison(
        study=study.name,
        model_version=held.version,
        examples=len(predictions[0].y),
        samples=samples,
        scores=paired,
        finish=held.finish,
    )


def train_baseline(learner: TorchLearner, study: Study, first: Vector, rounds: int) -> Vector:
    """The model after so many rounds with this site's data alone. Shapes: float32[D] -> float32[D]"""
    kept = initial_state(first, study.rule)
    layers = [(layer.name, int(np.prod(layer.shape))) for layer in study.model.layers]
    for number in range(1, rounds + 1):
        update = learner.update(model_part(kept, study.model_dimension), number)
        check_finite(update, layers)
        kept = learner.apply(kept, clip(update, study.parameters.clip_norm)[0].astype(np.float32))
    return model_part(kept, study.model_dimension)


def _first(study: Study, folder: Path) -> Vector:
    """Version 0; of a study with a pretrained start, from its file."""
    if study.pretrained_digest is None:
        return first_model(study)
    path = folder / PRETRAINED
    if not path.exists():
        raise ConfigurationError(f"study {study.name!r} began with a pretrained model, and {path} is missing here")
    model = load_pretrained(path, study.model_dimension)
    if model_digest_of(model) != study.pretrained_digest:
        raise ConfigurationError(f"{path} is not the model that the study pins")
    return model
