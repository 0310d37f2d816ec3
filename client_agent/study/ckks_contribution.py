"""From an update to sealed ciphertexts at server A (docs/protocol.md 11).

Encrypted once a round, sealed once, and resent as it is: a second encryption of the same update would be another
message. Everything streams: no more than one ciphertext is in memory besides the update.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from client_agent.network.body import Body
from client_agent.network.server_client import ServerClient
from client_agent.points import Point
from client_agent.site.journal import StudyJournal
from client_agent.study.contribute import EncodedUpdate, seal_into
from host.durable import write_pieces
from host.memory_file import MemoryFile
from host.randomness import Randomness
from protocol.arithmetic.fixed_point import scaling_of
from protocol.bodies.contribution import PartSealing, ciphertext_parts
from protocol.ckks.check import SiteChecks
from protocol.ckks.cipher import Encryptor
from protocol.ckks.ciphertext import Kind
from protocol.ckks.scheme import SecretKey
from protocol.ckks.update import body_header, contribution
from protocol.errors import TranscriptMismatch
from protocol.parameters import StudyParameters
from protocol.sharing import Side
from protocol.wire.authentic import require_signatures
from protocol.wire.messages import Announcement, Receipt, Roster

ENCRYPTED: Final = "encrypted.ckks"
_RECORD: Final = "ciphertext.json"
_SEALED: Final = "ciphertext.sealed"
_RECEIPT: Final = "receipt-a.json"
_READ_BYTES: Final = 2**18


class CiphertextRecord(BaseModel):
    """The sealed ciphertexts of one attempt, ready to be (re)sent; the digest is the sealed message's."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    round: int
    attempt: int
    announcement_digest: str
    digest: str


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
class EncryptedContribution:
    """One site's ciphertexts of one attempt, on their way to server A. ``values`` counts the weight."""

    announcement: Announcement
    attempt: int
    site: str
    roster: Roster
    journal: StudyJournal
    values: int

    @property
    def _folder(self) -> Path:
        return self.journal.attempt_folder(self.announcement.round, self.attempt)

    def seal(self, randomness: Randomness) -> CiphertextRecord:
        """Seal and commit; the journalled record when this attempt was sealed before.

        Reveals:  to server A: ciphertexts. To others: the length
        """
        made = self.journal.read(self._folder / _RECORD, CiphertextRecord)
        if made is not None:
            return made
        label = f"{self.announcement.study_digest} round {self.announcement.round} attempt {self.attempt}"
        part = ciphertext_parts(self.announcement, self.attempt, self.site, self.values)[Side.A]
        salt = randomness.bytes(32, f"commitment salt ciphertext {label}")
        content_key = randomness.bytes(32, f"content key ciphertext {label}")
        sealing = {Side.A: PartSealing(part, self.roster.operator_a.sealing, content_key, salt)}
        record = CiphertextRecord(
            round=self.announcement.round,
            attempt=self.attempt,
            announcement_digest=self.announcement.digest(),
            digest=seal_into({Side.A: self._folder / _SEALED}, sealing, lambda _: self._pieces())[Side.A],
        )
        self.journal.reach(Point.BEFORE_SHARES_SEALED)
        self.journal.write(self._folder / _RECORD, record)
        self.journal.reach(Point.AFTER_SHARES_SEALED)
        return record

    def send(self, record: CiphertextRecord, study: str, clients: Mapping[Side, ServerClient]) -> None:
        """Upload; returns when server A's receipt is verified and journalled.

        Raises: what the server refused with; Unavailable when it cannot be reached
        """
        kept = self._folder / _RECEIPT
        if kept.exists():
            return
        midway = partial(self.journal.reach, Point.UPLOAD_MIDWAY)
        body = Body.contribution(self._folder / _SEALED, bytes.fromhex(record.digest), midway)
        receipt = clients[Side.A].contribute(study, record.round, record.attempt, body)
        expected = Receipt(
            study_digest=self.announcement.study_digest,
            round=record.round,
            attempt=record.attempt,
            site=self.site,
            side=Side.A,
            body_digest=record.digest,
        )
        if require_signatures(receipt, self.roster, [self.roster.operator_a.name]) != expected:
            raise TranscriptMismatch("the receipt of server a is for something else than what was sent")
        self.journal.reach(Point.BEFORE_RECEIPT_JOURNALLED)
        self.journal.write(kept, receipt)
        self.journal.reach(Point.AFTER_RECEIPT_JOURNALLED)

    def _pieces(self) -> Iterator[bytes]:
        with (self.journal.round_folder(self.announcement.round) / ENCRYPTED).open("rb") as file:
            while piece := file.read(_READ_BYTES):
                yield piece
