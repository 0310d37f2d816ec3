"""Microsoft SEAL through TenSEAL: keys, encryption, sums of ciphertexts (docs/protocol.md 11).

The only module that imports TenSEAL, at the first call. A secret key follows from its seed alone.

TenSEAL's ``sealapi`` saves and loads by path only, so a :class:`Scratch` comes from the caller. SEAL's streams are
compressed when it writes them; what travels is the fixed-width form of ``ciphertext.py``.
SEAL draws the noise and the public seeds itself: no argument here is random.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from protocol.arithmetic.ring import derive
from protocol.ckks.ciphertext import (
    FINGERPRINT_BYTES,
    KEY_ID_BYTES,
    SEED_BYTES,
    CkksParameters,
    Polynomial,
    SeededChunk,
    SumChunk,
)
from protocol.errors import ConfigurationError, MalformedMessage, ProtocolViolation, UnusableUpdate
from protocol.parameters import PROTOCOL_VERSION

KEY_SEED_BYTES: Final = 32
MISSING: Final = "TenSEAL is not installed, and the CKKS path needs it: pip install 'moiety[he]'"

WORD: Final = np.dtype("<u8")
_WORDS_OF_SEED: Final = struct.Struct("<8Q")

SealObject: TypeAlias = Any
"""An object of TenSEAL's ``sealapi``, which has no types."""


class Scheme:
    """The parameters, checked by SEAL. Public: no key comes near it.

    Raises: ConfigurationError, when TenSEAL is missing or SEAL finds less than 128-bit security
    """

    def __init__(self, parameters: CkksParameters) -> None:
        self.parameters = parameters
        self.seal, self.zstandard = _libraries()
        self.context = self._context(None)
        if not self.context.parameters_set():
            raise ConfigurationError(f"SEAL refuses these parameters: {self.context.parameters_error_message()}")
        self.fingerprint = self._fingerprint()

    def secret_key(self, seed: bytes, study_digest: str) -> SecretKey:
        """The study's key, the same wherever it is derived.

        Requires: ``seed`` is 32 fresh random bytes, drawn by the requester for this study alone
        Raises:   MalformedMessage on another length
        """
        if len(seed) != KEY_SEED_BYTES:
            raise MalformedMessage(f"a CKKS key seed has {len(seed)} bytes, must have {KEY_SEED_BYTES}")
        words = _WORDS_OF_SEED.unpack(hashlib.sha512(f"moiety/2 ckks key {study_digest} ".encode() + seed).digest())
        key = self.seal.KeyGenerator(self._context(words)).secret_key()
        data = key.data()
        coefficients = np.array([data.data(i) for i in range(self.parameters.ring_degree)], dtype=WORD)
        digest = hashlib.sha256(b"moiety/2 ckks key id\x00" + coefficients.tobytes()).digest()
        check_key = derive(seed, f"{PROTOCOL_VERSION} ckks check key {study_digest}")
        return SecretKey(self, digest[:KEY_ID_BYTES], key, check_key)

    def _context(self, generator_seed: tuple[int, ...] | None) -> SealObject:
        """SEAL's context; with a seed, one whose key generator draws from that seed, and which encrypts nothing."""
        chosen = self._encryption_parameters()
        if generator_seed is not None:
            chosen.set_random_generator(self.seal.Blake2xbPRNGFactory(list(generator_seed)))
        return self.seal.SEALContext(chosen, True, self.seal.SEC_LEVEL_TYPE.TC128)

    def _encryption_parameters(self) -> SealObject:
        chosen = self.seal.EncryptionParameters(self.seal.SCHEME_TYPE.CKKS)
        chosen.set_poly_modulus_degree(self.parameters.ring_degree)
        chosen.set_coeff_modulus([self.seal.Modulus(self.parameters.modulus)])
        return chosen

    def _fingerprint(self) -> bytes:
        """Differs when ring, modulus or scale do, or when another SEAL expands seeds differently."""
        generator = self.seal.Blake2xbPRNG(list(_WORDS_OF_SEED.unpack(bytes(SEED_BYTES))))
        expanded = self.seal.util.sample_poly_uniform(generator, self._encryption_parameters())
        stated = f"moiety/2 ckks {self.parameters.model_dump_json()} ".encode()
        return hashlib.sha256(stated + np.array(expanded, dtype=WORD).tobytes()).digest()[:FINGERPRINT_BYTES]


@dataclass(frozen=True)
class SecretKey:
    """The cohort's secret key: every site holds it, no server does. ``id`` is a digest that may be public.

    ``check_key`` is what the check values of sums follow from.
    """

    scheme: Scheme = field(repr=False)
    id: bytes
    key: SealObject = field(repr=False)
    check_key: bytes = field(repr=False)


def _libraries() -> tuple[ModuleType, ModuleType]:
    try:
        import tenseal.sealapi as seal
        import tenseal.sealapi.util  # noqa: F401 - makes seal.util
        import zstandard
    except ImportError as error:
        raise ConfigurationError(MISSING) from error
    return seal, zstandard


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

    def write(self, data: bytes) -> None: ...


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


