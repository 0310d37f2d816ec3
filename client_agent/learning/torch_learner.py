"""The learning side of one site in one study, by torch: updates, the applied aggregate, metrics."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np

from client_agent.learning.data import VALIDATION_FILE, Examples, remarks
from client_agent.learning.flat_vector import load_personal, load_vector, personal_vector, pick_device, require_batches
from client_agent.learning.foreign_trainer import ForeignTrainer
from client_agent.learning.learner import PersonalState, Vector
from client_agent.learning.local_finish import LocalFinish
from client_agent.learning.metrics import Predicted
from client_agent.learning.plugin import assessor, fitting_data, site_loss, study_model, study_plugin
from client_agent.learning.ridge import JudgingForm, Matrix, judging_form, ridge_model
from client_agent.learning.scores import FinalScores, Score
from client_agent.learning.settings import NO_SOURCES, ModelSources, TrainerSettings
from client_agent.learning.study_file import Finished, FinishTable
from client_agent.learning.trainer import LocalRound, loss_gradient, private_round, train_round
from client_agent.learning.update_noise import UpdateNoise, update_noise
from host.randomness import SystemRandomness
from protocol.arithmetic.ring import SEED_BYTES
from protocol.errors import ConfigurationError, UnusableUpdate
from protocol.messages.control import Study
from protocol.shared_model import apply_aggregate, first_model


class TorchLearner:
    """The study's model on this site's data.

    ``folder`` keeps the model's personal layers, which leave the site in no message. ``remarks`` stop nothing.
    """

    def __init__(
        self,
        study: Study,
        data: Path,
        plugin: Path | None,
        device: str,
        training_seed: int,
        folder: Path,
        sources: ModelSources = NO_SOURCES,
    ) -> None:
        """Raises: ConfigurationError, UnusableUpdate, where data, plug-in or model do not fit the study"""
        self._study, self._seed, self._device = study, training_seed, pick_device(device)
        self._plugin = study_plugin(study, plugin)
        self._data = fitting_data(study, data, self._plugin)
        self.remarks = remarks(study, self._data)
        self._held: Examples | None = None
        self._model = study_model(study, self._plugin, sources)
        require_batches(self._model, len(self._data.train), study.training.batch_size)
        self._assessor = assessor(study, self._plugin, self._device)
        self._loss = site_loss(study, self._plugin, self._data.train.y)
        self._assessor.try_once(study, self._model, self._data.train)
        self._first_personal = personal_vector(self._model)
        self._personal = PersonalState(folder)

    def prepare(self) -> None:
        """One round of training that is thrown away: torch loads and compiles what it needs the first time."""
        self._train(first_model(self._study), 1)

    def update(self, model: Vector, round_number: int) -> Vector:
        """The update of the shared layers; what the personal layers learned is on disk before it is returned."""
        trained = self._train(model, round_number)
        if len(trained.personal):
            self._personal.save(round_number, trained.personal, self._study.digest())
        return trained.update

    def apply(self, kept: Vector, aggregate: Vector) -> Vector:
        """The model and the server optimiser's moments after a round, the same bits at every site.

        Shapes: float32[S * D], float32[D] -> float32[S * D]
        """
        return apply_aggregate(kept, aggregate, self._study.rule, self._study.training.server_learning_rate)

    def probe(self, model: Vector) -> Vector:
        """The gradient of the loss on this site's validation examples. Raises: ConfigurationError without any"""
        if not self._data.validation:
            raise ConfigurationError(
                f"rule {self._study.rule.name.value!r} measures sites by this site's validation loss: put examples "
                f"that it neither trains nor tests on into {VALIDATION_FILE} beside train.npz"
            )
        self._load(model)
        return loss_gradient(self._model, self._data.validation, self._device, self._assessor.loss)

    def validation_loss(self, model: Vector) -> float | None:
        """Mean loss on this site's validation examples; None where it sets none apart."""
        if not self._data.validation:
            return None
        self._load(model)
        return self._assessor.evaluate(self._model, self._data.validation).loss

    def update_noise(self, model: Vector, round_number: int) -> UpdateNoise:
        """Return the noise of this site's clipped update of a round; a requester asks it of itself. Raises:
        UnusableUpdate
        """
        self._load(model, round_number)
        return update_noise(
            self._model,
            self._data.train,
            self._study.training,
            round=round_number,
            seed=self._seed,
            device=self._device,
            clip_norm=self._study.parameters.clip_norm,
            loss=self._loss,
        )

    def sample_count(self) -> int:
        """Number of training examples."""
        return len(self._data.train)

    def class_counts(self) -> tuple[int, ...]:
        """Number of training examples of each of the model's classes."""
        counts = np.bincount(self._data.train.y, minlength=self._study.model.classes)
        return tuple(int(count) for count in counts)

    def ridge(self, penalty: float) -> Matrix:
        """This site's own ridge regression on its training examples, for the ranking.

        Shapes: -> float64[features + 1, classes]
        """
        return ridge_model(self._data.train, self._study.model.classes, penalty)

    def judging_form(self) -> JudgingForm:
        """The examples on which this site, the requester, judges the others' models. Raises: UnusableUpdate"""
        return judging_form(self._data.train, self._data.validation, self._study.model.classes)

    def scores(self, model: Vector) -> tuple[Score, ...]:
        """The task's and the plug-in's metrics on the site's test examples; nothing when it has none."""
        if not self._data.test:
            return ()
        self._load(model)
        return self._assessor.assess(self._model, self._data.test, self._data.train).scores

    def final_scores(self, model: Vector, samples: int) -> FinalScores | None:
        """The same with bootstrap intervals, drawn from the study's seed or digest; None without test examples."""
        if not self._data.test:
            return None
        self._load(model)
        seed = int(self._study.digest()[:8], 16)
        return self._assessor.final_scores(self._model, self._data.test, self._data.train, samples, seed)

    def predicted(self, model: Vector) -> Predicted | None:
        """The model's outputs for the site's test examples; None without any, or for a task without metrics."""
        if not self._data.test:
            return None
        self._load(model)
        return self._assessor.predicted(self._model, self._data.test, self._data.train)

    def hold_out(self, finish: FinishTable) -> Self:
        """Hold examples out for a local finish; they take part in no round from here on.

        Drawn from the study's seed or, where it pins none, from this site's own.
        Raises: ConfigurationError where nothing is left on either side, or the model has no local finish
        """
        seen, self._held = finish.parts(self._data.train, self._seed if self._study.seed is None else self._study.seed)
        require_batches(self._model, len(seen), self._study.training.batch_size)
        self._data = replace(self._data, train=seen)
        self._loss = site_loss(self._study, self._plugin, seen.y)
        self._local_finish().require_possible()
        return self

    def finish(self, model: Vector) -> Finished:
        """The model moved on this site's own examples, those held out among them. Raises: UnusableUpdate"""
        load_vector(self._model, model)
        return self._local_finish().run(model)

    def _local_finish(self) -> LocalFinish:
        if self._held is None:
            raise ConfigurationError(f"study {self._study.name!r} was created without [finish]")
        return LocalFinish(self._model, self._loss, self._study.training.l2, self._data.train, self._held)

    def _train(self, model: Vector, round_number: int) -> LocalRound:
        study, data = self._study, self._data.train
        self._load(model, round_number)
        if study.record_noise is None:
            return train_round(
                self._model,
                data,
                study.training,
                round=round_number,
                seed=self._seed,
                device=self._device,
                loss=self._loss,
            )
        noised = private_round(
            self._model,
            data,
            study.training,
            study.record_noise,
            round=round_number,
            seed=SystemRandomness().bytes(SEED_BYTES, "noise"),  # whatever seed the study or this site's settings have
            device=self._device,
            loss=self._loss,
        )
        return LocalRound(noised, self._first_personal)

    def _load(self, model: Vector, round_number: int | None = None) -> None:
        """Shared layers into the model, and the newest personal ones, or those that a round's training starts from."""
        own = self._personal.latest() if round_number is None else self._personal.before(round_number)
        load_vector(self._model, model)
        load_personal(self._model, self._first_personal if own is None else own)


