"""From an update to sealed parts at the servers: two shares, or all of it encrypted (docs/protocol.md 2, 3, 11).

The vector is journalled once a round; its parts are made once an attempt, journalled sealed, and resent as they are. A
burnt round gets fresh shares of the same encoded update. Everything streams: no more than one chunk is in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, model_validator

from client_agent.network.body import Body
from client_agent.network.server_client import ServerClient
from client_agent.points import Point
from client_agent.site.journal import StudyJournal
from host.durable import replacing, write_pieces
from host.randomness import Randomness
from protocol.arithmetic.fixed_point import encode_into, scaling_of
from protocol.arithmetic.ring import ELEMENT_BYTES, Ring, from_bytes, to_bytes
from protocol.bodies.contribution import Part, PartSealing, share_parts
from protocol.errors import ConfigurationError, TranscriptMismatch
from protocol.parameters import StudyParameters
from protocol.sharing import Side, split_chunk_into
from protocol.wire.authentic import require_signatures
from protocol.wire.channel.sealing import Octets
from protocol.wire.messages import Announcement, Receipt, Roster, ShareKind, Signed

CHUNK: Final = 2**15
ENCODED: Final = "encoded.ring"
_RECORD: Final = "contribution.json"
_CIPHERTEXT: Final = "ciphertext"


class EncodedUpdate(BaseModel):
    """What is known of the round's update besides its encoding; ``norm`` is that of the clipped update."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    numerator: int
    clipped: bool
    norm: float


class ContributionRecord(BaseModel):
    """The sealed parts of one attempt, ready to be (re)sent; digests are those of the sealed messages.

    An encrypted update has one part, for side A.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    round: int
    attempt: int
    announcement_digest: str
    digest_a: str
    digest_b: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _of_one_part(cls, found: object) -> object:
        """Agents before wrote the digest of an encrypted update under another name."""
        if isinstance(found, dict) and "digest" in found:
            return {"digest_a" if name == "digest" else name: value for name, value in found.items()}
        return found

    @property
    def digests(self) -> dict[Side, str]:
        """Of every part that there is."""
        return {Side.A: self.digest_a} | ({} if self.digest_b is None else {Side.B: self.digest_b})

    def file(self, side: Side) -> str:
        """The name of a sealed part in the attempt's folder."""
        return _sealed_file(side, encrypted=self.digest_b is None)


class SentVector(Protocol):
    """A round's vector in the journal, as it leaves the site."""

    def parts(self, announcement: Announcement, attempt: int, site: str, roster: Roster) -> dict[Side, Part]:
        """What each server gets of it."""
        ...

    def content(self, randomness: Randomness, label: str) -> Callable[[Part], Iterator[Octets]]:
        """Each part's content, piece by piece; a piece holds until the next one is taken."""
        ...


def encode_update(
    update: NDArray[np.float32],
    layers: Sequence[tuple[str, int]],
    numerator: int,
    parameters: StudyParameters,
    rounding_seed: bytes,
    into: Path,
) -> EncodedUpdate:
    """Check, clip, weigh, encode; the ring vector goes to the file ``into``.

    Shapes:   float32[D] -> uint64[D] in a file, f fraction bits
    Raises:   UnusableUpdate, which names the layer
    Source:   docs/protocol.md 2: clip first, then the weight, then the encoding
    """
    scaling = scaling_of(update, layers, parameters, numerator / parameters.weight_grid)

    def chunks() -> Iterator[bytes]:
        for start in range(0, update.size, CHUNK):
            piece = update[start : start + CHUNK]
            encoded = np.empty(piece.shape, dtype=np.uint64)
            encode_into(encoded, piece, scaling, rounding_seed, start)
            yield to_bytes(encoded)

    write_pieces(into, chunks())
    norm = parameters.clip_norm if scaling.clips else norm_of(update)
    return EncodedUpdate(numerator=numerator, clipped=scaling.clips, norm=norm)


def norm_of(update: NDArray[np.float32]) -> float:
    """L2 norm in float64, chunk by chunk."""
    pieces = (update[start : start + CHUNK].astype(np.float64) for start in range(0, update.size, CHUNK))
    return math.sqrt(sum(float(np.sum(np.square(piece))) for piece in pieces))


@dataclass(frozen=True)
class EncodedFile:
    """Chunk access to an encoded update on disk."""

    path: Path
    length: int

    def __call__(self, start: int, stop: int) -> Ring:
        with self.path.open("rb") as file:
            file.seek(start * ELEMENT_BYTES)
            return from_bytes(file.read((stop - start) * ELEMENT_BYTES), stop - start)

    def chunks(self) -> Iterator[tuple[int, Ring]]:
        """The whole vector piece by piece, each with its place; a piece holds until the next one is taken."""
        buffer = np.empty(min(CHUNK, self.length), dtype=np.uint64)
        with self.path.open("rb", buffering=0) as file:
            for start in range(0, self.length, CHUNK):
                piece = buffer[: min(CHUNK, self.length - start)]
                if file.readinto(piece.data.cast("B")) != piece.nbytes:
                    raise ConfigurationError(f"{self.path} ends before element {start + piece.size}; restore it")
                yield start, piece

    def parts(self, announcement: Announcement, attempt: int, site: str, roster: Roster) -> dict[Side, Part]:
        """Two shares."""
        return share_parts(announcement, attempt, site, roster, self.length)

    def content(self, randomness: Randomness, label: str) -> Callable[[Part], Iterator[Octets]]:
        """Under one fresh seed. Reveals: nothing: each part holds a uniform share"""
        seed = randomness.bytes(32, f"share seed {label}")
        return lambda part: self._share(part, seed)

    def _share(self, part: Part, seed: bytes) -> Iterator[Octets]:
        if part.kind is ShareKind.SEED:
            yield seed
            return
        buffer = np.empty(min(CHUNK, self.length), dtype=np.uint64)
        for start, chunk in self.chunks():
            share = buffer[: chunk.size]
            split_chunk_into(share, chunk, seed, start)
            yield share.data


