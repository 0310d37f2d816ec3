"""What a site encodes besides an update of a listed weight: one under its own weight, class counts, a linear model.

Nobody else learns either: they leave the site as shares like any update (docs/protocol.md 2, 9).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from client_agent.study.contribute import CHUNK, EncodedUpdate, norm_of
from host.durable import write_pieces
from protocol.arithmetic.fixed_point import encode_into, scaling_of
from protocol.arithmetic.kernels import Scaling
from protocol.arithmetic.ring import to_bytes
from protocol.parameters import StudyParameters
from protocol.rules.self_weights import counts_vector


def encode_own_weighted(
    update: NDArray[np.float32],
    layers: Sequence[tuple[str, int]],
    weight: float,
    parameters: StudyParameters,
    rounding_seed: bytes,
    into: Path,
) -> EncodedUpdate:
    """(w g, w C): check, clip to C, weigh, encode, with the weight as the last coordinate.

    Shapes:   float32[D - 1] -> uint64[D] in a file, f fraction bits; the last is w E, rounded like any other
    Raises:   UnusableUpdate, which names the layer
    """
    scaling = scaling_of(update, layers, parameters, weight)
    whole = np.array([parameters.clip_norm])

    def pieces() -> Iterator[bytes]:
        for start in range(0, update.size, CHUNK):
            yield _encoded(update[start : start + CHUNK], scaling, rounding_seed, start)
        yield _encoded(whole, Scaling(weight=weight, scale=parameters.scale), rounding_seed, update.size)

    write_pieces(into, pieces())
    norm = parameters.clip_norm if scaling.clips else norm_of(update)
    return EncodedUpdate(numerator=parameters.weight_grid, clipped=scaling.clips, norm=norm)


def encode_counts(counts: Sequence[int], parameters: StudyParameters, into: Path) -> EncodedUpdate:
    """Class counts as plain ring integers, zeros behind them.

    Shapes:   -> uint64[D] in a file, no fraction bits
    Raises:   UnusableUpdate when they do not fit
    """
    write_pieces(into, [to_bytes(counts_vector(counts, parameters))])
    return EncodedUpdate(numerator=parameters.weight_grid, clipped=False, norm=0.0)


def encode_whole(vector: NDArray[np.float64], parameters: StudyParameters, rounding_seed: bytes, into: Path) -> None:
    """A short vector of a ranking, in one piece. Shapes: float64[L] -> uint64[L] in a file, f fraction bits"""
    write_pieces(into, [_encoded(vector, Scaling(scale=parameters.scale), rounding_seed, 0)])


def _encoded(
    piece: NDArray[np.float32] | NDArray[np.float64], scaling: Scaling, rounding_seed: bytes, start: int
) -> bytes:
    encoded = np.empty(piece.shape, dtype=np.uint64)
    encode_into(encoded, piece, scaling, rounding_seed, start)
    return to_bytes(encoded)
