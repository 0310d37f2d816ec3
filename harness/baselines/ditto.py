"""Ditto: beside the shared model of FedAvg every site has one of its own, drawn to the shared one.

    shared     w <- w - lr grad f(w)                         its steps are the update, as in FedAvg
    personal   v <- v - lr (grad f(v) + lambda (v - w_t))    on the same mini-batches; never leaves the site

w_t is the shared model at the beginning of the round; v begins as the first model. A site uses v.

Source: Li, Hu, Beirami, Smith 2021, Ditto: Fair and Robust Federated Learning Through Personalization, Algorithm 1
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from client_agent.learning.flat_vector import Vector
from harness.baselines.site import LocalProblem, SiteRound, tensor


@dataclass(frozen=True)
class Ditto:
    """A site's memory is its personal model."""

    pull: float
    personal = True
    keeps_common = False

    def first_memory(self, first: Vector) -> Vector:
        return first.copy()

    def train(self, problem: LocalProblem, shared: Vector, memory: Vector, common: Vector) -> SiteRound:
        received, w, v = tensor(shared), tensor(shared), tensor(memory)
        total = torch.zeros_like(w)
        for rows in problem.batches():
            step = problem.slope(w, rows)
            own_step = problem.slope(v, rows) + self.pull * (v - received)
            total.add_(step, alpha=problem.factor)
            w, v = w - problem.rate * step, v - problem.rate * own_step
        return SiteRound(total.numpy(), v.numpy(), v.numpy())
