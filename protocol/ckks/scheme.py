"""Parameters as SEAL takes them, and the secret key: Microsoft SEAL through TenSEAL (docs/protocol.md 11).

The only module that imports TenSEAL, at the first call. A secret key follows from its seed alone.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Final, TypeAlias

import numpy as np

from protocol.arithmetic.prg import derive
from protocol.ckks.ciphertext import FINGERPRINT_BYTES, KEY_ID_BYTES, SEED_BYTES
from protocol.ckks.parameters import CkksParameters
from protocol.errors import ConfigurationError, MalformedMessage
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
