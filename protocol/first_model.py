"""Version 0 of a study's model, which every site derives by itself and compares (docs/protocol.md 12).

Why: a requester that chooses the first model can choose one whose gradients hold single records, and read them out of
an honest sum of several sites (trap weights, Boenisch et al. 2023; MediLeak, Shi et al. 2024).

How: AES-256-CTR under a key that follows from the study gives one 64-bit word per coordinate, in the order of the flat
vector. A layer's name and shape say what becomes of its words:

    shape of two or more dimensions     uniform within +-1/sqrt(fan_in), fan_in the product of all but the first
    ``bias`` of such a ``weight``       uniform within the bound of its weight
    other ``weight``                    ones (the scale of a normalisation)
    ``running_var``                     ones (the averaged variance of a normalisation)
    everything else                     zeros

which is torch's default for linear and convolutional layers and for normalisations. A word's upper 53 bits u give
float32((2 u / 2^53 - 1) * bound): every operation is one that IEEE 754 rounds in one way, so every CPU has the same
bits. Words are drawn for ones and zeros too, so that a layer's values do not depend on what stands before it but size.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocol.arithmetic.prg import Usage, expand
from protocol.wire.studies.model import LayerShape
from protocol.wire.studies.study import Study

_CHUNK: Final = 1 << 16
_SHIFT: Final = np.uint64(11)
_STEP: Final = 2.0**-52
_ONES: Final = ("weight", "running_var")


def first_model(study: Study) -> NDArray[np.float32]:
    """Version 0 of the study's model: from its seed where it has one, so that simulations compare, else its digest.

    Shapes:   -> float32[D], the shared layers
    """
    if study.seed is not None:
        return seeded_model(study.model.layers, study.seed)
    return drawn_model(study.model.layers, _key(f"study {study.digest()}"))


def seeded_model(layers: Sequence[LayerShape], seed: int) -> NDArray[np.float32]:
    """Version 0 of every study with this seed and these layers."""
    return drawn_model(layers, _key(f"seed {seed}"))


def drawn_model(layers: Sequence[LayerShape], key: bytes) -> NDArray[np.float32]:
    """The layers' first values under one 32-byte key, one layer after the other. Shapes: -> float32[D]"""
    out = np.zeros(sum(math.prod(layer.shape) for layer in layers), dtype=np.float32)
    start, bounds = 0, dict[str, float]()
    for layer in layers:
        stop = start + math.prod(layer.shape)
        bound = _bound(layer, bounds)
        if bound > 0:
            _draw_into(out[start:stop], key, start, bound)
        elif _last(layer) in _ONES:
            out[start:stop] = 1.0
        start = stop
    return out


def model_digest_of(model: NDArray[np.float32]) -> str:
    """Return the digest that a study pins for a pretrained start: SHA-256 over the little-endian float32 values."""
    return hashlib.sha256(np.ascontiguousarray(model, dtype="<f4").tobytes()).hexdigest()


def _bound(layer: LayerShape, bounds: dict[str, float]) -> float:
    """Return the bound of the uniform draw, 0 for a constant; notes what a layer's weight leaves for its bias."""
    module = layer.name.rpartition(".")[0]
    if len(layer.shape) > 1:
        bound = 1 / math.sqrt(math.prod(layer.shape[1:]))
        if _last(layer) == "weight":
            bounds[module] = bound
        return bound
    return bounds.get(module, 0.0) if _last(layer) == "bias" else 0.0


def _last(layer: LayerShape) -> str:
    return layer.name.rpartition(".")[2]


def _draw_into(out: NDArray[np.float32], key: bytes, place: int, bound: float) -> None:
    for start in range(0, out.size, _CHUNK):
        piece = out[start : start + _CHUNK]
        words = expand(key, Usage.FIRST_MODEL, piece.size, start=place + start)
        piece[:] = ((words >> _SHIFT).astype(np.float64) * _STEP - 1.0) * bound


def _key(text: str) -> bytes:
    return hashlib.sha256(f"moiety first model, {text}".encode()).digest()
