"""The numbers of a ranking round: quadratic forms of linear models, opened exactly (docs/protocol.md 8)."""

from __future__ import annotations

import math
from typing import Final

from protocol.parameters import MAX_SKETCH_LENGTH, MIN_SKETCH_LENGTH, StudyParameters

LONGEST: Final = MAX_SKETCH_LENGTH
"""The longest vector whose sketch can be the vector itself, so that its inner products are exact."""
GRID: Final = 1
"""Nobody is weighted: all vectors have weight 1."""


def vector_length(features: int, outputs: int) -> int:
    """Coordinates of a site's predictor and of the requester's form for p features and K outputs."""
    return features * (features + 1) // 2 + features * outputs


def ranking_parameters(
    length: int, clip_norm: float, *, least_contributors: int = 1, assumed_colluders: int = 0
) -> StudyParameters:
    """Numbers under which the sketch is the identity, so that losses are exact but for rounding.

    Requires: length at most :data:`LONGEST`, clip_norm a power of two
    """
    return StudyParameters(
        dimension=length,
        clip_norm=clip_norm,
        weight_grid=GRID,
        sketch_length=max(MIN_SKETCH_LENGTH, 1 << (length - 1).bit_length()),
        least_contributors=least_contributors,
        assumed_colluders=assumed_colluders,
    )


def query_scale(form_length: float, clip_norm: float) -> float:
    """Return the factor of the requester's form that makes the query as long as a vector may be."""
    return clip_norm / form_length if form_length > 0 else 1.0


def error_bound(parameters: StudyParameters, form_length: float) -> float:
    """Bound the difference between an opened loss and the plain one.

    Both vectors have length at most C in their own scale; rounding moves each of L coordinates by less than one ring
    unit 2^-f, so each vector by less than e = sqrt(L) 2^-f: |<q', z'> - <q, z>| <= e (C + C + e). Back in the loss's
    scale that is times form_length / C.
    """
    e = math.sqrt(parameters.dimension) / parameters.scale
    return e * (2 * parameters.clip_norm + e) * form_length / parameters.clip_norm
