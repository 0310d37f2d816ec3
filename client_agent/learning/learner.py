"""The learning side of one site in one study: updates, the applied aggregate, metrics.

torch is loaded when a ``TorchLearner`` is made, so that everything else of the agent runs without it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np
import structlog
from numpy.typing import NDArray

from client_agent.architectures.sources import NO_SOURCES, ModelSources
from client_agent.learning.at_requester.finish_table import Finished, FinishTable
from client_agent.learning.data import VALIDATION_FILE, Examples
from client_agent.learning.ridge import JudgingForm, Matrix, judging_form, ridge_model
from client_agent.scoring.score import FinalScores, Score
from host.randomness import SystemRandomness
from protocol.arithmetic.ring import SEED_BYTES
from protocol.errors import ConfigurationError
from protocol.messages.control import PrivacySpec, Study
from protocol.shared_model import apply_aggregate, first_model

if TYPE_CHECKING:
    import torch
    from torch import nn

    from client_agent.learning.at_requester.finish import LocalFinish
    from client_agent.learning.at_requester.update_noise import UpdateNoise
    from client_agent.learning.data import LocalData
    from client_agent.learning.evaluation import Assessor
    from client_agent.learning.personal_state import PersonalState
    from client_agent.learning.plugin import Plugin
    from client_agent.learning.trainer import LocalRound
    from client_agent.scoring.predicted import Predicted
    from client_agent.tasks.losses import Loss

Vector = NDArray[np.float32]
PERSONAL_SEED = 0
_log = structlog.get_logger("agent")


class Learner(Protocol):
    """A site's model with its data; vectors are float32[D] on the CPU.

    ``kept`` is the model with the server optimiser's moments behind it (protocol.shared_model).
    """

    def prepare(self) -> None: ...

    def update(self, model: Vector, round_number: int) -> Vector: ...

    def apply(self, kept: Vector, aggregate: Vector) -> Vector: ...

    def probe(self, model: Vector) -> Vector: ...

    def update_noise(self, model: Vector, round_number: int) -> UpdateNoise: ...

    def sample_count(self) -> int: ...

    def class_counts(self) -> tuple[int, ...]: ...

    def ridge(self, penalty: float) -> Matrix: ...

    def judging_form(self) -> JudgingForm: ...

    def validation_loss(self, model: Vector) -> float | None: ...

    def scores(self, model: Vector) -> tuple[Score, ...]: ...

    def final_scores(self, model: Vector, samples: int) -> FinalScores | None: ...

    def finish(self, model: Vector) -> Finished: ...


class TorchLearner:
    """The study's model on this site's data.

    ``personal_folder`` is where the model's personal layers are kept, which leave the site in no message.
    """

    def __init__(
        self,
        study: Study,
        data: Path,
        plugin: Path | None,
        device: str,
        training_seed: int,
        personal_folder: Path | None = None,
        sources: ModelSources = NO_SOURCES,
    ) -> None:
        from client_agent.architectures.statistics import require_batches
        from client_agent.learning.check_data import fitting_data, remarks
        from client_agent.learning.flat_vector import pick_device
        from client_agent.learning.plugin import assessor, site_loss
        from client_agent.learning.trial import try_once

        self._study = study
        self._seed = training_seed
        self._device: torch.device = pick_device(device)
        self._plugin = _plugin(study, plugin)
        self._data: LocalData = fitting_data(study, data, self._plugin)
        for remark in remarks(study, self._data):
            _log.warning("data_remark", study=study.name, detail=remark)
        self._held: Examples | None = None
        self._model: nn.Module = self._fresh_model(sources)
        require_batches(self._model, len(self._data.train), study.training.batch_size)
        self._assessor: Assessor = assessor(study, self._plugin, self._device)
        self._loss: Loss = site_loss(study, self._plugin, self._data.train.y)
        try_once(study, self._model, self._data.train, self._assessor)
        self._personal = self._personal_state(personal_folder)

    def prepare(self) -> None:
        """One round of training that is thrown away: torch loads and compiles what it needs the first time."""
        self._train(first_model(self._study), 1)

    def update(self, model: Vector, round_number: int) -> Vector:
        """The update of the shared layers; what the personal layers learned is on disk before it is returned."""
        trained = self._train(model, round_number)
        if self._personal is not None:
            self._personal.save(round_number, trained.personal, self._study.digest())
        return trained.update

    def apply(self, kept: Vector, aggregate: Vector) -> Vector:
        """The model and the server optimiser's moments after a round, the same bits at every site.

        Shapes: float32[S * D], float32[D] -> float32[S * D]
        """
        return apply_aggregate(kept, aggregate, self._study.rule, self._study.training.server_learning_rate)

    def probe(self, model: Vector) -> Vector:
        """The gradient of the loss on this site's validation examples. Raises: ConfigurationError without any"""
        from client_agent.learning.trainer import loss_gradient

        if self._data.validation is None or len(self._data.validation) == 0:
            raise ConfigurationError(
                f"rule {self._study.rule.name.value!r} measures sites by this site's validation loss: put examples "
                f"that it neither trains nor tests on into {VALIDATION_FILE} beside train.npz"
            )
        self._load(model, None if self._personal is None else self._personal.latest())
        return loss_gradient(self._model, self._data.validation, self._device, self._assessor.loss)

    def validation_loss(self, model: Vector) -> float | None:
        """Mean loss on this site's validation examples; None where it sets none apart."""
        if self._data.validation is None or len(self._data.validation) == 0:
            return None
        self._load(model, None if self._personal is None else self._personal.latest())
        return self._assessor.evaluate(self._model, self._data.validation).loss

    def update_noise(self, model: Vector, round_number: int) -> UpdateNoise:
        """Return the noise of this site's clipped update of a round; a requester asks it of itself. Raises:
        UnusableUpdate
        """
        from client_agent.learning.at_requester.update_noise import update_noise

        self._load(model, None if self._personal is None else self._personal.before(round_number))
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
        if len(self._data.test) == 0:
            return ()
        self._load(model, None if self._personal is None else self._personal.latest())
        return self._assessor.assess(self._model, self._data.test, self._data.train).scores

    def final_scores(self, model: Vector, samples: int) -> FinalScores | None:
        """The same with bootstrap intervals, drawn from the study's seed or digest; None without test examples."""
        if len(self._data.test) == 0:
            return None
        self._load(model, None if self._personal is None else self._personal.latest())
        seed = int(self._study.digest()[:8], 16)
        return self._assessor.final_scores(self._model, self._data.test, self._data.train, samples, seed)

    def predicted(self, model: Vector) -> Predicted | None:
        """The model's outputs for the site's test examples; None without any, or for a task without metrics."""
        if len(self._data.test) == 0:
            return None
        self._load(model, None if self._personal is None else self._personal.latest())
        return self._assessor.predicted(self._model, self._data.test, self._data.train)

    def hold_out(self, finish: FinishTable) -> Self:
        """Hold examples out for a local finish; they take part in no round from here on.

        Drawn from the study's seed or, where it pins none, from this site's own.
        Raises: ConfigurationError where nothing is left on either side, or the model has no local finish
        """
        from client_agent.architectures.statistics import require_batches
        from client_agent.learning.plugin import site_loss

        seen, self._held = finish.parts(self._data.train, self._seed if self._study.seed is None else self._study.seed)
        require_batches(self._model, len(seen), self._study.training.batch_size)
        self._data = replace(self._data, train=seen)
        self._loss = site_loss(self._study, self._plugin, seen.y)
        self._local_finish().require_possible()
        return self

    def finish(self, model: Vector) -> Finished:
        """The model moved on this site's own examples, those held out among them. Raises: UnusableUpdate"""
        self._load(model, None)
        return self._local_finish().run(model)

    def _local_finish(self) -> LocalFinish:
        from client_agent.learning.at_requester.finish import LocalFinish

        if self._held is None:
            raise ConfigurationError(f"study {self._study.name!r} was created without [finish]")
        return LocalFinish(self._model, self._loss, self._study.training.l2, self._data.train, self._held)

    def _train(self, model: Vector, round_number: int) -> LocalRound:
        from client_agent.learning.trainer import LocalRound, train_round

        self._load(model, None if self._personal is None else self._personal.before(round_number))
        if self._study.record_noise is not None:
            return LocalRound(self._noised(self._study.record_noise, round_number), self._first_personal)
        return train_round(
            self._model,
            self._data.train,
            self._study.training,
            round=round_number,
            seed=self._seed,
            device=self._device,
            loss=self._loss,
        )

    def _noised(self, privacy: PrivacySpec, round_number: int) -> Vector:
        """Add noise drawn from the operating system, whatever seed the study or this site's settings have."""
        from client_agent.learning.private.private_round import private_round

        return private_round(
            self._model,
            self._data.train,
            self._study.training,
            privacy,
            round=round_number,
            seed=SystemRandomness().bytes(SEED_BYTES, "noise"),
            device=self._device,
            loss=self._loss,
        )

    def _load(self, model: Vector, personal: Vector | None) -> None:
        """Shared and personal layers into the model; None: the personal layers' initial values."""
        from client_agent.learning.flat_vector import load_personal, load_vector

        load_vector(self._model, model)
        load_personal(self._model, self._first_personal if personal is None else personal)

    def _personal_state(self, folder: Path | None) -> PersonalState | None:
        from client_agent.learning.flat_vector import personal_vector
        from client_agent.learning.personal_state import PersonalState

        self._first_personal: Vector = personal_vector(self._model)
        if len(self._first_personal) == 0:
            return None
        if folder is None:
            raise ConfigurationError(
                f"study {self._study.name!r} has layers that stay at the site, and there is no folder to keep them in"
            )
        return PersonalState(folder)

    def _fresh_model(self, sources: ModelSources) -> nn.Module:
        """The layers; shared values are loaded before every use, personal ones begin as the module makes them."""
        from client_agent.learning.models import build_model

        if self._plugin is not None:
            return self._plugin.model(self._study.model, PERSONAL_SEED)
        return build_model(self._study.model, PERSONAL_SEED, sources)


def _plugin(study: Study, path: Path | None) -> Plugin | None:
    if study.model.kind != "plugin":
        return None
    if path is None:
        raise ConfigurationError(
            f"study {study.name!r} uses a plug-in model: set key 'plugin' to the site's Python file"
        )
    if study.training.class_weights != "none":
        raise ConfigurationError(
            f"study {study.name!r}: class_weights belong to the built-in loss; a plug-in's loss() weighs classes itself"
        )
    from client_agent.learning.plugin import load_plugin

    return load_plugin(path)
