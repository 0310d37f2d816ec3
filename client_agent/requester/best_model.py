"""Keep the best of the models that sums of updates made, by the requester's own validation examples."""

from __future__ import annotations

import math

from client_agent.requester.study import RequesterStudy
from client_agent.site.models.kept_model import Kept, KeptModel, kept_model, save_kept


def keep_best(owner: RequesterStudy) -> None:
    """After a sum; nothing without a validation part. The earlier of two models with the same loss stays."""
    model, version = owner.require_model(), owner.state.model_version or 0
    loss, best = owner.learner.validation_loss(model), kept_model(owner.journal, Kept.BEST)
    if loss is None or not math.isfinite(loss):
        return
    if best is None or best.validation_loss is None or loss < best.validation_loss:
        save_kept(owner.journal, Kept.BEST, KeptModel(version=version, validation_loss=loss), model)
