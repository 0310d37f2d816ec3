"""Seal an encoded update into parts for the servers (docs/protocol.md 2, 3, 11).

The vector is journalled once per round; its parts are made once per attempt, journalled sealed, resent as they are. A
burnt round gets fresh shares of the same encoded update. Everything streams: no more than one chunk is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final

from pydantic import model_validator

from client_agent.net.envelopes import Body
from client_agent.net.quiet_hours import LARGE_TRANSFER_BYTES
from client_agent.net.server_client import ServerClient
from client_agent.settings import AgentSettings
from client_agent.site.failpoints import Point
from client_agent.site.journal import StudyJournal
from host.clock import SYSTEM, Clock, at_once
from host.files import replacing_together, sync_folder
from host.frozen import Frozen
from host.randomness import Randomness
from protocol.arithmetic.ring import ELEMENT_BYTES, Ring, from_bytes
from protocol.channel.sealing import Octets
from protocol.errors import ConfigurationError, TranscriptMismatch
from protocol.messages.bodies import Part, PartSealing, content_bytes
from protocol.messages.control import (
    Announcement,
    Purpose,
    Receipt,
    Roster,
    ShareKind,
    Signed,
    Study,
    require_signatures,
)
from protocol.protection.interface import AtSite, Encoded
from protocol.protection.registry import encoded_bytes, protection_of
from protocol.protection.shares import with_tags
from protocol.sharing import Side

_PIECE_BYTES: Final = 2**18
ENCODED: Final = "encoded.ring"
_ENCRYPTED: Final = "encrypted.ckks"
_RECORD: Final = "contribution.json"
_CIPHERTEXT: Final = "ciphertext"


class EncodedUpdate(Frozen):
    """Facts about the round's update besides its encoding; ``norm`` is that of the clipped update."""

    numerator: int
    clipped: bool
    norm: float


class ContributionRecord(Frozen):
    """The sealed parts of one attempt, ready to be (re)sent; digests are those of the sealed messages.

    An encrypted update has one part, for side A.
    """

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
        return {Side.A: self.digest_a} | ({} if self.digest_b is None else {Side.B: self.digest_b})

    def file(self, side: Side) -> str:
        """The name of a sealed part in the attempt's folder."""
        return _sealed_file(side, alone=self.digest_b is None)


def journal_encoded(encoded: Encoded, into: Path, weight: float, grid: int) -> EncodedUpdate:
    """The encoding goes to the file ``into``, durably once the next thing in its folder is: a record, or an attempt.

    Raises: UnusableUpdate
    """
    with replacing_together(into, folder_synced=False) as (file,):
        for piece in encoded.pieces:
            file.write(piece)
    return EncodedUpdate(numerator=round(weight * grid), clipped=encoded.clipped, norm=encoded.norm)


def encoded_path(journal: StudyJournal, study: Study, announcement: Announcement) -> Path:
    kind, _ = protection_of(announcement).whole(study, announcement.purpose)
    return journal.round_folder(announcement.round) / (_ENCRYPTED if kind is ShareKind.CIPHERTEXT else ENCODED)


def pieces_of(path: Path, size: int) -> Iterator[Octets]:
    """A journalled encoding of ``size`` bytes; a piece holds until the next one is taken. Raises: ConfigurationError"""
    buffer = memoryview(bytearray(min(_PIECE_BYTES, size)))
    with path.open("rb", buffering=0) as file:
        for start in range(0, size, _PIECE_BYTES):
            piece = buffer[: min(_PIECE_BYTES, size - start)]
            if file.readinto(piece) != piece.nbytes:
                raise ConfigurationError(f"{path} ends before byte {start + piece.nbytes}; restore it")
            yield piece


@dataclass(frozen=True)
class EncodedFile:
    """Chunk access to an encoded update on disk."""

    path: Path
    length: int

    def __call__(self, start: int, stop: int) -> Ring:
        with self.path.open("rb") as file:
            file.seek(start * ELEMENT_BYTES)
            return from_bytes(file.read((stop - start) * ELEMENT_BYTES), stop - start)


def make_contribution(
    at: AtSite,
    announcement: Announcement,
    attempt: int,
    randomness: Randomness,
    journal: StudyJournal,
    tag_seed: str | None = None,
) -> ContributionRecord:
    """Split, seal and commit the journalled encoding; the journalled record when this attempt was made before.

    ``tag_seed`` is the weight list's, hexadecimal, where the round has tags: the attempt's own, behind the encoding.

    Reveals:  what the parts do, each to the server that opens it; to others the length
    Raises:   CommitmentMismatch, when the seed is not the announced one
    """
    parts = protection_of(announcement).parts(at.study, announcement, attempt, at.site, at.roster)
    folder = journal.attempt_folder(announcement.round, attempt)
    kept = folder / (_RECORD if len(parts) > 1 else f"{_CIPHERTEXT}.json")
    made = _made_before(journal, folder, kept)
    if made is not None:
        return made
    label = f"{announcement.study_digest} round {announcement.round} attempt {attempt}"
    sealing = {side: _fresh(part, at.roster, randomness, label) for side, part in parts.items()}
    files = {side: folder / _sealed_file(side, alone=len(parts) == 1) for side in parts}
    seed, size = randomness.bytes(32, f"share seed {label}"), encoded_bytes(at.study, announcement)
    encoded, split = encoded_path(journal, at.study, announcement), protection_of(announcement).content
    tagged = partial(with_tags, announcement=announcement, attempt=attempt, seed=tag_seed)
    with replacing_together(*files.values(), kept) as opened:
        into = dict(zip(files, opened, strict=False))
        digests = _seal_into(into, sealing, lambda part: split(part, tagged(pieces_of(encoded, size)), seed))
        record = ContributionRecord(
            round=announcement.round,
            attempt=attempt,
            announcement_digest=announcement.digest(),
            digest_a=digests[Side.A],
            digest_b=digests.get(Side.B),
        )
        journal.reach(Point.BEFORE_SHARES_SEALED)
        opened[-1].write(record.model_dump_json().encode())
    journal.reach(Point.AFTER_SHARES_SEALED)
    return record


