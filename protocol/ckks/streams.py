"""SEAL's serialised ciphertexts <-> polynomials and seeds (docs/protocol.md 11).

TenSEAL's ``sealapi`` saves and loads by path only, so a :class:`Scratch` comes from the caller. SEAL's streams are
compressed when it writes them; what travels is the fixed-width form of ``ciphertext.py``.
"""

from __future__ import annotations

import struct
from typing import Final, Protocol

import numpy as np

from protocol.ckks.ciphertext import SEED_BYTES, Polynomial, SeededChunk, SumChunk
from protocol.ckks.scheme import WORD, Scheme, SealObject
from protocol.errors import ConfigurationError, MalformedMessage

_SEAL_HEADER: Final = struct.Struct("<HBBBBHQ")  # magic, header size, version, compression, reserved, size
_MEMBERS: Final = struct.Struct("<4Q?QQQdQ")  # parms id, NTT form, polynomials, degree, primes, scale, correction
_LENGTH: Final = struct.Struct("<Q")
_UNCOMPRESSED: Final = 0
_ZSTANDARD: Final = 2
_POLYNOMIALS: Final = 2
_GENERATOR_BYTES: Final = _SEAL_HEADER.size + 1 + SEED_BYTES


class Scratch(Protocol):
    """A place that SEAL can write to and read from by path; nothing secret is ever put there."""

    @property
    def path(self) -> str: ...

    def read(self) -> bytes:
        """All that SEAL wrote last."""
        ...

    def write(self, data: bytes) -> None:
        """Replace what is there."""
        ...


class Streams:
    """SEAL's serialised ciphertexts <-> polynomials and seeds.

    What surrounds the polynomials is built here and never taken from a message; what SEAL writes must equal it.
    """

    def __init__(self, scheme: Scheme, scratch: Scratch) -> None:
        self._scheme = scheme
        self._scratch = scratch
        self._polynomial_bytes = scheme.parameters.ring_degree * WORD.itemsize
        own = scheme.seal.Serialization.SEALHeader()
        self._start = (own.magic, own.header_size, own.version_major, own.version_minor)

    def seeded(self, serializable: SealObject) -> SeededChunk:
        """Return SEAL's bytes of a fresh symmetric ciphertext: c0 and the seed of c1."""
        start = len(self._prefix(polynomials=1))
        raw = self._saved(serializable, start + self._polynomial_bytes + _GENERATOR_BYTES)
        c0 = np.frombuffer(raw, dtype=WORD, count=self._scheme.parameters.ring_degree, offset=start)
        chunk = SeededChunk(c0, raw[-SEED_BYTES:])
        self._require_equal(raw, self._seeded_stream(chunk))
        return chunk

    def summed(self, ciphertext: SealObject) -> SumChunk:
        """Both polynomials of a ciphertext."""
        start = len(self._prefix(_POLYNOMIALS))
        raw = self._saved(ciphertext, start + _POLYNOMIALS * self._polynomial_bytes)
        both = np.frombuffer(raw, dtype=WORD, offset=start)
        chunk = SumChunk(*np.split(both, _POLYNOMIALS))
        self._require_equal(raw, self._sum_stream(chunk))
        return chunk

    def load_seeded(self, chunk: SeededChunk) -> SealObject:
        """A ciphertext object, c1 expanded."""
        return self._loaded(self._seeded_stream(chunk))

    def load_sum(self, chunk: SumChunk) -> SealObject:
        """A ciphertext object. Raises: MalformedMessage, when it is no encryption (c1 is zero)"""
        if not chunk.c1.any():
            raise MalformedMessage("a CKKS sum is not encrypted (its second polynomial is zero); tell the operator")
        return self._loaded(self._sum_stream(chunk))

    def _seeded_stream(self, chunk: SeededChunk) -> bytes:
        generator = bytes([self._scheme.seal.prng_type.blake2xb]) + chunk.seed
        return self._prefix(polynomials=1) + _words(chunk.c0) + self._header(len(generator)) + generator

    def _sum_stream(self, chunk: SumChunk) -> bytes:
        return self._prefix(_POLYNOMIALS) + _words(chunk.c0) + _words(chunk.c1)

    def _prefix(self, polynomials: int) -> bytes:
        """Everything before the coefficients, of which one or both polynomials follow."""
        parameters = self._scheme.parameters
        members = _MEMBERS.pack(
            *self._scheme.context.first_parms_id(), True, _POLYNOMIALS, parameters.ring_degree, 1, parameters.scale, 1
        )
        words = polynomials * parameters.ring_degree
        return members + self._header(_LENGTH.size + polynomials * self._polynomial_bytes) + _LENGTH.pack(words)

    def _header(self, content_bytes: int, compression: int = _UNCOMPRESSED) -> bytes:
        return _SEAL_HEADER.pack(*self._start, compression, 0, _SEAL_HEADER.size + content_bytes)

    def _saved(self, thing: SealObject, length: int) -> bytes:
        """Return SEAL's bytes, decompressed: ``length`` of them."""
        thing.save(self._scratch.path)
        written = self._scratch.read()
        self._require_equal(written[: _SEAL_HEADER.size], self._header(len(written) - _SEAL_HEADER.size, _ZSTANDARD))
        decompressor = self._scheme.zstandard.ZstdDecompressor()
        raw: bytes = decompressor.decompress(written[_SEAL_HEADER.size :], max_output_size=length)
        self._require_equal(len(raw), length)
        return raw

    def _loaded(self, stream: bytes) -> SealObject:
        ciphertext = self._scheme.seal.Ciphertext()
        self._scratch.write(self._header(len(stream)) + stream)
        try:
            ciphertext.load(self._scheme.context, self._scratch.path)
        except (RuntimeError, ValueError, IndexError) as error:
            raise MalformedMessage("not a ciphertext of this study: SEAL refuses it") from error
        return ciphertext

    def _require_equal(self, found: bytes | int, expected: bytes | int) -> None:
        if found != expected:
            raise ConfigurationError(
                "this version of SEAL writes ciphertexts in another form; install the version of TenSEAL that "
                "docs/operating.md names"
            )


def _words(polynomial: Polynomial) -> bytes:
    return polynomial.astype(WORD, copy=False).tobytes()
