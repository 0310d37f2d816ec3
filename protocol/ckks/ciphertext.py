"""Parameters of the CKKS path, and ciphertexts as they travel (docs/protocol.md 11).

All are fixed-width integers, every length is known beforehand:

    contribution:  "MOIETYCU" | fingerprint 16 | key id 16 | u64 values | chunks of  seed 64 | c0
    sum:           "MOIETYCS" | fingerprint 16 | key id 16 | u64 values | chunks of  c0 | c1

A symmetric ciphertext is (c0, c1) with a uniform c1 that follows from a public seed, which halves the upload.
A polynomial is N coefficients below the modulus, each in as many bytes as the modulus has, little-endian.
Nothing here needs TenSEAL: what a site sends is checked in full before a byte of it reaches SEAL's parser.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from protocol.errors import ConfigurationError, MalformedMessage
from protocol.parameters import Record

LARGEST_MODULUS_BITS: Final = {1024: 27, 2048: 54, 4096: 109, 8192: 218}
"""Ring degree -> most bits of modulus at 128-bit security, ternary secret.

Source: Albrecht et al. 2018, Homomorphic Encryption Standard, table 1
"""
MOST_PRIME_BITS: Final = 60
NOISE_DEVIATION: Final = math.sqrt(10.5)
"""The standard deviation of one coefficient's noise, which SEAL draws as a centred binomial of 2 x 21 bits."""
LARGEST_NOISE: Final = 21 + 1
"""The most that distribution gives, and one for rounding."""
DEVIATIONS: Final = 8
"""A sum farther from the truth than so many standard deviations does not happen by noise (6e-16 a value)."""


