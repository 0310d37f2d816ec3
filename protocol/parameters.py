"""The numbers that a study fixes once, and the protocol's versions (docs/protocol.md 2, 5, 6).

A party of another version is not spoken with: what it sends is refused before it is read, both sides say which release
to install, and whoever waited goes on where it was once the versions agree.
"""

from __future__ import annotations

import math
import re
from enum import StrEnum
from typing import Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

from protocol.errors import OtherVersion

PROTOCOL_VERSION: Final = "moiety/2"
RingBits: TypeAlias = Literal[48, 64]
WORD_BITS: Final = 64
RANGE_PROJECTIONS: Final = 40
SKETCH_BLOCKS: Final = 4
MIN_SKETCH_LENGTH: Final = 2048
MAX_SKETCH_LENGTH: Final = 2**17
TAG_COORDINATES: Final = 4
"""The number of tags behind a vector's own coordinates, where a round has tags (docs/protocol.md 15)."""
MAX_ENCODED_NORM_LOG2: Final = 21
MAX_CLIP_NORM_LOG2: Final = 100
"""Between 2^-100 and 2^100 the scale, and an average in float32, neither overflow nor vanish."""


class Needs(StrEnum):
    """The quantities that a measured round opens to the requester besides the range check (docs/protocol.md 8).

    ``distances``: of every contributor from the requester. ``norms``: of every contributor's update;
    ``weighted_norms``: of (w g, w C), where the site's own weight w is part of what it shares, which shows w within a
    factor of 1.42. ``pairs``: distances of all pairs of what sites share, w g. ``inner_products``: of every
    contributor with a vector of the requester's choice.
    """

    NOTHING = "nothing"
    DISTANCES = "distances"
    NORMS = "norms"
    WEIGHTED_NORMS = "weighted_norms"
    PAIRS = "pairs"
    INNER_PRODUCTS = "inner_products"

    @property
    def queried(self) -> bool:
        """True if the requester sends query shares."""
        return self in (Needs.DISTANCES, Needs.INNER_PRODUCTS)

    @property
    def of_norms(self) -> bool:
        """True if the length of each contributor's vector is opened."""
        return self in (Needs.NORMS, Needs.WEIGHTED_NORMS)


def check_clip_norm(clip_norm: float) -> None:
    """ValueError unless C is a power of two of moderate size."""
    if not 2.0**-MAX_CLIP_NORM_LOG2 <= clip_norm <= 2.0**MAX_CLIP_NORM_LOG2:
        raise ValueError(
            f"clip_norm must lie between 2^-{MAX_CLIP_NORM_LOG2} and 2^{MAX_CLIP_NORM_LOG2}, found {clip_norm}"
        )
    if math.frexp(clip_norm)[0] != 0.5:
        below = 2.0 ** math.floor(math.log2(clip_norm))
        raise ValueError(f"clip_norm must be a power of two, found {clip_norm}; use {below} or {2 * below}")


class Record(BaseModel):
    """Base of what parties agree on or keep: immutable, strict, closed."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class StudyParameters(Record):
    """Fixed-point, sketch and cohort parameters of one study.

    ``dimension`` D is the number of shared coordinates. Updates are clipped to L2 norm
    ``clip_norm`` = C at the site; x~ = round(x * 2^f) with 2^f * C = E = 2^``encoded_norm_log2``.
    Weights are multiples of 1/``weight_grid``; where sites weigh themselves, that is the smallest weight.
    ``least_contributors`` m and ``assumed_colluders`` t do not count the requester.
    ``ring_bits``: vectors are shared and summed modulo 2 to this, eight bytes a coordinate or six (section 24).
    """

    dimension: int = Field(ge=1, le=2**31)
    clip_norm: float = Field(gt=0, allow_inf_nan=False)
    encoded_norm_log2: int = Field(default=MAX_ENCODED_NORM_LOG2, ge=1, le=MAX_ENCODED_NORM_LOG2)
    weight_grid: int = Field(default=32, ge=1, le=2**16)
    sketch_length: int = Field(default=MIN_SKETCH_LENGTH, ge=MIN_SKETCH_LENGTH, le=MAX_SKETCH_LENGTH)
    least_contributors: int = Field(ge=1)
    assumed_colluders: int = Field(default=0, ge=0)
    ring_bits: RingBits = Field(default=WORD_BITS, exclude_if=lambda bits: bits == WORD_BITS)

    @model_validator(mode="after")
    def _consistent(self) -> StudyParameters:
        check_clip_norm(self.clip_norm)
        if self.sketch_length & (self.sketch_length - 1):
            raise ValueError(f"sketch_length must be a power of two, found {self.sketch_length}")
        floor = 16 * math.sqrt(self.dimension) * self.weight_grid
        if self.encoded_norm < floor:
            raise ValueError(
                f"encoded_norm_log2={self.encoded_norm_log2} gives E={self.encoded_norm}, below "
                f"16*sqrt(dimension)*weight_grid={floor:.0f}: rounding noise would show; choose a coarser weight_grid"
            )
        return self

    @property
    def encoded_norm(self) -> int:
        """E: the L2 norm C in ring units."""
        return 1 << self.encoded_norm_log2

    @property
    def fraction_bits(self) -> int:
        """f, so that 2^f * C = E; negative when C > E."""
        return self.encoded_norm_log2 - (math.frexp(self.clip_norm)[1] - 1)

    @property
    def scale(self) -> float:
        """2^f, exact in binary floating point."""
        return math.ldexp(1.0, self.fraction_bits)

    @property
    def exact_distances(self) -> bool:
        """True when the sketch is the identity: D <= k."""
        return self.dimension <= self.sketch_length

    @property
    def sketched_length(self) -> int:
        """Length of a sketched vector: min(D, k)."""
        return min(self.dimension, self.sketch_length)

    @property
    def sketch_blocks(self) -> int:
        """The factor by which ||Sx||^2 over-counts ||x||^2: 4 blocks, or 1 for the identity."""
        return 1 if self.exact_distances else SKETCH_BLOCKS

    @property
    def range_bits(self) -> int:
        """h of the range check: log2(E) + 5 for four blocks, log2(E) + 4 for the identity."""
        return self.encoded_norm_log2 + (4 if self.exact_distances else 5)


_VERSION: Final = re.compile(r"moiety/([1-9][0-9]{0,5})")


def is_version(text: object) -> bool:
    """Return whether this names a version of the protocol, known here or not."""
    return isinstance(text, str) and _VERSION.fullmatch(text) is not None


def first_release(version: str) -> str:
    """The first release of the package that speaks ``version``: moiety/N begins with 0.N.0."""
    number = _VERSION.fullmatch(version)
    return f"0.{number[1]}.0" if number else ""


def other_version(what: str, found: str) -> OtherVersion:
    """The error for something that was made under another version; ``found`` is a version."""
    newer, older = first_release(found), first_release(PROTOCOL_VERSION)
    return OtherVersion(
        f"{what} is of protocol version {found}, this party speaks {PROTOCOL_VERSION}: all parties need the same one. "
        f"{found} begins with release {newer} of the moiety package, {PROTOCOL_VERSION} with {older}; install that "
        "release on the side that lacks it. Nothing was changed, and waiting parties go on from there"
    )


def require_version(what: str, found: object) -> None:
    """Raises: OtherVersion, when ``found`` names another version; nothing for what is no version at all"""
    if isinstance(found, str) and is_version(found) and found != PROTOCOL_VERSION:
        raise other_version(what, found)
