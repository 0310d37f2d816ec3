"""From an update to sealed ciphertexts at server A (docs/protocol.md 11).

Encrypted once a round, sealed once, and resent as it is: a second encryption of the same update would be another
message. Everything streams: no more than one ciphertext is in memory besides the update.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from client_agent.study.contribute import EncodedUpdate
from host.durable import write_pieces
from host.memory_file import MemoryFile
from host.randomness import Randomness
from protocol.arithmetic.fixed_point import scaling_of
from protocol.bodies.contribution import Part, ciphertext_parts
from protocol.ckks.check import SiteChecks
from protocol.ckks.cipher import Encryptor
from protocol.ckks.ciphertext import Kind
from protocol.ckks.scheme import SecretKey
from protocol.ckks.update import body_header, contribution
from protocol.parameters import StudyParameters
from protocol.sharing import Side
from protocol.wire.channel.sealing import Octets
from protocol.wire.messages import Announcement, Roster

ENCRYPTED: Final = "encrypted.ckks"
_READ_BYTES: Final = 2**18


def encrypt_update(
    update: NDArray[np.float32],
    layers: Sequence[tuple[str, int]],
    weight: float,
    parameters: StudyParameters,
    key: SecretKey,
    checks: SiteChecks,
    into: Path,
) -> EncodedUpdate:
    """Check, clip, weigh, encrypt; the weight goes first, encrypted too, the check values behind.

    The body goes to the file ``into``.

    Shapes:   float32[D] -> ciphertexts of 1 + D values in a file
    Raises:   UnusableUpdate, which names the layer
    """
    scaling = scaling_of(update, layers, parameters, weight)
    header = body_header(Kind.CONTRIBUTION, key, update.size)
    with closing(MemoryFile()) as scratch:
        encryptor = Encryptor(key, scratch)
        write_pieces(into, contribution(encryptor, header, update, scaling, parameters.clip_norm, checks))
    norm = parameters.clip_norm if scaling.clips else math.sqrt(float(np.sum(np.square(update.astype(np.float64)))))
    return EncodedUpdate(numerator=round(weight * parameters.weight_grid), clipped=scaling.clips, norm=norm)


@dataclass(frozen=True)
class EncryptedFile:
    """An encrypted update on disk. ``length`` counts the values, the weight among them."""

    path: Path
    length: int

    def parts(self, announcement: Announcement, attempt: int, site: str, roster: Roster) -> dict[Side, Part]:
        """All of it for side A."""
        return ciphertext_parts(announcement, attempt, site, self.length)

    def content(self, randomness: Randomness, label: str) -> Callable[[Part], Iterator[Octets]]:
        """The ciphertexts. Reveals: to holders of the key, everything"""
        return lambda part: self._pieces()

    def _pieces(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            while piece := file.read(_READ_BYTES):
                yield piece
