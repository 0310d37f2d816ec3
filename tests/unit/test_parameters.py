"""Study parameters: derived values and refusals (docs/protocol.md 2, 5, 6)."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from protocol.parameters import StudyParameters


def parameters(**changes: Any) -> StudyParameters:
    return StudyParameters(**({"dimension": 20, "clip_norm": 4.0, "least_contributors": 3} | changes))


def test_derived_values_of_a_small_model() -> None:
    small = parameters()
    assert (small.encoded_norm, small.fraction_bits, small.scale) == (2**21, 19, 2.0**19)
    assert (small.exact_distances, small.sketched_length, small.sketch_blocks, small.range_bits) == (True, 20, 1, 25)


def test_derived_values_of_a_sketched_model() -> None:
    large = parameters(dimension=10_000, clip_norm=0.25)
    assert large.fraction_bits == 23
    assert (large.exact_distances, large.sketched_length, large.sketch_blocks, large.range_bits) == (False, 2048, 4, 26)


def test_the_sketch_starts_exactly_above_its_length() -> None:
    assert parameters(dimension=2048).exact_distances
    assert not parameters(dimension=2049).exact_distances


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"clip_norm": 3.0}, "use 2.0 or 4.0"),
        ({"clip_norm": 0.0}, "greater than 0"),
        ({"clip_norm": float("inf")}, "finite"),
        ({"clip_norm": 2.0**-101}, r"between 2\^-100 and 2\^100"),
        ({"clip_norm": 2.0**101}, r"between 2\^-100 and 2\^100"),
        ({"clip_norm": 5e-324}, r"between 2\^-100 and 2\^100"),
        ({"sketch_length": 3000}, "power of two"),
        ({"sketch_length": 1024}, "2048"),
        ({"encoded_norm_log2": 22}, "21"),
        ({"encoded_norm_log2": 8}, "coarser weight_grid"),
        ({"dimension": 0}, "greater than or equal to 1"),
        ({"dimension": "20"}, "valid integer"),
        ({"unknown": 1}, "Extra inputs"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        parameters(**changes)


def test_the_ends_of_the_clip_norm_have_a_finite_scale() -> None:
    assert parameters(clip_norm=2.0**-100).scale == 2.0**121
    assert parameters(clip_norm=2.0**100).scale == 2.0**-79


def test_a_grid_of_1_32_serves_up_to_sixteen_million_parameters() -> None:
    assert parameters(dimension=2**24).dimension == 2**24
    with pytest.raises(ValidationError, match="rounding noise"):
        parameters(dimension=2**24 + 2**12)
