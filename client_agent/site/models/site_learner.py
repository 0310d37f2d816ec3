"""A site's learner, by its settings: Moiety's own training, or the site's trainer."""

from __future__ import annotations

from pathlib import Path

from client_agent.learning.learner import TorchLearner
from client_agent.settings import AgentSettings
from protocol.messages.control import Study


def site_learner(study: Study, settings: AgentSettings, seed: int, folder: Path) -> TorchLearner:
    """``folder`` is the study's at this site. Raises: ConfigurationError"""
    if settings.trainer.kind is None:
        return TorchLearner(study, settings.data, settings.plugin, settings.device, seed, folder, settings.sources)
    from client_agent.learning.foreign.learner import ForeignLearner

    return ForeignLearner(study, settings.data, settings.device, seed, folder, settings.trainer, settings.sources)
