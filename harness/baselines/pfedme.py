"""pFedMe: the shared model follows the sites' Moreau envelopes; a site uses the minimiser that it found.

    theta = argmin of f(theta; batch) + lambda / 2 ||theta - w||^2     approximately: gradient steps, from theta = w
    w <- w - lr lambda (w - theta)                                     over the round's mini-batches, from w = w_t
    w_(t+1) = (1 - beta) w_t + beta mean of w_i

beta is the server learning rate over the local one. A site uses the theta of its last mini-batch of the round.

Source: T. Dinh, Tran, Nguyen 2020, Personalized Federated Learning with Moreau Envelopes, Algorithm 1
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from client_agent.learning.flat_vector import Vector
from harness.baselines.site import LocalProblem, Rows, SiteRound, nothing, tensor


@dataclass(frozen=True)
class PFedMe:
    """``steps`` gradient steps of length ``personal_rate`` stand for the paper's accuracy nu."""

    pull: float
    steps: int
    personal_rate: float
    personal = True
    keeps_common = False

    def first_memory(self, first: Vector) -> Vector:
        return nothing()

    def train(self, problem: LocalProblem, shared: Vector, memory: Vector, common: Vector) -> SiteRound:
        w = tensor(shared)
        theta, total = w, torch.zeros_like(w)
        for rows in problem.batches():
            theta = self._minimiser(problem, w, rows)
            step = self.pull * (w - theta)
            total.add_(step, alpha=problem.factor)
            w = w - problem.rate * step
        return SiteRound(total.numpy(), nothing(), theta.numpy())

    def _minimiser(self, problem: LocalProblem, w: torch.Tensor, rows: Rows) -> torch.Tensor:
        theta = w
        for _ in range(self.steps):
            theta = theta - self.personal_rate * (problem.slope(theta, rows) + self.pull * (theta - w))
        return theta
