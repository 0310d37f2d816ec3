"""A released sum of ciphertexts at a site: fetched from server A, decrypted, checked, divided (docs/protocol.md 11).

What is fetched waits on disk, still encrypted, until it is known to be the sum that both servers signed; only then is
any of it decrypted.
"""

from __future__ import annotations

import hashlib
import hmac
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Final

import numpy as np
from numpy.typing import NDArray

from client_agent.study.take_release import Outputs
from host.memory_file import MemoryFile
from protocol.bodies import output
from protocol.ckks.check import SumChecks
from protocol.ckks.cipher import Decryptor
from protocol.ckks.ciphertext import Kind
from protocol.ckks.scheme import SecretKey
from protocol.ckks.update import average, body_header
from protocol.errors import TranscriptMismatch
from protocol.evidence import PastRelease, check_release, require_sum_release
from protocol.sharing import Side
from protocol.wire.messages import SumRelease

_READ_BYTES: Final = 2**18


@dataclass(frozen=True)
class EncryptedOutput(Outputs):
    """Opens released sums of ciphertexts; ``folder`` takes one while it is fetched, under no name."""

    ckks_key: SecretKey = field(repr=False)
    folder: Path

    def open(self, past: PastRelease) -> NDArray[np.float32]:
        """The average update of a released round; what comes out stays at this site.

        Shapes:   -> float32[D]
        Reveals:  the average to this site
        Raises:   Unavailable, UnknownResource; SumForged and other AggregateOutOfBounds, which discard the round;
                  BadSignature, AnnouncementMismatch, TranscriptMismatch, ProtocolViolation, MalformedMessage,
                  BrokenSeal
        """
        check_release(past, self.roster, self.study_digest)
        if past.announcement.ckks_key_id != self.ckks_key.id.hex():
            raise TranscriptMismatch(f"round {past.announcement.round}: the sum is under another key than this site's")
        signed = require_sum_release(past, self.roster)
        with tempfile.TemporaryFile(dir=self.folder) as file:
            self.fetch(
                past,
                Side.A,
                lambda expected, pieces: self._keep(past, signed, output.read(expected, self.key, pieces), file),
            )
            return self._average(past, file)

    def _keep(self, past: PastRelease, signed: SumRelease, pieces: Iterator[bytes], file: IO[bytes]) -> None:
        """All of it into the file, from its beginning. Raises: TranscriptMismatch, when it is not what was signed"""
        file.seek(0)
        file.truncate()
        taken = hashlib.sha256()
        for piece in pieces:
            taken.update(piece)
            file.write(piece)
        if not hmac.compare_digest(taken.hexdigest(), signed.sum_digest):
            raise TranscriptMismatch(
                f"round {past.announcement.round}: server a served another sum than both servers signed; nothing of it "
                "was decrypted"
            )

    def _average(self, past: PastRelease, file: IO[bytes]) -> NDArray[np.float32]:
        file.seek(0)
        with closing(MemoryFile()) as scratch:
            return average(
                iter(partial(file.read, _READ_BYTES), b""),
                Decryptor(self.ckks_key, scratch),
                body_header(Kind.SUM, self.ckks_key, self.study.model_dimension),
                SumChecks(self.ckks_key, past.announcement.digest(), past.release_set.message.sites),
                self.study.least_weight,
                self.study.parameters.clip_norm,
            )
