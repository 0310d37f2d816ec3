"""SCAFFOLD: control variates take out of a site's steps what is its own.

    y <- y - lr (grad f(y) - c_i + c)             over the round's K mini-batches, from y = x
    c_i+ = c_i - c + (x - y) / (K lr)             option II
    x <- x + lr_g mean of (y_i - x);  c <- c + sum over those present of (c_i+ - c_i) / N

All controls begin at 0; N counts all sites. lr_g is the server learning rate over the local one.

Source: Karimireddy, Kale, Mohri, Reddi, Stich, Suresh 2020, SCAFFOLD, Algorithm 1
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from client_agent.learning.flat_vector import Vector
from harness.baselines.site import LocalProblem, SiteRound, tensor


@dataclass(frozen=True)
class Scaffold:
    """A site's memory is c_i, the common one c."""

    personal = False
    keeps_common = True

    def first_memory(self, first: Vector) -> Vector:
        return np.zeros_like(first)

    def train(self, problem: LocalProblem, shared: Vector, memory: Vector, common: Vector) -> SiteRound:
        y, own, all_of = tensor(shared), tensor(memory), tensor(common)
        steps, taken = torch.zeros_like(y), 0
        for rows in problem.batches():
            step = problem.slope(y, rows) - own + all_of
            steps, taken = steps + step, taken + 1
            y = y - problem.rate * step
        control = own - all_of + steps / taken  # (x - y) / (K lr) is the mean step
        return SiteRound((problem.factor * steps).numpy(), control.numpy())