def make_contribution(
    vector: SentVector,
    announcement: Announcement,
    attempt: int,
    site: str,
    roster: Roster,
    randomness: Randomness,
    journal: StudyJournal,
) -> ContributionRecord:
    """Seal and commit; the journalled one when this attempt was made before.

    Reveals:  what the vector's parts do, each to the server that opens it; to others the length
    """
    folder, encrypted = journal.attempt_folder(announcement.round, attempt), announcement.protection.plan.keyed
    kept = folder / (f"{_CIPHERTEXT}.json" if encrypted else _RECORD)
    made = journal.read(kept, ContributionRecord)
    if made is not None:
        return made
    label = f"{announcement.study_digest} round {announcement.round} attempt {attempt}"
    parts = vector.parts(announcement, attempt, site, roster)
    sealing = {side: _fresh(part, roster, randomness, label) for side, part in parts.items()}
    files = {side: folder / _sealed_file(side, encrypted) for side in parts}
    digests = _seal_into(files, sealing, vector.content(randomness, label))
    record = ContributionRecord(
        round=announcement.round,
        attempt=attempt,
        announcement_digest=announcement.digest(),
        digest_a=digests[Side.A],
        digest_b=digests.get(Side.B),
    )
    journal.reach(Point.BEFORE_SHARES_SEALED)
    journal.write(kept, record)
    journal.reach(Point.AFTER_SHARES_SEALED)
    return record


def _sealed_file(side: Side, encrypted: bool) -> str:
    return f"{_CIPHERTEXT if encrypted else side}.sealed"


def _fresh(part: Part, roster: Roster, randomness: Randomness, label: str) -> PartSealing:
    """A part with a content key and a salt of its own."""
    name = _CIPHERTEXT if part.kind is ShareKind.CIPHERTEXT else part.side
    content_key = randomness.bytes(32, f"content key {name} {label}")
    salt = randomness.bytes(32, f"commitment salt {name} {label}")
    return PartSealing(part, roster.operator(part.side).sealing, content_key, salt)


def _seal_into(
    files: Mapping[Side, Path], sealing: Mapping[Side, PartSealing], content: Callable[[Part], Iterator[Octets]]
) -> dict[Side, str]:
    """The sealed files; the contents come first and the heads, which name all commitments, in front of them.

    -> the messages' digests, hexadecimal
    """
    with ExitStack() as stack:
        file = {side: stack.enter_context(replacing(path)) for side, path in files.items()}
        for side, one in sealing.items():
            file[side].seek(one.head_bytes)
            for chunk in one.encrypted(content(one.part)):
                file[side].write(chunk)
        committed = {side: one.commitment() for side, one in sealing.items()}
        digests: dict[Side, str] = {}
        for side, one in sealing.items():
            head, digest = one.head(committed)
            file[side].seek(0)
            file[side].write(head)
            digests[side] = digest.hex()
    return digests


def send_contribution(
    record: ContributionRecord,
    study: str,
    site: str,
    study_digest: str,
    roster: Roster,
    clients: Mapping[Side, ServerClient],
    journal: StudyJournal,
) -> None:
    """All uploads at once; returns when every server's receipt is verified and journalled.

    Raises: what a server refused with; Unavailable when one cannot be reached
    """
    folder = journal.attempt_folder(record.round, record.attempt)

    def upload(side: Side) -> None:
        kept = folder / f"receipt-{side}.json"
        if kept.exists():
            return
        midway = partial(journal.reach, Point.UPLOAD_MIDWAY)
        body = Body.contribution(folder / record.file(side), bytes.fromhex(record.digests[side]), midway)
        receipt = clients[side].contribute(study, record.round, record.attempt, body)
        _check_receipt(receipt, record, site, study_digest, side, roster)
        journal.reach(Point.BEFORE_RECEIPT_JOURNALLED)
        journal.write(kept, receipt)
        journal.reach(Point.AFTER_RECEIPT_JOURNALLED)

    with ThreadPoolExecutor(2, thread_name_prefix="upload") as pool:
        uploads = [pool.submit(upload, side) for side in record.digests]
    for done in uploads:
        done.result()


def _check_receipt(
    receipt: Signed[Receipt], record: ContributionRecord, site: str, study_digest: str, side: Side, roster: Roster
) -> None:
    expected = Receipt(
        study_digest=study_digest,
        round=record.round,
        attempt=record.attempt,
        site=site,
        side=side,
        body_digest=record.digests[side],
    )
    if require_signatures(receipt, roster, [roster.operator(side).name]) != expected:
        raise TranscriptMismatch(f"the receipt of server {side} is for something else than what was sent")