def try_study(
    study: Study,
    data: Path,
    plugin: Path | None,
    device: str,
    sources: ModelSources = NO_SOURCES,
    finish: FinishTable | None = None,
) -> tuple[str, ...]:
    """Try what a site's agent would try first: its data, the model and the plug-in, and a local finish.

    Returns: what a person should know
    Raises: ConfigurationError that names what to change; UnusableUpdate for a model that cannot be shared
    """
    learner = TorchLearner(study, data, plugin, device, 0, data, sources)
    if finish is not None:
        learner.hold_out(finish)
    return learner.remarks


class ForeignLearner(TorchLearner):
    """The model is the study's, scores are Moiety's; the trainer moves the model, and how far is the update."""

    def __init__(
        self,
        study: Study,
        data: Path,
        device: str,
        training_seed: int,
        folder: Path,
        trainer: TrainerSettings,
        sources: ModelSources = NO_SOURCES,
    ) -> None:
        """Raises: ConfigurationError, where the study asks for what a trainer of the site's own cannot give"""
        _require_trainable(study)
        self._trainer = ForeignTrainer(study, trainer, data, folder)
        super().__init__(study, data, None, device, training_seed, folder, sources)

    def prepare(self) -> None:
        """One round that is thrown away: a trainer that does not run here is named before the site says it is ready.

        Raises: ConfigurationError
        """
        try:
            self._trainer.train(first_model(self._study), 1)
        except UnusableUpdate as failed:
            raise ConfigurationError(f"study {self._study.name!r}: {failed.detail}") from None

    def update(self, model: Vector, round_number: int) -> Vector:
        """(before - after) / local learning rate, as of local SGD. Raises: UnusableUpdate"""
        after = self._trainer.train(model, round_number)
        moved = (model.astype(np.float64) - after) / self._study.training.local_learning_rate
        return moved.astype(np.float32)

    def update_noise(self, model: Vector, round_number: int) -> UpdateNoise:
        """Raises: ConfigurationError: nobody knows what a trainer of the site's own draws"""
        raise ConfigurationError(
            f"study {self._study.name!r}: its rule estimates the noise of the requester's own training; take [trainer] "
            "out of the requester's settings"
        )

    def hold_out(self, finish: FinishTable) -> Self:
        """Raises: ConfigurationError: the trainer reads its data itself, those held out too"""
        raise ConfigurationError(
            f"study {self._study.name!r} has a [finish], which keeps examples out of training; a [trainer] reads its "
            "data itself: take one of them away"
        )


def _require_trainable(study: Study) -> None:
    spec, training = study.model, study.training
    wrong = None
    if spec.kind == "plugin":
        wrong = "its model is a plug-in's, which trains itself"
    elif spec.buffers is not None or spec.personal:
        wrong = "its model has statistics or layers that a trainer of the site's own is not told of"
    elif training.update != "local_sgd":
        wrong = f"its updates are of kind {training.update!r}: only those of 'local_sgd' are (before - after) / rate"
    elif study.record_noise is not None:
        wrong = "its updates have noise per record, which needs every record's gradient clipped"
    if wrong is not None:
        raise ConfigurationError(f"study {study.name!r} cannot be trained by this site's [trainer]: {wrong}")
