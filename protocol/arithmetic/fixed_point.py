"""Real vectors as ring vectors, and ring vectors as bytes (docs/protocol.md 2, 24).

A site clips its update to the study's norm, multiplies it by its weight, then encodes it. Two ways, with the same
bits: :func:`clip` and :func:`encode` on whole arrays, or :func:`scaling_of`, which reads the update once, and
:func:`encode_into` piece by piece, into the caller's buffers.

As bytes an element takes eight, or six in the small ring. An element of Z_{2^48} is written as its six low bytes,
little-endian, and read with its sign: as the element of Z_{2^64} that has the same signed reading.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from protocol.arithmetic import kernels, ring
from protocol.arithmetic.kernels import Scaling
from protocol.arithmetic.ring import LEAST_EXPONENT, Ring, Usage, expand_into, to_signed
from protocol.errors import MalformedMessage, ProtocolViolation, UnusableUpdate
from protocol.parameters import WORD_BITS, RingBits, StudyParameters

Real: TypeAlias = NDArray[np.float64]
Update: TypeAlias = NDArray[np.float32] | NDArray[np.float64]
Layers: TypeAlias = Sequence[tuple[str, int]]


def check_finite(update: Update, layers: Layers) -> None:
    """Refuse an update that has the wrong shape or dtype, or holds NaN or infinity.

    ``layers`` names the pieces of the flat vector in order, each with its number of coordinates.

    Raises:   UnusableUpdate, which names the layer
    """
    _require_form(update, layers)
    start = 0
    for name, size in layers:
        bad = size - int(np.count_nonzero(np.isfinite(update[start : start + size])))
        if bad:
            raise UnusableUpdate(
                f"layer {name!r}: {bad} of {size} values are NaN or infinite; lower the learning rate or check the data"
            )
        start += size


def clip(update: Update, clip_norm: float) -> tuple[Real, bool]:
    """Scale ``update`` down to L2 norm ``clip_norm`` if it is longer; says whether it was.

    Shapes:   float[D] -> float64[D]
    Raises:   UnusableUpdate, when a value is NaN or infinite
    """
    scaling = _clipping(update, (("update", update.size),), clip_norm)
    values = update.astype(np.float64)
    return (values * scaling.unit * scaling.factor if scaling.clips else values), scaling.clips


def scaling_of(update: Update, layers: Layers, parameters: StudyParameters, weight: float = 1.0) -> Scaling:
    """The factors that bring ``update`` to the study's norm, weight and scale; :func:`encode_into` applies them.

    Reads the update once: the check of :func:`check_finite` and the norm of :func:`clip`.

    Shapes:   float[D], D the sum of the layers' sizes
    Raises:   UnusableUpdate, which names the layer; ProtocolViolation, when the weight is outside [0, 1]
    """
    _require_weight(weight)
    _require_form(update, layers)
    clipping = _clipping(update, layers, parameters.clip_norm)
    return replace(clipping, weight=weight, scale=parameters.scale)


def encode(values: Update, parameters: StudyParameters, rand_seed: bytes, *, start: int = 0) -> Ring:
    """Fixed point with stochastic rounding: floor(x * 2^f), plus one with the probability of the fraction.

    Why: the expectation is exact, so rounding errors of many sites cancel instead of adding up; every error is
    below 2^-f.

    Shapes:   float[n] -> uint64[n], ring 2^64, f fraction bits; ``start`` is the place of the piece in the vector
    Requires: ``rand_seed`` fresh from the agent's random source (or a canary round's key)
    Raises:   UnusableUpdate, when a value is not finite or does not fit the ring
    """
    encoded = np.empty(values.shape, dtype=np.uint64)
    encode_into(encoded, values, Scaling(scale=parameters.scale), rand_seed, start)
    return encoded


def encode_into(encoded: Ring, values: Update, scaling: Scaling, rand_seed: bytes, start: int) -> None:
    """:func:`encode` of the clipped and weighted piece that begins at ``start``, into the caller's buffer.

    Shapes:   encoded uint64[n], values float[n], not yet scaled
    Requires: as :func:`encode`
    Raises:   UnusableUpdate, as :func:`encode`; the buffer then holds nothing of use
    """
    expand_into(rand_seed, Usage.ROUNDING, encoded, start=start)
    require_encoded(kernels.encode(values, scaling, encoded), scaling.scale)


def require_encoded(fits: bool, scale: float) -> None:
    """Refuse what a kernel could not encode.

    Raises:   UnusableUpdate
    """
    if not fits:
        raise UnusableUpdate(
            f"a value is not finite or reaches 2^62 at {math.frexp(scale)[1] - 1} fraction bits; "
            "check the update and clip it before encoding"
        )


def decode(x: Ring, parameters: StudyParameters) -> Real:
    """The real vector behind a ring vector: its signed reading over 2^f.

    Shapes:   uint64[n], f fraction bits -> float64[n]
    """
    return to_signed(x) / parameters.scale


def quantise_weight(alpha: float, grid: int) -> int:
    """Numerator of the multiple of 1/``grid`` nearest to ``alpha``; a tie goes to the even numerator.

    Raises:   ProtocolViolation, when alpha is outside [0, 1]
    """
    _require_weight(alpha)
    return round(Fraction(alpha) * grid)


def _clipping(update: Update, layers: Layers, clip_norm: float) -> Scaling:
    """The norm is ``fraction / unit``: whatever the update's size, neither part overflows."""
    peaks, squares = kernels.block_squares(update)
    if not np.all(np.isfinite(peaks)):
        check_finite(update, layers)
    exponents = np.maximum(np.where(peaks > 0, np.frexp(peaks)[1], LEAST_EXPONENT), LEAST_EXPONENT)
    largest = int(np.max(exponents, initial=LEAST_EXPONENT))
    unit = math.ldexp(1.0, -largest)
    fraction = math.sqrt(math.fsum(np.ldexp(squares, 2 * (exponents - largest)).tolist()))
    if fraction <= clip_norm * unit:
        return Scaling()
    return Scaling(unit=unit, factor=clip_norm / fraction)


