"""A site whose tags are off by one, in whatever process it learns."""

from __future__ import annotations

import importlib
import threading
from typing import Any, Final

import numpy as np

from client_agent.learning.learner import Learner
from client_agent.settings import AgentSettings
from client_agent.study.contribute import ContributionRecord, make_contribution
from harness.federation.memory.learners import light_learner
from protocol.arithmetic.ring import Ring
from protocol.protection.interface import AtSite
from protocol.tags import TagSums

SITE: Final = "c2"
_OF = threading.local()


def made(at: AtSite, *rest: Any) -> ContributionRecord:
    """Takes the place of ``make_contribution``."""
    _OF.site = at.site
    try:
        return make_contribution(at, *rest)
    finally:
        _OF.site = ""


class WrongSums(TagSums):
    """Takes the place of ``TagSums`` where tags are appended."""

    def values(self) -> Ring:
        right: Ring = super().values()
        return right + np.uint64(getattr(_OF, "site", "") == SITE)


REPLACED: Final = (
    ("client_agent.study.participant", "make_contribution", made),
    ("protocol.protection.shares", "TagSums", WrongSums),
)


def learner_with_wrong_tags(settings: AgentSettings, study: Any, place: int) -> Learner:
    """A light learner; its process makes wrong tags from then on, where it is that site's."""
    for module, name, instead in REPLACED:
        setattr(importlib.import_module(module), name, instead)
    return light_learner(settings, study, place)
