"""Squared errors that the estimate behind Mallows averaging misses, from drawn rounds: docs/results/does_it_pay.md.

One round is drawn: the requester's update g_0 = e_0, with E||e_0||^2 = v_0 = 1 spread over ``parameters`` directions,
and those of ``sites`` others, g_i = d_i + e_i with the same noise and a bias of squared length ``bias`` (in units of
v_0) that points anywhere. The rule knows v_0 and sees the distances, of which the noise is part. Its weights follow
from the same noise that they are to average out, which the criterion does not count: with p parameters K_ij / v_0 has
a standard deviation of about sqrt(2 / p), however often the same examples are measured.

From the round to the loss: let the loss be quadratic with curvature H at the optimum, and weights stay. The rounds
end where the weighted gradient is zero, so the model is H^-1 e away from the optimum, e the weighted gradient's error
there, and the excess loss is e'H^-1 e / 2. Whitened features make H nearly c I; with n examples of a model that is
right, v_0 = c p / n. So the excess loss is ||e||^2 / v_0 times p / 2n.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocol.rules.interface import ListTerms
from protocol.rules.risk import best_choice, plug_in_risk

_TERMS: Final = ListTerms(least=3, colluders=0, largest_share=Fraction(3, 5))
"""Those of the sites' default policy."""
_GRID: Final = 1024


@dataclass(frozen=True)
class SquaredErrors:
    """Mean squared errors of one round's step, in units of v_0: by the rule, training alone, plain averaging."""

    mallows: float
    alone: float
    averaged: float

    @property
    def missed(self) -> float:
        """The rule's less that of the better of both; below 0 where the rule is better."""
        return self.mallows - min(self.alone, self.averaged)


def squared_errors(
    parameters: int, bias: float, *, bias_factor: float = 2.0, sites: int = 3, draws: int = 400, seed: int = 0
) -> SquaredErrors:
    """The means over ``draws`` rounds; ``bias`` is every site's squared bias over v_0, ``bias_factor`` the rule's b."""
    random = np.random.default_rng([seed, parameters, sites])
    found = np.array([_one_round(random, parameters, bias, bias_factor, sites) for _ in range(draws)])
    mallows, alone, averaged = found.mean(axis=0)
    return SquaredErrors(float(mallows), float(alone), float(averaged))


def _one_round(
    random: np.random.Generator, parameters: int, bias: float, bias_factor: float, sites: int
) -> tuple[float, float, float]:
    own = _noise(random, 1, parameters)[0]
    towards = random.normal(size=(sites, parameters))
    biases = np.sqrt(bias) * towards / np.linalg.norm(towards, axis=1, keepdims=True)
    apart = biases + _noise(random, sites, parameters) - own
    risk = plug_in_risk(apart @ apart.T, np.ones(sites), bias_factor)
    weights = best_choice(risk, _TERMS, _GRID).weights()
    averaged = own + apart.sum(axis=0) / (sites + 1)
    return _squared(own + weights @ apart), _squared(own), _squared(averaged)


def _noise(random: np.random.Generator, sites: int, parameters: int) -> NDArray[np.float64]:
    found: NDArray[np.float64] = random.normal(size=(sites, parameters)) / np.sqrt(parameters)
    return found


def _squared(values: NDArray[np.float64]) -> float:
    return float(np.sum(np.square(values)))
