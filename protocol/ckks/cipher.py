"""Encryption of a vector's pieces, addition of ciphertexts, decryption of sums (docs/protocol.md 11).

SEAL draws the noise and the public seeds itself: no argument here is random.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from protocol.ckks.ciphertext import SeededChunk, SumChunk
from protocol.ckks.parameters import CkksParameters
from protocol.ckks.scheme import Scheme, SealObject, SecretKey
from protocol.ckks.streams import Scratch, Streams
from protocol.errors import ProtocolViolation, UnusableUpdate


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
        """Forget what was added so far."""
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
