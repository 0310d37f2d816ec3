"""From an update to two sealed shares at the servers (docs/protocol.md 2, 3).

The encoded update is journalled once a round; the shares are made from it once an attempt, journalled sealed, and
resent as they are. A burnt round gets fresh shares of the same encoded update. Everything streams: no more than one
chunk of a share is in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
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
RECORD: Final = "contribution.json"


class EncodedUpdate(BaseModel):
    """What is known of the round's update besides its encoding; ``norm`` is that of the clipped update."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    numerator: int
    clipped: bool
    norm: float


class ContributionRecord(BaseModel):
    """The sealed shares of one attempt, ready to be (re)sent; digests are those of the sealed messages."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    round: int
    attempt: int
    announcement_digest: str
    digest_a: str
    digest_b: str

    def digest_of(self, side: Side) -> str:
        return self.digest_a if side is Side.A else self.digest_b


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


def make_contribution(
    encoded: EncodedFile,
    announcement: Announcement,
    attempt: int,
    site: str,
    roster: Roster,
    randomness: Randomness,
    journal: StudyJournal,
) -> ContributionRecord:
    """Split, seal and commit; the journalled one when this attempt was made before.

    Reveals:  nothing: each sealed file opens at one server and holds a uniform share
    """
    folder = journal.attempt_folder(announcement.round, attempt)
    made = journal.read(folder / RECORD, ContributionRecord)
    if made is not None:
        return made
    label = f"{announcement.study_digest} round {announcement.round} attempt {attempt}"
    seed = randomness.bytes(32, f"share seed {label}")
    parts = share_parts(announcement, attempt, site, roster, encoded.length)
    sealing = {side: _fresh(part, roster, randomness, label) for side, part in parts.items()}
    files = {side: folder / f"{side}.sealed" for side in Side}
    digests = seal_into(files, sealing, lambda part: _share(encoded, seed, part))
    record = ContributionRecord(
        round=announcement.round,
        attempt=attempt,
        announcement_digest=announcement.digest(),
        digest_a=digests[Side.A],
        digest_b=digests[Side.B],
    )
    journal.reach(Point.BEFORE_SHARES_SEALED)
    journal.write(folder / RECORD, record)
    journal.reach(Point.AFTER_SHARES_SEALED)
    return record


def _fresh(part: Part, roster: Roster, randomness: Randomness, label: str) -> PartSealing:
    """A part of a share with a content key and a salt of its own."""
    content_key = randomness.bytes(32, f"content key {part.side} {label}")
    salt = randomness.bytes(32, f"commitment salt {part.side} {label}")
    return PartSealing(part, roster.operator(part.side).sealing, content_key, salt)


def seal_into(
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


def _share(encoded: EncodedFile, seed: bytes, part: Part) -> Iterator[Octets]:
    """One share of the vector, piece by piece; a piece holds until the next one is taken."""
    if part.kind is ShareKind.SEED:
        yield seed
        return
    buffer = np.empty(min(CHUNK, encoded.length), dtype=np.uint64)
    for start, chunk in encoded.chunks():
        share = buffer[: chunk.size]
        split_chunk_into(share, chunk, seed, start)
        yield share.data


def send_contribution(
    record: ContributionRecord,
    study: str,
    site: str,
    study_digest: str,
    roster: Roster,
    clients: Mapping[Side, ServerClient],
    journal: StudyJournal,
) -> None:
    """Both uploads at once; returns when both servers' receipts are verified and journalled.

    Raises: what a server refused with; Unavailable when one cannot be reached
    """
    folder = journal.attempt_folder(record.round, record.attempt)

    def upload(side: Side) -> None:
        kept = folder / f"receipt-{side}.json"
        if kept.exists():
            return
        digest = record.digest_of(side)
        midway = partial(journal.reach, Point.UPLOAD_MIDWAY)
        body = Body.contribution(folder / f"{side}.sealed", bytes.fromhex(digest), midway)
        receipt = clients[side].contribute(study, record.round, record.attempt, body)
        _check_receipt(receipt, record, site, study_digest, side, roster)
        journal.reach(Point.BEFORE_RECEIPT_JOURNALLED)
        journal.write(kept, receipt)
        journal.reach(Point.AFTER_RECEIPT_JOURNALLED)

    with ThreadPoolExecutor(2, thread_name_prefix="upload") as pool:
        uploads = [pool.submit(upload, side) for side in Side]
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
        body_digest=record.digest_of(side),
    )
    if require_signatures(receipt, roster, [roster.operator(side).name]) != expected:
        raise TranscriptMismatch(f"the receipt of server {side} is for something else than what was sent")