class CkksParameters(Record):
    """Additions only: one prime is the whole modulus, no key switching, no rescaling.

    A value z is encoded as z * 2^``scale_bits``; an update is divided by the clip norm first, so its L2 norm is at
    most 1. ``modulus`` q is a prime, 1 modulo twice the ring degree N. A ciphertext holds N/2 values, the last
    ``check_slots`` of which show that a sum is the right one. Sums of up to ``most_sites`` ciphertexts decrypt.
    """

    ring_degree: int = 2048
    modulus: int = 0xFF_FFFF_7001
    scale_bits: int = Field(default=36, ge=1, le=MOST_PRIME_BITS)
    most_sites: int = Field(default=100, ge=1, le=10_000)
    check_slots: int = Field(default=4, ge=1, le=64)

    @model_validator(mode="after")
    def _consistent(self) -> CkksParameters:
        if self.ring_degree not in LARGEST_MODULUS_BITS:
            raise ValueError(f"ring_degree is one of {[*LARGEST_MODULUS_BITS]}, found {self.ring_degree}")
        most = min(LARGEST_MODULUS_BITS[self.ring_degree], MOST_PRIME_BITS)
        if not 2 <= self.modulus.bit_length() <= most:
            raise ValueError(
                f"modulus has {self.modulus.bit_length()} bits; at ring degree {self.ring_degree} one prime of at most "
                f"{most} bits keeps 128-bit security"
            )
        if self.modulus % (2 * self.ring_degree) != 1:
            raise ValueError(f"modulus must be 1 modulo {2 * self.ring_degree}, found {self.modulus:#x}")
        if self.largest_magnitudes < self.clipped_magnitudes:
            raise ValueError(
                f"a modulus of {self.modulus.bit_length()} bits at scale 2^{self.scale_bits} cannot hold the sum of "
                f"{self.most_sites} clipped updates; lower scale_bits or most_sites"
            )
        return self

    def require_sites(self, sites: int) -> None:
        """Refuse, before a study starts, a cohort whose sum would not decrypt; ``sites`` counts the requester.

        Raises: ConfigurationError
        """
        if sites > self.most_sites:
            raise ConfigurationError(
                f"protection 'ckks' sums up to {self.most_sites} sites, found {sites} with the requester: take "
                "protection 'shares', or a smaller cohort"
            )

    @property
    def slots(self) -> int:
        """Values in one ciphertext, check values included."""
        return self.ring_degree // 2

    @property
    def value_slots(self) -> int:
        """Values of an update in one ciphertext."""
        return self.slots - self.check_slots

    @property
    def check_divisor(self) -> float:
        """S, what <K, z> is divided by: at least the length of any K, so that no check value is longer than z and v."""
        return math.sqrt(self.slots)

    @property
    def scale(self) -> float:
        return math.ldexp(1.0, self.scale_bits)

    @property
    def largest_magnitudes(self) -> float:
        """The most that a ciphertext's magnitudes may add up to, so that ``most_sites`` of them cannot wrap.

        No coefficient of the encoding is larger than 2/N times that sum, times the scale.
        """
        return self.slots * (self.modulus / 2 / self.most_sites - LARGEST_NOISE) / self.scale

    @property
    def clipped_magnitudes(self) -> float:
        """The most that a clipped update's piece, a weight and the check values add up to.

        The piece has L2 norm 1 over its slots, the weight is at most 1, so z is no longer than sqrt(2), a v than 1.
        """
        return math.sqrt(self.value_slots) + 1 + self.check_slots * (math.sqrt(2) + 1)

    @property
    def value_deviation(self) -> float:
        """Standard deviation of one decrypted value of one ciphertext: noise and rounding of N coefficients."""
        return math.sqrt(self.slots * (NOISE_DEVIATION**2 + 1 / 12)) / self.scale

    @property
    def coefficient_bytes(self) -> int:
        return -(-self.modulus.bit_length() // 8)


Polynomial: TypeAlias = NDArray[np.uint64]

SEED_BYTES: Final = 64
FINGERPRINT_BYTES: Final = 16
KEY_ID_BYTES: Final = 16
_COEFFICIENT: Final = np.dtype("<u8")
_HEADER: Final = struct.Struct(f"<8s{FINGERPRINT_BYTES}s{KEY_ID_BYTES}sQ")
HEADER_BYTES: Final = _HEADER.size


class Kind(Enum):
    """The content of a body; the value is the body's first bytes."""

    CONTRIBUTION = b"MOIETYCU"
    SUM = b"MOIETYCS"


@dataclass(frozen=True)
class BodyHeader:
    """``fingerprint`` of the parameters and SEAL's generator, ``key_id`` of the study's key, number of ``values``."""

    kind: Kind
    fingerprint: bytes
    key_id: bytes
    values: int

    def to_bytes(self) -> bytes:
        return _HEADER.pack(self.kind.value, self.fingerprint, self.key_id, self.values)

    def require(self, found: bytes) -> None:
        """Return if ``found`` is this header, else raise MalformedMessage that says what is different."""
        if found == self.to_bytes():
            return
        magic, fingerprint, key_id, values = _HEADER.unpack(found)
        if magic != self.kind.value:
            raise MalformedMessage(
                f"not a CKKS {self.kind.name.lower()}: it must begin with {self.kind.value.decode()!r}"
            )
        if fingerprint != self.fingerprint:
            raise MalformedMessage(
                "a ciphertext of another context: ring, modulus, scale or SEAL's generator differ from the study's; "
                "take the study's parameters and the same version of TenSEAL"
            )
        if key_id != self.key_id:
            raise MalformedMessage("a ciphertext under another key: take the key from the study's welcome letter")
        raise MalformedMessage(f"a body of {values} values, the study's updates have {self.values}")


def chunk_bytes(parameters: CkksParameters, kind: Kind) -> int:
    polynomial = parameters.ring_degree * parameters.coefficient_bytes
    return SEED_BYTES + polynomial if kind is Kind.CONTRIBUTION else 2 * polynomial


def chunk_count(parameters: CkksParameters, values: int) -> int:
    """Ciphertexts that hold so many values, besides their check values."""
    return -(-values // parameters.value_slots)


def body_bytes(parameters: CkksParameters, kind: Kind, values: int) -> int:
    return HEADER_BYTES + chunk_count(parameters, values) * chunk_bytes(parameters, kind)


def chunk_offset(parameters: CkksParameters, kind: Kind, index: int) -> int:
    return HEADER_BYTES + index * chunk_bytes(parameters, kind)


# --- chunks -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SeededChunk:
    """A fresh ciphertext: c0, and the public seed that c1 follows from."""

    c0: Polynomial
    seed: bytes

    def to_bytes(self, parameters: CkksParameters) -> bytes:
        return self.seed + _pack(self.c0, parameters)

    @classmethod
    def parse(cls, data: bytes, parameters: CkksParameters) -> SeededChunk:
        """Raises: MalformedMessage, when the length is wrong or a coefficient reaches the modulus"""
        _require_chunk(data, parameters, Kind.CONTRIBUTION)
        return cls(_unpack(memoryview(data)[SEED_BYTES:], parameters), data[:SEED_BYTES])


@dataclass(frozen=True)
class SumChunk:
    """A sum of ciphertexts: both polynomials."""

    c0: Polynomial
    c1: Polynomial

    def to_bytes(self, parameters: CkksParameters) -> bytes:
        return _pack(self.c0, parameters) + _pack(self.c1, parameters)

    @classmethod
    def parse(cls, data: bytes, parameters: CkksParameters) -> SumChunk:
        """Raises: MalformedMessage, when the length is wrong or a coefficient reaches the modulus"""
        _require_chunk(data, parameters, Kind.SUM)
        half = len(data) // 2
        view = memoryview(data)
        return cls(_unpack(view[:half], parameters), _unpack(view[half:], parameters))


def _require_chunk(data: bytes, parameters: CkksParameters, kind: Kind) -> None:
    expected = chunk_bytes(parameters, kind)
    if len(data) != expected:
        raise MalformedMessage(f"a chunk of a CKKS {kind.name.lower()} has {len(data)} bytes, must have {expected}")


def _pack(polynomial: Polynomial, parameters: CkksParameters) -> bytes:
    octets = polynomial.astype(_COEFFICIENT, copy=False).view(np.uint8).reshape(parameters.ring_degree, -1)
    return octets[:, : parameters.coefficient_bytes].tobytes()


def _unpack(data: memoryview, parameters: CkksParameters) -> Polynomial:
    octets = np.zeros((parameters.ring_degree, _COEFFICIENT.itemsize), dtype=np.uint8)
    octets[:, : parameters.coefficient_bytes] = np.frombuffer(data, dtype=np.uint8).reshape(parameters.ring_degree, -1)
    polynomial = octets.view(_COEFFICIENT).reshape(-1).astype(np.uint64, copy=False)
    if int(polynomial.max()) >= parameters.modulus:
        raise MalformedMessage("not a ciphertext of this study: a coefficient is not below the modulus")
    return polynomial


# --- streams ----------------------------------------------------------------------------------------------------------


class ChunkReader:
    """Cuts a body that arrives in pieces of any size into chunks; holds back less than one chunk.

    Raises: MalformedMessage, on another header than ``expected`` or another length
    """

    def __init__(self, parameters: CkksParameters, expected: BodyHeader) -> None:
        self._expected = expected
        self._chunk_bytes = chunk_bytes(parameters, expected.kind)
        self._left = chunk_count(parameters, expected.values)
        self._held = bytearray()
        self._begun = False

    def feed(self, data: bytes | bytearray | memoryview) -> list[bytes]:
        """Take the next bytes; return the chunks that are complete."""
        self._held += data
        start = 0
        if not self._begun:
            if len(self._held) < HEADER_BYTES:
                return []
            self._expected.require(bytes(self._held[:HEADER_BYTES]))
            self._begun, start = True, HEADER_BYTES
        whole = (len(self._held) - start) // self._chunk_bytes
        stop = start + whole * self._chunk_bytes
        if whole > self._left or (whole == self._left and stop < len(self._held)):
            raise MalformedMessage(f"the body goes on after its last chunk; it holds {self._expected.values} values")
        view = memoryview(self._held)
        chunks = [bytes(view[at : at + self._chunk_bytes]) for at in range(start, stop, self._chunk_bytes)]
        view.release()
        del self._held[:stop]
        self._left -= whole
        return chunks

    def finish(self) -> None:
        """Say that nothing more comes."""
        if not self._begun or self._left or self._held:
            raise MalformedMessage(f"the body ends {self._left} chunks before it should: send all of it")


def chunks_of(pieces: Iterable[bytes], parameters: CkksParameters, expected: BodyHeader) -> Iterator[bytes]:
    """Every chunk of a body. Raises: as ``ChunkReader``"""
    reader = ChunkReader(parameters, expected)
    for piece in pieces:
        yield from reader.feed(piece)
    reader.finish()
