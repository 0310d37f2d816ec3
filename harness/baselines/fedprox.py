"""FedProx: a site's steps are drawn back to the model that it received.

    w <- w - lr (grad f(w) + mu (w - w_t))        over the round's mini-batches, from w = w_t

With mu = 0 it is FedAvg.

Source: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith 2020, Federated Optimization in Heterogeneous Networks, Algorithm 2
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from client_agent.learning.flat_vector import Vector
from harness.baselines.site import LocalProblem, SiteRound, nothing, tensor


@dataclass(frozen=True)
class FedProx:
    """The proximal term is added to every mini-batch's gradient."""

    mu: float
    personal = False
    keeps_common = False

    def first_memory(self, first: Vector) -> Vector:
        return nothing()

    def train(self, problem: LocalProblem, shared: Vector, memory: Vector, common: Vector) -> SiteRound:
        received, w = tensor(shared), tensor(shared)
        total = torch.zeros_like(w)
        for rows in problem.batches():
            step = problem.slope(w, rows) + self.mu * (w - received)
            total.add_(step, alpha=problem.factor)
            w = w - problem.rate * step
        return SiteRound(total.numpy(), nothing())