def _require_form(update: Update, layers: Layers) -> None:
    expected = sum(size for _, size in layers)
    if update.dtype not in (np.float32, np.float64) or update.shape != (expected,):
        raise UnusableUpdate(
            f"the update is {update.dtype}{list(update.shape)}, but the model's layers make float32 or float64"
            f"[{expected}]; check that the model is the study's"
        )


def _require_weight(weight: float) -> None:
    if not 0.0 <= weight <= 1.0:
        raise ProtocolViolation(f"a weight lies in [0, 1], found {weight}; the rule that computed it is wrong")


_BITS_PER_BYTE: Final = 8
_WORDS: Final = 3
"""Words of 16 bits in an element of 48."""
_WIRE: Final = np.dtype("<u2")


def element_bytes(bits: RingBits) -> int:
    return bits // _BITS_PER_BYTE


def packed(x: Ring, bits: RingBits) -> memoryview:
    """The elements modulo 2^bits, one after the other; without a copy in 64 bits.

    Shapes:   uint64[n] -> n * bits / 8 bytes
    """
    if bits == WORD_BITS:
        return ring.octets(x)
    words = np.empty(_WORDS * x.size, dtype=np.uint16)
    kernels.pack(np.ascontiguousarray(x), words)
    return words.astype(_WIRE, copy=False).view(np.uint8).data


def unpacked(b: bytes | bytearray | memoryview, length: int, bits: RingBits, out: Ring | None = None) -> Ring:
    """The inverse of :func:`packed`, up to :func:`protocol.arithmetic.ring.lifted`; into ``out`` where it is given.

    Shapes:   length * bits / 8 bytes -> uint64[length]; may be a read-only view of ``b`` in 64 bits
    Raises:   MalformedMessage, when ``b`` has another length
    """
    if bits == WORD_BITS:
        return ring.from_bytes(b, length)
    found = memoryview(b).nbytes
    if found != element_bytes(bits) * length:
        raise MalformedMessage(
            f"a vector of {length} elements of {bits} bits takes {element_bytes(bits) * length} bytes, found {found}; "
            "check that both parties use the same study parameters"
        )
    words = np.require(np.frombuffer(b, dtype=_WIRE).astype(np.uint16, copy=False), requirements=["C", "A"])
    into = np.empty(length, dtype=np.uint64) if out is None else out
    kernels.unpack(words, into)
    return into
