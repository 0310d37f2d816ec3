"""A study's ciphertexts in server A's hands: what four sites sent, and what can be made of it without a key.

Only what a site does uses the key. TenSEAL is needed when something is encrypted, and not before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from host.memory_file import MemoryFile
from protocol.arithmetic.kernels import Scaling
from protocol.ckks.check import SiteChecks, SumChecks
from protocol.ckks.cipher import Decryptor, Encryptor
from protocol.ckks.ciphertext import Kind, SeededChunk, SumChunk, chunks_of
from protocol.ckks.parameters import CkksParameters
from protocol.ckks.scheme import Scheme, SecretKey
from protocol.ckks.streams import Streams
from protocol.ckks.update import average, body_header, contribution

Body: TypeAlias = list[SumChunk]
Update: TypeAlias = NDArray[np.float32]
PARAMETERS: Final = CkksParameters()
MODULUS: Final = PARAMETERS.modulus
STUDY: Final = "5d" * 32
ROUND, EARLIER = "a0" * 32, "a1" * 32
SITES: Final = ("hospital-1", "hospital-2", "hospital-3", "hospital-4")
DIMENSION: Final = 2500
CHUNKS: Final = 3


def study_key(secret: bytes = bytes(range(32)), parameters: CkksParameters = PARAMETERS) -> SecretKey:
    """The key that all sites of the study hold."""
    return Scheme(parameters).secret_key(secret, STUDY)


def update_of(site: str) -> Update:
    """Half a clip norm long."""
    values = np.random.default_rng(SITES.index(site)).normal(size=DIMENSION)
    return (values / (2 * np.linalg.norm(values))).astype(np.float32)


def sent(key: SecretKey, site: str, round_digest: str = ROUND, dimension: int = DIMENSION) -> bytes:
    """One site's whole contribution of weight 1."""
    header = body_header(Kind.CONTRIBUTION, key, dimension)
    checks = SiteChecks(key, round_digest, site)
    update = np.resize(update_of(site), dimension)
    return b"".join(contribution(Encryptor(key, MemoryFile()), header, update, Scaling(), 1.0, checks))


class Held:
    """What server A holds of a round; ``earlier``: the second site's share of the round before."""

    def __init__(self) -> None:
        self.key = study_key()
        self.bodies = [self._expanded(sent(self.key, site)) for site in SITES]
        self.earlier = self._expanded(sent(self.key, SITES[1], EARLIER))

    def combined(self, factors: Sequence[int], bodies: Sequence[Body] | None = None) -> Body:
        """A whole-number combination of the sites' ciphertexts, piece by piece."""
        bodies = self.bodies if bodies is None else bodies
        made = [times(chunk, factors[0]) for chunk in bodies[0]]
        for body, factor in zip(bodies[1:], factors[1:], strict=True):
            made = [plus(one, times(other, factor)) for one, other in zip(made, body, strict=True)]
        return made

    def honest(self) -> Body:
        """The sum that it should serve."""
        return self.combined([1] * len(SITES))

    def encoded(self, slots: NDArray[np.float64], scale: float = PARAMETERS.scale) -> NDArray[np.uint64]:
        """A plaintext's values, which anybody can compute."""
        plain = self.key.scheme.seal.Plaintext()
        self.key.scheme.seal.CKKSEncoder(self.key.scheme.context).encode(slots.tolist(), scale, plain)
        return np.array([plain[place] for place in range(PARAMETERS.ring_degree)], dtype=np.uint64)

    def opened(self, body: Body) -> Update:
        """What a site makes of a sum. Raises: MalformedMessage, SumForged, AggregateOutOfBounds"""
        pieces = [body_header(Kind.SUM, self.key, DIMENSION).to_bytes()]
        pieces += [chunk.to_bytes(PARAMETERS) for chunk in body]
        return opened(self.key, pieces, SITES)

    def _expanded(self, body: bytes) -> Body:
        """Both polynomials of fresh ciphertexts, as server A computes them from the public seed."""
        streams = Streams(self.key.scheme, MemoryFile())
        chunks = chunks_of([body], PARAMETERS, body_header(Kind.CONTRIBUTION, self.key, DIMENSION))
        return [streams.summed(streams.load_seeded(SeededChunk.parse(chunk, PARAMETERS))) for chunk in chunks]


def opened(key: SecretKey, pieces: Sequence[bytes], sites: Sequence[str]) -> Update:
    """What holders of the key make of a served sum. Any weights will do.

    Raises: MalformedMessage, SumForged, AggregateOutOfBounds
    """
    header, checks = body_header(Kind.SUM, key, DIMENSION), SumChecks(key, ROUND, sites)
    return average(pieces, Decryptor(key, MemoryFile()), header, checks, 0.0, 1.0)


def times(chunk: SumChunk, factor: int | NDArray[np.uint64]) -> SumChunk:
    """The ciphertext of the message times a constant, or times a polynomial given by its values."""
    multiplier = np.asarray(factor, dtype=object)
    return SumChunk(*(((p.astype(object) * multiplier) % MODULUS).astype(np.uint64) for p in (chunk.c0, chunk.c1)))


def plus(one: SumChunk, other: SumChunk) -> SumChunk:
    """The ciphertext of the sum of two messages."""
    return SumChunk((one.c0 + other.c0) % np.uint64(MODULUS), (one.c1 + other.c1) % np.uint64(MODULUS))


Forgery: TypeAlias = Callable[[Held], Body]
"""What a server that holds ciphertexts alone makes of them."""
