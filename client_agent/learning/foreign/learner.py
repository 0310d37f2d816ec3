"""A learner whose updates come from the site's own trainer; everything else is the torch learner's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from client_agent.architectures.sources import NO_SOURCES, ModelSources
from client_agent.learning.at_requester.finish_table import FinishTable
from client_agent.learning.foreign.trainer import ForeignTrainer, Vector
from client_agent.learning.learner import TorchLearner
from client_agent.trainer_settings import TrainerSettings
from protocol.errors import ConfigurationError, UnusableUpdate
from protocol.messages.control import Study
from protocol.shared_model import first_model

if TYPE_CHECKING:
    from client_agent.learning.at_requester.update_noise import UpdateNoise


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
    """Raises: ConfigurationError"""
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