def _made_before(journal: StudyJournal, folder: Path, kept: Path) -> ContributionRecord | None:
    """The attempt's record with its parts. One without them is from before a power cut: nothing of it was sent."""
    made = journal.read(kept, ContributionRecord)
    if made is None:
        return None
    if all((folder / made.file(side)).exists() for side in made.digests):
        sync_folder(folder)  # which may be what failed before; it is sent when it is durable
        return made
    kept.unlink()
    sync_folder(folder)
    return None


def _sealed_file(side: Side, alone: bool) -> str:
    return f"{_CIPHERTEXT if alone else side}.sealed"


def _fresh(part: Part, roster: Roster, randomness: Randomness, label: str) -> PartSealing:
    name = _CIPHERTEXT if part.kind is ShareKind.CIPHERTEXT else part.side
    content_key = randomness.bytes(32, f"content key {name} {label}")
    salt = randomness.bytes(32, f"commitment salt {name} {label}")
    return PartSealing(part, roster.operator(part.side).sealing, content_key, salt)


def _seal_into(
    file: Mapping[Side, BinaryIO], sealing: Mapping[Side, PartSealing], content: Callable[[Part], Iterator[Octets]]
) -> dict[Side, str]:
    """The sealed parts; the contents come first and the heads, which name all commitments, in front of them.

    -> the messages' digests, hexadecimal
    """
    for side, one in sealing.items():
        file[side].seek(one.head_bytes)
        for chunk in one.sealed_content(content(one.part)):
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
    at: AtSite,
    study_digest: str,
    clients: Mapping[Side, ServerClient],
    journal: StudyJournal,
    clock: Clock = SYSTEM,
) -> None:
    """All uploads at once; returns when every server's receipt is verified and journalled, durably.

    A receipt that a power cut takes comes again with the same bytes, so both wait for one sync of their folder.
    Raises: what a server refused with; Unavailable when one cannot be reached
    """
    folder = journal.attempt_folder(record.round, record.attempt)

    def upload(side: Side) -> None:
        kept = folder / f"receipt-{side}.json"
        if kept.exists():
            return
        midway = partial(journal.reach, Point.UPLOAD_MIDWAY)
        body = Body.contribution(folder / record.file(side), bytes.fromhex(record.digests[side]), midway)
        receipt = clients[side].contribute(at.study.name, record.round, record.attempt, body)
        _check_receipt(receipt, record, at, study_digest, side)
        journal.reach(Point.BEFORE_RECEIPT_JOURNALLED)
        with replacing_together(kept, folder_synced=False) as (file,):
            file.write(receipt.model_dump_json().encode())
        journal.reach(Point.AFTER_RECEIPT_JOURNALLED)

    try:
        at_once({side: partial(upload, side) for side in record.digests}, clock, "upload")
    finally:
        sync_folder(folder)


def _check_receipt(
    receipt: Signed[Receipt], record: ContributionRecord, at: AtSite, study_digest: str, side: Side
) -> None:
    expected = Receipt(
        study_digest=study_digest,
        round=record.round,
        attempt=record.attempt,
        site=at.site,
        side=side,
        body_digest=record.digests[side],
    )
    if require_signatures(receipt, at.roster, [at.roster.operator(side).name]) != expected:
        raise TranscriptMismatch(f"the receipt of server {side} is for something else than what was sent")


def contribution_bytes(study: Study) -> int:
    """The content of the larger part of one contribution to a round of updates; its head adds a few kilobytes."""
    if study.protection.plan.keyed:
        return content_bytes(ShareKind.CIPHERTEXT, 1 + study.model_dimension)
    kind = ShareKind.vector_of(study.parameters.ring_bits)
    return content_bytes(kind, study.shared_length(Purpose.UPDATE))


def transfer_remarks(study: Study, settings: AgentSettings, now_s: float) -> tuple[str, ...]:
    """Describe what this site's cap and quiet hours will do to the study's rounds; nothing where they fit."""
    length, deadline_s, cap = contribution_bytes(study), study.round_deadline_s, settings.bandwidth_up_bytes_per_s
    upload_s = 0.0 if cap is None else length / cap
    size = f"a contribution to study {study.name!r} has {length / 1e6:.1f} MB"
    if not study.rounds or (cap is None and not settings.quiet_hours):
        return ()
    if upload_s > deadline_s:
        return (
            f"{size}: at bandwidth_up_bytes_per_s = {cap} it takes {upload_s:.0f} s, and a round ends after "
            f"{deadline_s:.0f} s, so this site will be in no sum: raise the cap, or ask for a longer round_deadline_s",
        )
    if not settings.quiet_hours or length <= LARGE_TRANSFER_BYTES:
        return ()
    quiet_s, free_s = settings.quiet.longest_s(now_s)
    if upload_s > free_s or free_s <= 0:
        return (f"{size}: no time between quiet hours is long enough to send it, so this site will be in no sum",)
    if quiet_s > deadline_s:
        return (
            f"{size} and waits in quiet hours, of up to {quiet_s / 3600:.1f} h; a round ends after "
            f"{deadline_s / 3600:.1f} h: in quiet hours this site is in no sum",
        )
    return ()