class Encryptor:
    """Encrypts pieces of a vector, under the secret key."""

    def __init__(self, key: SecretKey, scratch: Scratch) -> None:
        self._scheme = key.scheme
        self._streams = Streams(key.scheme, scratch)
        self._encoder = key.scheme.seal.CKKSEncoder(key.scheme.context)
        self._encryptor = key.scheme.seal.Encryptor(key.scheme.context, key.key)

    @property
    def parameters(self) -> CkksParameters:
        return self._scheme.parameters

    def encrypt(self, values: NDArray[np.float64]) -> bytes:
        """One ciphertext, with fresh noise and a fresh public seed.

        Shapes:   float64[n], n at most the slots, divided by the clip norm; missing values are zeros -> bytes
        Reveals:  to holders of the key: the values. To others: nothing (ring learning with errors)
        Raises:   UnusableUpdate, when a value is not finite or the sum of magnitudes leaves the plaintext's range
        """
        parameters = self._scheme.parameters
        self._require_fitting(values)
        plain = self._scheme.seal.Plaintext()
        padded = np.zeros(parameters.slots)
        padded[: values.size] = values
        self._encoder.encode(padded.tolist(), parameters.scale, plain)
        return self._streams.seeded(self._encryptor.encrypt_symmetric(plain)).to_bytes(parameters)

    def _require_fitting(self, values: NDArray[np.float64]) -> None:
        parameters = self._scheme.parameters
        if values.ndim != 1 or not 1 <= values.size <= parameters.slots:
            raise UnusableUpdate(f"a ciphertext holds 1 to {parameters.slots} values, found shape {values.shape}")
        magnitudes = float(np.abs(values).sum())
        if not np.isfinite(magnitudes):
            raise UnusableUpdate("a value is NaN or infinite; lower the learning rate or check the data")
        if magnitudes > parameters.largest_magnitudes:
            raise UnusableUpdate(
                f"the magnitudes of one ciphertext's values add up to {magnitudes:.4g}, at most "
                f"{parameters.largest_magnitudes:.4g} fit when {parameters.most_sites} sites are summed; clip first"
            )


class Adder:
    """Adds fresh ciphertexts. Needs no key, and has none."""

    def __init__(self, scheme: Scheme, scratch: Scratch) -> None:
        self._scheme = scheme
        self._streams = Streams(scheme, scratch)
        self._evaluator = scheme.seal.Evaluator(scheme.context)
        self._total: SealObject = None
        self._added = 0

    def check(self, chunk: bytes) -> None:
        """Parse a fresh ciphertext, as ``add`` would. Raises: MalformedMessage"""
        self._streams.load_seeded(SeededChunk.parse(chunk, self._scheme.parameters))

    def add(self, chunk: bytes) -> None:
        """Add a fresh ciphertext to the sum. Raises: MalformedMessage; ProtocolViolation beyond ``most_sites``"""
        if self._added == self._scheme.parameters.most_sites:
            raise ProtocolViolation(f"a sum holds at most {self._added} ciphertexts; its noise and range say so")
        loaded = self._streams.load_seeded(SeededChunk.parse(chunk, self._scheme.parameters))
        if self._total is None:
            self._total = loaded
        else:
            self._evaluator.add_inplace(self._total, loaded)
        self._added += 1

    def sum(self, chunks: Iterable[bytes]) -> bytes:
        """The sum of fresh ciphertexts. Raises: MalformedMessage; ProtocolViolation, as ``add`` and ``finish``"""
        for chunk in chunks:
            self.add(chunk)
        return self.finish()

    def finish(self) -> bytes:
        """The sum, and begin anew. Raises: ProtocolViolation, when nothing was added"""
        if self._total is None:
            raise ProtocolViolation("a sum of no ciphertexts would be sent in clear; add one first")
        total = self._total
        self.reset()
        return self._streams.summed(total).to_bytes(self._scheme.parameters)

    def reset(self) -> None:
        self._total, self._added = None, 0


class Decryptor:
    """Decrypts sums. What it returns is approximate and stays with holders of the key (docs/threat_model.md)."""

    def __init__(self, key: SecretKey, scratch: Scratch) -> None:
        self._scheme = key.scheme
        self._streams = Streams(key.scheme, scratch)
        self._encoder = key.scheme.seal.CKKSEncoder(key.scheme.context)
        self._decryptor = key.scheme.seal.Decryptor(key.scheme.context, key.key)

    @property
    def parameters(self) -> CkksParameters:
        return self._scheme.parameters

    def decrypt(self, chunk: bytes) -> NDArray[np.float64]:
        """The values of a sum.

        Shapes:   -> float64[slots], in units of the clip norm
        Raises:   MalformedMessage
        """
        plain = self._scheme.seal.Plaintext()
        loaded = self._streams.load_sum(SumChunk.parse(chunk, self._scheme.parameters))
        self._decryptor.decrypt(loaded, plain)
        return np.array(self._encoder.decode_double(plain))
