"""Challenge -> public random linear map over the ring, applied to every share (docs/protocol.md 5).

Four blocks of k/4 buckets; every coordinate falls into one pseudo-random bucket of each block with a pseudo-random
sign. ||Sx||^2 / 4 estimates ||x||^2 with a relative standard deviation of about sqrt(2/k). Buckets are hashed
independently: in a regular pattern a vector of entries 2^63 would cancel in every bucket.
Vectors of at most k coordinates are left as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from protocol.arithmetic.kernels import NUMBA, Kernels
from protocol.arithmetic.prg import Usage, expand
from protocol.arithmetic.ring import Ring, lifted
from protocol.errors import MalformedMessage
from protocol.parameters import StudyParameters
from protocol.sharing import ChunkSource

DEFAULT_CHUNK = 1 << 16


def sketch_shares(
    challenge: bytes,
    shares: Sequence[ChunkSource],
    parameters: StudyParameters,
    kernels: Kernels = NUMBA,
    chunk: int = DEFAULT_CHUNK,
) -> list[Ring]:
    """Sketches of many shares in one pass over the coordinates.

    Why: the map's pseudo-random words are drawn once a chunk, for all sites; no more than one chunk of one share is
    in memory.

    In a study of 48 bits each sketch is of shares modulo 2^48, and each server reads its own as signed numbers, by
    itself: but for a chance of at most 2 E sqrt(k) / 2^48 both add up to the sketch modulo 2^64, and else the range
    check fails (section 24).

    Shapes:   each share uint64[D], read as source(start, stop) -> one uint64[min(D, k)] each, ring 2^64
    Reveals:  nothing; linear, so the sketches of two shares are shares of the sketch
    Raises:   MalformedMessage, when a source returns another number of elements than asked for
    Source:   Kane and Nelson 2014 (sparse Johnson-Lindenstrauss, block construction)
    """
    whole = sketch_range(challenge, shares, parameters, 0, parameters.dimension, kernels, chunk)
    return [lifted(one, parameters.ring_bits) for one in whole]


def sketch_range(
    challenge: bytes,
    shares: Sequence[ChunkSource],
    parameters: StudyParameters,
    start: int,
    stop: int,
    kernels: Kernels = NUMBA,
    chunk: int = DEFAULT_CHUNK,
) -> list[Ring]:
    """The part of each sketch that coordinates ``start`` to ``stop`` make: parts of all coordinates add up to it.

    The sum of all parts is then to be lifted, as :func:`sketch_shares` does.

    Shapes, reveals, raises: as :func:`sketch_shares`
    """
    totals = [np.zeros(parameters.sketched_length, dtype=np.uint64) for _ in shares]
    for at in range(start, stop, chunk):
        end = min(at + chunk, stop)
        if parameters.exact_distances:
            for total, source in zip(totals, shares, strict=True):
                total[at:end] = _read(source, at, end)
            continue
        words = expand(challenge, Usage.SKETCH, end - at, start=at)
        for total, source in zip(totals, shares, strict=True):
            kernels.sketch_into(total, words, _read(source, at, end))
    return totals


def sketch_vector(challenge: bytes, x: Ring, parameters: StudyParameters, kernels: Kernels = NUMBA) -> Ring:
    """The sketch of one vector in memory.

    Shapes:   uint64[D] -> uint64[min(D, k)], ring 2^64
    Raises:   MalformedMessage, when ``x`` does not have the study's dimension
    """
    if x.shape != (parameters.dimension,):
        raise MalformedMessage(f"the study's vectors have {parameters.dimension} elements, found shape {x.shape}")
    return sketch_shares(challenge, [lambda start, stop: x[start:stop]], parameters, kernels)[0]


def _read(source: ChunkSource, start: int, stop: int) -> Ring:
    piece = source(start, stop)
    if piece.shape != (stop - start,):
        raise MalformedMessage(
            f"elements {start} to {stop} of a share were asked for, found shape {piece.shape}; "
            "the share is shorter than the study's dimension"
        )
    return piece
