"""Strictly convex quadratic programmes whose constraints an oracle names one by one, exactly by an active set.

Source: Goldfarb, Idnani, "A numerically stable dual method for solving strictly convex quadratic programs", Math.
        Programming 27, 1983. The oracle makes room for constraints that are too many to write down.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ProtocolViolation

Reals = NDArray[np.float64]
_FLAT: Final = 1e-12
_MOST_STEPS: Final = 100_000


@dataclass(frozen=True, eq=False)
class Cut:
    """<normal, x> >= bound."""

    normal: Reals = field(repr=False)
    bound: float = 0.0

    def lacks(self, x: Reals) -> float:
        """Return by how much x falls short; not positive where it does not."""
        return self.bound - float(self.normal @ x)


MostViolated = Callable[[Reals], Cut | None]
"""The cut that x violates most; None when x is feasible."""


@dataclass(eq=False)
class _Active:
    """The cuts that hold with equality, and their multipliers."""

    inverse: Reals
    normals: list[Reals] = field(default_factory=list)
    multipliers: list[float] = field(default_factory=list)

    def directions(self, cut: Cut) -> tuple[Reals, Reals]:
        """Return x's direction, and the multipliers' decrease, per unit of the new cut's multiplier."""
        towards = self.inverse @ cut.normal
        if not self.normals:
            return towards, np.zeros(0)
        N = np.stack(self.normals, axis=1)
        moved = self.inverse @ N
        falls = np.asarray(np.linalg.lstsq(N.T @ moved, N.T @ towards, rcond=None)[0], dtype=np.float64)
        return towards - moved @ falls, falls

    def drop(self, place: int) -> None:
        del self.normals[place], self.multipliers[place]


def minimiser(G: Reals, a: Reals, violated: MostViolated) -> Reals:
    """The x that minimises x'Gx / 2 + a'x over all cuts.

    Shapes:   G float64[n, n] positive definite, a float64[n] -> float64[n]
    Raises:   ProtocolViolation when the cuts have no point in common
    """
    inverse = np.linalg.inv(G)
    x, active = -inverse @ a, _Active((inverse + inverse.T) / 2)
    for _ in range(_MOST_STEPS):
        cut = violated(x)
        if cut is None:
            return x
        x = _satisfied(x, cut, active)
    raise ProtocolViolation(f"no optimal weights after {_MOST_STEPS} steps; what was measured is not usable")


def _satisfied(x: Reals, cut: Cut, active: _Active) -> Reals:
    """Make one more cut active; cuts whose multiplier falls to 0 on the way leave."""
    multiplier, scale = 0.0, float(cut.normal @ active.inverse @ cut.normal)
    for _ in range(_MOST_STEPS):
        move, falls = active.directions(cut)
        slope = float(cut.normal @ move)
        full = cut.lacks(x) / slope if slope > _FLAT * scale else np.inf
        held = [(active.multipliers[i] / fall, i) for i, fall in enumerate(falls) if fall > 0]
        partial, place = min(held, default=(np.inf, -1))
        step = min(full, partial)
        if not np.isfinite(step):
            break
        active.multipliers = [u - step * fall for u, fall in zip(active.multipliers, falls, strict=True)]
        multiplier += step
        if np.isfinite(full):
            x = x + step * move
        if full <= partial:
            active.normals.append(cut.normal)
            active.multipliers.append(multiplier)
            return x
        active.drop(place)
    raise ProtocolViolation("the weights' constraints contradict each other; check the policy and least_contributors")
