"""Is the federated model better here than one that this site would have trained alone?

The baseline begins with the study's first model and takes as many rounds of the same steps as the federated model had,
with this site's data alone: the same batches, clip norm and server step. Both are judged on the same test examples of
this site, so the difference is taken example by example: in every bootstrap draw both models see the same examples.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from client_agent.learning.learner import Vector
from client_agent.learning.metrics import Paired, paired_scores
from client_agent.learning.torch_learner import TorchLearner
from client_agent.settings import AgentSettings
from client_agent.site.context import site_learner
from client_agent.site.models import FinishedModel
from client_agent.study.outbox import PRETRAINED, load_pretrained
from host.frozen import Frozen
from protocol.arithmetic.fixed_point import check_finite, clip
from protocol.errors import ConfigurationError
from protocol.messages.control import Study
from protocol.shared_model import first_model, initial_state, model_digest_of, model_part

if TYPE_CHECKING:
    from client_agent.model.site_model import HeldModel


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
