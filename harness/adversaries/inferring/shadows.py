"""Whether a record was trained on, by models that were trained with it and without it (LiRA).

An attacker that can run the study itself, over other halves of the same hospitals' patients, sees how sure models are
of a record that they know and of one that they do not: two normal distributions for every record. How much likelier the
attacked model's confidence is under the first is the score. Nobody in a federation has such data; it is the strongest
attack known, and here the upper bound.

Source: Carlini et al. 2022
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from harness.adversaries.inferring.lines import Told
from harness.adversaries.inferring.membership import Scores, told

_LEAST_SPREAD = 1e-3


def by_shadows(confidences: Sequence[Scores], members: Sequence[NDArray[np.bool_]]) -> tuple[Told, ...]:
    """Every run attacked with all others as shadows; runs go over the same records in the same order.

    Shapes:   float64[records] and bool[records] a run: log p / (1 - p) of the true class; who was trained on
    """
    every, inside = np.stack(confidences), np.stack(members)
    found = []
    for place in range(len(every)):
        others = np.arange(len(every)) != place
        scores = likelihood_ratios(every[place], every[others], inside[others])
        found.append(told(scores[inside[place]], scores[~inside[place]]))
    return tuple(found)


def likelihood_ratios(confidence: Scores, shadows: Scores, inside: NDArray[np.bool_]) -> Scores:
    """The log of the ratio, float64[records]; spreads are common to all records, as there are few shadows.

    A record that all shadows were trained on, or none, takes the mean of all records on the side that it lacks.

    Shapes:   confidence float64[records], shadows float64[runs, records], inside bool[runs, records]
    """
    sides = [_normal(shadows, chosen) for chosen in (inside, ~inside)]
    within, without = (norm.logpdf(confidence, mean, spread) for mean, spread in sides)
    return np.asarray(within - without)


def _normal(shadows: Scores, chosen: NDArray[np.bool_]) -> tuple[Scores, float]:
    """Every record's mean over the chosen runs, and the common deviation from them."""
    if not chosen.any():
        return np.zeros(shadows.shape[1]), 1.0
    counts = chosen.sum(axis=0)
    whole = float(shadows[chosen].mean())
    means = np.where(counts > 0, np.where(chosen, shadows, 0.0).sum(axis=0) / np.maximum(counts, 1), whole)
    off = (shadows - means)[chosen]
    freedom = max(1, int(np.maximum(counts - 1, 0).sum()))
    return means, max(_LEAST_SPREAD, float(np.sqrt(np.sum(off**2) / freedom)))
