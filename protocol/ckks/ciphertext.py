"""Ciphertexts as they travel: fixed-width integers, every length known beforehand (docs/protocol.md 11).

    contribution:  "MOIETYCU" | fingerprint 16 | key id 16 | u64 values | chunks of  seed 64 | c0
    sum:           "MOIETYCS" | fingerprint 16 | key id 16 | u64 values | chunks of  c0 | c1

A symmetric ciphertext is (c0, c1) with a uniform c1 that follows from a public seed, which halves the upload.
A polynomial is N coefficients below the modulus, each in as many bytes as the modulus has, little-endian.
Nothing here needs TenSEAL: what a site sends is checked in full before a byte of it reaches SEAL's parser.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from protocol.ckks.parameters import CkksParameters
from protocol.errors import MalformedMessage

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
    """Length of one chunk."""
    polynomial = parameters.ring_degree * parameters.coefficient_bytes
    return SEED_BYTES + polynomial if kind is Kind.CONTRIBUTION else 2 * polynomial


def chunk_count(parameters: CkksParameters, values: int) -> int:
    """Ciphertexts that hold so many values, besides their check values."""
    return -(-values // parameters.value_slots)


def body_bytes(parameters: CkksParameters, kind: Kind, values: int) -> int:
    """Length of a whole body."""
    return HEADER_BYTES + chunk_count(parameters, values) * chunk_bytes(parameters, kind)


def chunk_offset(parameters: CkksParameters, kind: Kind, index: int) -> int:
    """Return the offset of chunk ``index`` in a body."""
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
