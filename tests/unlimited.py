"""Runs in one process whose sites ask for no isolation, for tests of everything else, and studies that need that.

Small models over few sites with lists that change every round are what isolation refuses.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from harness.demo.studies import BREAST_CANCER, DIGITS, StudySettings
from harness.engine import loop
from harness.engine.history import RunHistory
from harness.engine.run_state import USUAL, Conditions
from protocol.messages.control import TrainingSpec
from protocol.policy.site_policy import SitePolicy
from tests.kit import small_runs

LONG_BREAST_CANCER: Final[StudySettings] = replace(
    BREAST_CANCER,
    training=TrainingSpec(update="gradient", batch_size=32, server_learning_rate=0.3),
    rounds=30,
    list_every=1,
    least_contributors=3,
)
"""Thirty small steps, a new list in each, and one site may be away."""
CHANGING_DIGITS: Final[StudySettings] = replace(DIGITS, list_every=1, least_contributors=3)


def run_plain(*arguments: Any, policy: SitePolicy | None = None, **options: Any) -> RunHistory:
    return small_runs.run_plain(*arguments, policy=_unlimited(policy), **options)


def run_protected(
    *arguments: Any, policy: SitePolicy | None = None, conditions: Conditions = USUAL, **options: Any
) -> RunHistory:
    return loop.run_protected(*arguments, conditions=replace(conditions, policy=_unlimited(policy)), **options)


def _unlimited(policy: SitePolicy | None) -> SitePolicy:
    return (policy or SitePolicy()).model_copy(update={"least_isolation": 0.0})
