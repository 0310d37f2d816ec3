"""A study with poisoners under one rule, and the same one without."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, SupportsFloat

import numpy as np
import torch

from client_agent.learning.flat_vector import load_vector
from client_agent.learning.models import build_model
from client_agent.learning.study_file import checked_study_table
from harness.adversaries.poisoning.lines import PoisonedLine, RunKey, run_key
from harness.adversaries.poisoning.poisoned_sum import PoisonedSum
from harness.adversaries.poisoning.poisons import Poison
from harness.adversaries.poisoning.tampered import TARGET, tampered, with_trigger
from harness.datasets.registry import load_data
from harness.datasets.site_data import Federation, SiteData
from harness.engine.history import RunHistory
from harness.engine.loop import run_rounds
from harness.engine.protected_sum import secure_sum
from harness.engine.run_state import Conditions
from harness.engine.training import one_thread
from harness.engine.updates import PlainSum, Summing
from harness.simulate.case import Case
from harness.simulate.case_run import request_for
from harness.simulate.study_files import simulated_study
from protocol.errors import ConfigurationError
from protocol.wire.messages import RuleName, Study

_DIGITS: Final = 5


@dataclass(frozen=True)
class Poisoned:
    """One study: ``poisoners`` of its contributors, which ones goes by seed, send or train on ``poison``."""

    case: Case
    variant: str
    seed: int
    poisoners: int
    poison: Poison | None
    data: Path | None = None
    secure: bool = False

    @property
    def key(self) -> RunKey:
        """As the line's that comes of it."""
        protection = "secure" if self.secure else "plain"
        return run_key(self.case.name, self.variant, protection, self.seed, self.poisoners, self.poison)

    def line(self) -> PoisonedLine:
        """Raises: ConfigurationError for data or settings that do not fit"""
        with one_thread():
            return self._line(time.monotonic())

    def _line(self, begun: float) -> PoisonedLine:
        federation = load_data(request_for(self.case, self.data, None, self.seed))
        chosen = self._chosen(federation)
        if self.poison is not None:
            federation = tampered(federation, self.poison, chosen)
        study = self._study(federation)
        summing = PoisonedSum(self._summing(study, federation), chosen, self.poison, self.seed)
        conditions = Conditions(policy=self.case.table.policy.policy(), works_out_isolation=False)
        protection = "secure" if self.secure else "plain"
        history = run_rounds(study, federation.sites, summing, conditions, protection=protection)
        return PoisonedLine(
            study=self.case.name,
            variant=self.variant,
            rule=history.rule.value,
            protection=protection,
            seed=self.seed,
            sites=len(federation.sites),
            poisoners=len(chosen),
            poison=self.poison,
            end=history.end.value,
            released=history.shared_rounds,
            weight=_rounded(np.mean(summing.weight)) if summing.weight else 0.0,
            accuracy=_rounded(history.test_accuracy),
            log_loss=_rounded(history.rounds[-1].test_loss),
            triggered=_rounded(_triggered(study, history, federation.requester)),
            seconds=round(time.monotonic() - begun, 3),
        )

    def _chosen(self, federation: Federation) -> tuple[str, ...]:
        names = federation.names_of_sites[1:]
        if not 0 <= self.poisoners < len(names):
            raise ConfigurationError(f"{self.poisoners} poisoners: choose 0 to {len(names) - 1} of the contributors")
        return tuple(names[(self.seed + place) % len(names)] for place in range(self.poisoners))

    def _study(self, federation: Federation) -> Study:
        """The case's study; multi-Krum is told how many poisoners there are, or as many as it can stand."""
        tables = dict(self.case.variant(self.variant).tables)
        rule = dict(tables["rule"])
        if rule["name"] == RuleName.MULTI_KRUM.value:
            rule["byzantine"] = min(self.poisoners, (len(federation.sites) - 3) // 2)
        table = checked_study_table({**tables, "rule": rule}, f"{self.case.source}: variant {self.variant!r}")
        return simulated_study(table, self.case.source, federation, self.seed)

    def _summing(self, study: Study, federation: Federation) -> Summing:
        return secure_sum(study, federation.sites, "dealer") if self.secure else PlainSum()


def _triggered(study: Study, history: RunHistory, requester: SiteData) -> float:
    """How many test examples of other classes the final model takes for the target once they carry the trigger."""
    others = requester.test.y != TARGET
    model = build_model(study.model, 0)
    load_vector(model, history.final_model)
    model.eval()
    with torch.no_grad():
        outputs = model(torch.from_numpy(with_trigger(requester.test.X)[others]))
    return float((outputs.argmax(dim=1) == TARGET).float().mean())


def _rounded(value: SupportsFloat) -> float:
    return float(f"{float(value):.{_DIGITS}g}")
