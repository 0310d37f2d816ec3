"""Records in the first dense layer's gradient: by its rows over its biases.

A row's gradient is the sum of delta_i x_i over the records, its bias's the sum of delta_i: their quotient is a weighted
mean of the records, and the record itself where only one has delta_i other than 0, as with one record in the average,
or where a rectifier lets one through. Any model whose first layer is dense and has biases gives as many as it has rows.

Source: Phong et al. 2018; Geiping et al. 2020, Proposition 3.1; Boenisch et al. 2023
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray
from torch import nn

Reals = NDArray[np.float64]
_LEAST: Final = 1e-7
"""Below this part of the largest bias gradient a row says nothing but rounding."""


def rows_over_biases(model: nn.Module, gradient: Reals) -> Reals:
    """What every row says, float64[rows that fired, inputs]; no row where the first layer is not dense.

    Shapes:   gradient float64[D], in the order of the flat vector
    """
    first = next((layer for layer in model.modules() if isinstance(layer, nn.Linear | nn.Conv2d)), None)
    if not isinstance(first, nn.Linear):
        return np.zeros((0, 0))
    rows, inputs = first.out_features, first.in_features
    weights = gradient[: rows * inputs].reshape(rows, inputs)
    biases = gradient[rows * inputs : rows * (inputs + 1)]
    fired = np.abs(biases) > _LEAST * max(float(np.abs(biases).max()), np.finfo(np.float64).tiny)
    return np.asarray(weights[fired] / biases[fired, None])
