"""How a round's updates of all sites become one average: in the open, or under the protocol.

The first site stands for the requester of FedAvg; the rule weighs all sites alike, and nothing about single sites is
opened. Every round is against a new model, so nothing that the sites' policy remembers bears on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from torch import nn

from client_agent.learning.flat_vector import Vector
from harness.datasets.site_data import SiteData
from harness.engine.announcing import announce, lists_to_try
from harness.engine.run_state import EVERYBODY, Run, RunState
from harness.engine.secure import SecureSum, secure_sum
from harness.engine.site_updates import ClippedUpdate
from harness.engine.summing import RoundInputs, everybody_in_range
from protocol.errors import ConfigurationError, ProtocolViolation
from protocol.policy.memory import SiteMemory
from protocol.policy.site_policy import SitePolicy
from protocol.rules.interface import SiteFacts
from protocol.rules.registry import rule_for
from protocol.wire.messages import RuleName, Study

Averaging: TypeAlias = Callable[[int, Sequence[ClippedUpdate]], Vector]
"""From a round's number, counted from 1, and the clipped updates in the sites' order to their average, float32[D]."""


def in_the_open(number: int, updates: Sequence[ClippedUpdate]) -> Vector:
    """The mean in float64, rounded once."""
    total = np.zeros(len(updates[0].values), np.float64)
    for update in updates:
        total += update.values
    averaged: Vector = (total / len(updates)).astype(np.float32)
    return averaged


@dataclass(frozen=True, eq=False)
class UnderTheProtocol:
    """Every round announced, checked against the sites' policy, shared, range-checked, summed and opened."""

    run: Run
    summing: SecureSum = field(repr=False)

    @classmethod
    def of(cls, study: Study, sites: Sequence[SiteData], model: nn.Module) -> UnderTheProtocol:
        """Raises: ConfigurationError for another rule than the uniform average"""
        if study.rule.name is not RuleName.FEDAVG or study.rule.norm_bound is not None:
            raise ConfigurationError(
                f"study {study.name!r}: a comparison of personal models averages all sites alike; under the protocol "
                "its rule is 'fedavg', without norm_bound"
            )
        rule = rule_for(study.rule, batch_size=study.training.batch_size, grid=study.parameters.weight_grid)
        summing = secure_sum(study, sites)
        contributors = tuple(sites[1:])
        run = Run(study, sites[0], contributors, rule, "next_round", SitePolicy(), EVERYBODY, model, summing)
        return cls(run, summing)

    def __call__(self, number: int, updates: Sequence[ClippedUpdate]) -> Vector:
        """Raises: PolicyRefusal, ProtocolViolation when the round is skipped; AggregateOutOfBounds"""
        run, state = self.run, self._state(number)
        announced = announce(
            run, state, number, lists_to_try(run, state)[-1:]
        )  # nobody is ever away: all listed are needed
        requester, (own, *others) = run.requester.name, updates
        given = RoundInputs(
            announced.announcement,
            announced.weight_list,
            requester,
            own,
            dict(zip(run.names, others, strict=True)),
            None,
            everybody_in_range(announced.announcement, requester),
            run.study.parameters.clip_norm,
        )
        averaged = self.summing.updates(given).average
        if averaged is None:
            raise ProtocolViolation(f"round {number} was skipped: too few sites are left after the checks")
        return averaged

    def _state(self, number: int) -> RunState:
        """The study before a round: everybody is listed, and the model is as old as the round."""
        facts = tuple(SiteFacts(name=site.name, samples=len(site.train)) for site in self.run.contributors)
        rule_state = self.run.rule.admit(self.run.rule.init(()), facts)
        return RunState(np.zeros(0, np.float32), rule_state, SiteMemory(), model_version=number - 1)
