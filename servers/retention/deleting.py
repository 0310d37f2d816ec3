"""What a server holds of a study that is over is deleted, with a signed receipt of every file.

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

from host.audit.entry import Action
from host.audit.log import AuditLog
from host.durable import new_folder, sync_folder, write_durably
from protocol.errors import ConfigurationError
from protocol.wire.authentic import sign
from protocol.wire.keyfile import PartyKeys
from protocol.wire.messages import Signed
from protocol.wire.studies.deletion import DeletedFile, ServerDeletionReceipt
from servers.store.files.shares import ShareFiles
from servers.store.interface import Store, StudyRecord

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
    """Who wants a study deleted, and why."""

    study: str
    person: str
    reason: str = ""


def receipt_path(data_dir: Path, study: str) -> Path:
    """Where the receipt lies."""
    return data_dir / FOLDER / f"{study}.json"


def delete_study(holder: Holder, asked: Request) -> Signed[ServerDeletionReceipt]:
    """The receipt, which also lies in ``data_dir/deletions``; done before, the same receipt again.

    Raises: ConfigurationError, where no such study is here, before it is over, or without a person's name
    """
    if not asked.person.strip():
        raise ConfigurationError("deleting needs the name of the person who asks for it: --person")
    record = require_over(holder.store.study_named(asked.study), asked.study)
    path = receipt_path(holder.data_dir, asked.study)
    done = Signed[ServerDeletionReceipt].parse(path.read_bytes()) if path.exists() else None
    if done is None:
        done = sign(_receipt(holder, record, asked), holder.keys.name, holder.keys.signing)
        new_folder(path.parent)
        write_durably(path, done.canonical())  # before the first file goes: what is listed is gone at the end
    holder.audit.add(
        Action.DELETED,
        f"{asked.reason}; {len(done.message.files)} files, receipt {done.message.digest()}",
        actor=asked.person.strip(),
        study=record.name,
        study_digest=record.digest,
    )
    holder.store.forget_study(record.digest)
    holder.files.delete([Path(one.path).name for one in done.message.files])
    sync_folder(holder.files.path("."))
    return done


def require_over(record: StudyRecord | None, name: str) -> StudyRecord:
    """Raises: ConfigurationError"""
    if record is None:
        raise ConfigurationError(f"no study {name!r} is at this server: 'moiety server studies' lists them")
    if not record.state.ended:
        raise ConfigurationError(
            f"study {name!r} is {record.state.value} here: it is deleted once it is over; its requester ends it, with "
            f"'moiety study cancel {name}' if need be"
        )
    return record


def _receipt(holder: Holder, record: StudyRecord, asked: Request) -> ServerDeletionReceipt:
    held = holder.store.holds_of(record.digest)
    return ServerDeletionReceipt(
        study=record.name,
        study_digest=record.digest,
        operator=holder.keys.name,
        person=asked.person.strip(),
        reason=asked.reason,
        at_s=int(holder.clock()),
        files=tuple(_described(holder, held.files)),
        letters=held.letters,
        answers=held.answers,
        rounds=held.rounds,
    )


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
