"""Receipts for deletion: a site or a server signs what it deleted of a study, for whoever gave the permit."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from protocol.wire.message import Digest, Message, PartyName, StudyName

MOST_FILES = 200_000


class DeletedFile(Message):
    """One file, by its path below the study's folder, its length and SHA-256 as they were."""

    KIND: ClassVar[str] = "deleted_file"
    path: Annotated[str, Field(min_length=1, max_length=300)]
    size_bytes: Annotated[int, Field(ge=0)]
    sha256: Digest


class DeletionReceipt(Message):
    """``site`` deleted ``files`` of a study at ``at_s`` (Unix seconds) because ``person`` said so, for ``reason``.

    It says what was deleted in that folder; of backups and of exported models it says nothing.
    """

    KIND: ClassVar[str] = "deletion_receipt"
    study: StudyName
    study_digest: Digest
    site: PartyName
    person: Annotated[str, Field(min_length=1, max_length=200)]
    reason: Annotated[str, Field(max_length=2000)]
    at_s: Annotated[int, Field(ge=0)]
    files: Annotated[tuple[DeletedFile, ...], Field(max_length=MOST_FILES)]


class ServerDeletionReceipt(Message):
    """``operator``'s server deleted ``files`` of a study at ``at_s`` (Unix seconds) because ``person`` said so.

    ``letters`` and ``answers`` are rows of its database that went with them; ``rounds`` counts the attempts whose seeds
    and nonces were taken out. What every party signed stays there: receipts for what sites sent are what a site's
    memory of its sums is compared with.
    """

    KIND: ClassVar[str] = "server_deletion_receipt"
    study: StudyName
    study_digest: Digest
    operator: PartyName
    person: Annotated[str, Field(min_length=1, max_length=200)]
    reason: Annotated[str, Field(max_length=2000)]
    at_s: Annotated[int, Field(ge=0)]
    files: Annotated[tuple[DeletedFile, ...], Field(max_length=MOST_FILES)]
    letters: Annotated[int, Field(ge=0)]
    answers: Annotated[int, Field(ge=0)]
    rounds: Annotated[int, Field(ge=0)]
