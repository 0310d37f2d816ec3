"""A released sum of ciphertexts at a site: fetched from server A, decrypted, checked, divided (docs/protocol.md 11).

What is fetched waits on disk, still encrypted, until it is known to be the sum that both servers signed; only then is
any of it decrypted.
"""

from __future__ import annotations

import hashlib
import hmac
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Final

import numpy as np
from numpy.typing import NDArray

from client_agent.network.server_client import ServerClient
from client_agent.site.letter import PastRelease
from client_agent.study.take_release import check_release, own_key_id, require_sum_release
from host.memory_file import MemoryFile
from protocol.bodies import output
from protocol.ckks.check import SumChecks
from protocol.ckks.cipher import Decryptor
from protocol.ckks.ciphertext import Kind
from protocol.ckks.scheme import SecretKey
from protocol.ckks.update import average, body_header
from protocol.errors import TranscriptMismatch
from protocol.sharing import Side
from protocol.wire.keys import SealingKey
from protocol.wire.messages import OutputHeader, Roster, ShareKind, Study, SumRelease

_READ_BYTES: Final = 2**18


@dataclass(frozen=True)
class EncryptedOutput:
    """What a site needs to open the sums of one study; ``folder`` takes one while it is fetched, under no name."""

    study: Study
    study_digest: str
    site: str
    roster: Roster
    sealing: SealingKey = field(repr=False)
    key: SecretKey = field(repr=False)
    clients: Mapping[Side, ServerClient]
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
        if past.announcement.ckks_key_id != self.key.id.hex():
            raise TranscriptMismatch(f"round {past.announcement.round}: the sum is under another key than this site's")
        signed = require_sum_release(past, self.roster)
        with tempfile.TemporaryFile(dir=self.folder) as file:
            expected = self._expected(past)
            self.clients[Side.A].fetch_output(
                self.study.name,
                past.announcement.round,
                lambda pieces: self._keep(past, signed, output.read(expected, self.sealing, pieces), file),
                output.most_bytes(expected),
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
                Decryptor(self.key, scratch),
                body_header(Kind.SUM, self.key, self.study.model_dimension),
                SumChecks(self.key, past.announcement.digest(), past.release_set.message.sites),
                self.study.least_weight,
                self.study.parameters.clip_norm,
            )

    def _expected(self, past: PastRelease) -> OutputHeader:
        return OutputHeader(
            release_digest=past.release_set.message.digest(),
            side=Side.A,
            share_kind=ShareKind.CIPHERTEXT,
            recipient=own_key_id(self.roster, self.site),
            length=self.study.encrypted_values,
        )
