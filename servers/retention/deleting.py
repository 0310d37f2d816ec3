"""Delete what a server holds of a study that is over, with a signed receipt of every file.

What stays: the signed study and its end, the signed messages of its rounds with the receipts for what sites sent (a
site compares its memory of sums with them, docs/protocol.md 13), and the audit log. Neither server's files ever held an
update or a distance in the clear.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from host.audit_log import Action, AuditLog
from host.files import new_folder, sync_folder, write_durably
from protocol.errors import ConfigurationError
from protocol.messages.control import Signed, sign
from protocol.messages.study import DeletedFile, ServerDeletionReceipt
from protocol.roster.keyfile import PartyKeys
from servers.store.files.shares import ShareFiles
from servers.store.for_people import Holdings
from servers.store.interface import Store
from servers.store.study_records import StudyRecord

FOLDER: Final = "deletions"
_BLOCK_BYTES: Final = 2**20


@dataclass(frozen=True)
class Holder:
    """A server's store, files and name, whether it runs or not."""

    data_dir: Path
    keys: PartyKeys = field(repr=False)
    store: Store
    files: ShareFiles
    audit: AuditLog
    clock: Callable[[], float] = time.time


@dataclass(frozen=True)
class Request:
    """A request to delete a study, and its reason."""

    study: str
    person: str
    reason: str = ""


def receipt_path(data_dir: Path, study: str) -> Path:
    """Return the receipt's path."""
    return data_dir / FOLDER / f"{study}.json"


@dataclass(frozen=True)
class Deletion:
    """The deletion of a study that is over, in steps that are repeated until the last one went well.

    The receipt is durable before the first file goes, so whatever broke off is continued from it, by whoever asks next.
    The audit log says last that it is done: so often as it was done, however often it was begun.
    """

    holder: Holder
    asked: Request
    record: StudyRecord

    @classmethod
    def of(cls, holder: Holder, asked: Request) -> Deletion:
        """Raises: ConfigurationError, where no such study is here, before it is over, or without a person's name"""
        if not asked.person.strip():
            raise ConfigurationError("deleting needs the name of the person who asks for it: --person")
        return cls(holder, asked, require_over(holder.store.study_named(asked.study), asked.study))

    def begun(self) -> Signed[ServerDeletionReceipt] | None:
        """The receipt of the first try."""
        path = receipt_path(self.holder.data_dir, self.asked.study)
        return Signed[ServerDeletionReceipt].parse(path.read_bytes()) if path.exists() else None

    def held(self) -> Holdings:
        """The files and rows to delete."""
        return self.holder.store.holds_of(self.record.digest)

    def described(self, held: Holdings) -> tuple[DeletedFile, ...]:
        """Reads all of its files, and nothing of the store: for a thread where the server runs."""
        return tuple(_described(self.holder, held.files))

    def sign(self, held: Holdings, files: tuple[DeletedFile, ...]) -> Signed[ServerDeletionReceipt]:
        """Raises: StorageFull"""
        receipt = ServerDeletionReceipt(
            study=self.record.name,
            study_digest=self.record.digest,
            operator=self.holder.keys.name,
            person=self.asked.person.strip(),
            reason=self.asked.reason,
            at_s=int(self.holder.clock()),
            files=files,
            letters=held.letters,
            answers=held.answers,
            rounds=held.rounds,
        )
        signed = sign(receipt, self.holder.keys.name, self.holder.keys.signing)
        path = receipt_path(self.holder.data_dir, self.asked.study)
        new_folder(path.parent)
        write_durably(path, signed.canonical())
        return signed

    def carry_out(self, signed: Signed[ServerDeletionReceipt]) -> None:
        """Raises: Unavailable, StorageFull, OSError; then it is not done yet"""
        holder = self.holder
        sync_folder(holder.data_dir / FOLDER)  # before the first file goes: what is listed is gone at the end
        holder.store.forget_study(self.record.digest)
        holder.files.delete([Path(one.path).name for one in signed.message.files])
        sync_folder(holder.files.path("."))
        holder.audit.add(
            Action.DELETED,
            f"{self.asked.reason}; {len(signed.message.files)} files, receipt {signed.message.digest()}",
            actor=self.asked.person.strip(),
            study=self.record.name,
            study_digest=self.record.digest,
        )


def delete_study(holder: Holder, asked: Request) -> Signed[ServerDeletionReceipt]:
    """The receipt, which also lies in ``data_dir/deletions``; done before, the same receipt again.

    Raises: as ``Deletion.of`` and ``Deletion.carry_out``
    """
    deletion = Deletion.of(holder, asked)
    signed = deletion.begun()
    if signed is None:
        held = deletion.held()
        signed = deletion.sign(held, deletion.described(held))
    deletion.carry_out(signed)
    return signed


def require_over(record: StudyRecord | None, name: str) -> StudyRecord:
    """Raises: ConfigurationError"""
    if record is None:
        raise ConfigurationError(f"no study {name!r} is at this server: 'moiety server status' lists them")
    if not record.state.ended:
        raise ConfigurationError(
            f"study {name!r} is {record.state.value} here: it is deleted once it is over; its requester ends it, with "
            f"'moiety study cancel {name}' if need be"
        )
    return record


def _described(holder: Holder, names: tuple[str, ...]) -> Iterator[DeletedFile]:
    for name in names:
        path = holder.files.path(name)
        if path.exists():
            relative = str(path.relative_to(holder.data_dir))
            yield DeletedFile(path=relative, size_bytes=path.stat().st_size, sha256=_sha256(path))


def _sha256(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            found.update(block)
    return found.hexdigest()
