"""Delete what a server holds of a study that is over, with a signed receipt of every file.

What stays: the signed study and its end, the signed messages of its rounds with the receipts for what sites sent (a
site compares its memory of sums with them, docs/protocol.md 13), and the audit log. Neither server's files ever held an
update or a distance in the clear.

The requester has its answer, or does not ask again; rows still name shares, queries and a sum that was never served, so
no sweep of files takes them.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from host import log
from host.audit_log import AGENT, AUDIT, Action, AuditLog, read_audit
from host.files import new_folder, sync_folder, write_durably
from protocol.errors import ConfigurationError, MoietyError
from protocol.messages.control import Signed, sign
from protocol.messages.study import DeletedFile, ServerDeletionReceipt
from protocol.roster.keyfile import PartyKeys
from servers import studies
from servers.server import Server
from servers.store.files import ShareFiles
from servers.store.records import Holdings, StudyRecord
from servers.store.sql import SqlStore

FOLDER: Final = "deletions"


@dataclass(frozen=True)
class Holder:
    """A server's store, files and name, whether it runs or not."""

    data_dir: Path
    keys: PartyKeys = field(repr=False)
    store: SqlStore
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
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            yield DeletedFile(path=relative, size_bytes=path.stat().st_size, sha256=digest)


_log = log.logger("retention")


@dataclass(eq=False)
class Unfinished:
    """Each study that has ended is looked at once by a process, and again only where that did not go well."""

    server: Server
    _done: set[str] = field(default_factory=set)

    async def forget(self) -> None:
        """Requests come in between. Raises: Unavailable, where nobody can say which studies there are"""
        for record in self.server.store.studies():
            if record.state.ended and record.digest not in self._done:
                self._forget(record.digest, record.name)
                await asyncio.sleep(0)

    def _forget(self, digest: str, name: str) -> None:
        try:
            with self.server.store.alone(digest):
                studies.forget_unfinished(self.server, digest)
        except MoietyError as later:
            _log.error("end_not_finished", study=name, code=later.code, detail=later.detail)
        except Exception:
            _log.exception("end_not_finished", study=name)
        else:
            self._done.add(digest)


LOOKED_AT_EVERY_S: Final = 10.0
_ALL_EVERY_LOOKS: Final = 360
_DAY_S: Final = 86400.0
_ASKED: Final = ".asked.json"
_AGAIN: Final = {"again_in_s": LOOKED_AT_EVERY_S}
_NOT_OURS: Final = (
    "{}: give data_dir/deletions and all that is in it to the user that the server runs as (chown -R), and run 'moiety "
    "server delete' as that user"
)
_REQUEST: Final = TypeAdapter(Request)


def ask(data_dir: Path, request: Request) -> Path:
    """Leave word for the server that runs, or starts next; -> the file that it takes away once all of it is deleted.

    Raises: StorageFull
    """
    path = new_folder(data_dir / FOLDER) / f"{request.study}{_ASKED}"
    write_durably(path, _REQUEST.dump_json(request))
    return path


async def keep_to_retention(server: Server) -> None:
    """Until it is cancelled. Only studies that are over are touched, which no round is under way in."""
    looks, unfinished = 0, Unfinished(server)
    while True:
        try:
            await answer_requests(server)
            if looks % _ALL_EVERY_LOOKS == 0:
                await unfinished.forget()
                for request in aged(server):
                    ask(server.settings.data_dir, request)
        except Exception:
            _log.exception("not_deleted")
        looks += 1
        await asyncio.sleep(LOOKED_AT_EVERY_S)


async def answer_requests(server: Server) -> None:
    """Answer requests left in the folder. A malformed or refused one is removed and logged; one that broke off stays,
    and goes on at the next look, of this process or of one that starts later.
    """
    for path in _requests(server.settings.data_dir / FOLDER):
        try:
            if await _answered(server, path):
                path.unlink(missing_ok=True)
        except OSError as error:
            _log.error("not_deleted", file=path.name, detail=_NOT_OURS.format(error.strerror), **_AGAIN)
        except Exception:
            _log.exception("not_deleted", file=path.name)


def _requests(folder: Path) -> list[Path]:
    """None where the server could not take them away again."""
    if not folder.exists():
        return []
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        _log.error("not_deleted", file=folder.name, detail=_NOT_OURS.format(os.strerror(errno.EACCES)), **_AGAIN)
        return []
    return sorted(folder.glob(f"*{_ASKED}"))


async def _answered(server: Server, path: Path) -> bool:
    try:
        request = _REQUEST.validate_json(path.read_bytes())
    except ValidationError:
        _log.error("not_deleted", file=path.name, detail="the request cannot be read")
        return True
    return await _delete(server, request)


def aged(server: Server) -> Iterator[Request]:
    """Studies over for ``delete_ended_after_days``; when they ended is in the audit log."""
    days = server.settings.delete_ended_after_days
    if days is None:
        return
    ended = {
        entry.study_digest: entry.time_s
        for entry in read_audit(server.settings.data_dir / AUDIT)
        if entry.action is Action.STUDY_ENDED
    }
    for record in server.store.studies():
        since_s = ended.get(record.digest)
        due = since_s is not None and server.clock() - since_s >= days * _DAY_S
        if due and record.state.ended and not _is_deleted(server, record):
            yield Request(record.name, AGENT, f"over for {days} days: delete_ended_after_days")


def _is_deleted(server: Server, record: StudyRecord) -> bool:
    """Or asked for: what broke off is gone on with by itself, in the name of whoever asked."""
    folder = server.settings.data_dir
    if (folder / FOLDER / f"{record.name}{_ASKED}").exists():
        return True
    held = server.store.holds_of(record.digest)
    left = held.files or held.letters or held.answers or held.rounds
    return not left and receipt_path(folder, record.name).exists()


async def _delete(server: Server, request: Request) -> bool:
    """Return whether the request is done or refused; otherwise it is tried again, from the receipt if there is one by
    now.
    """
    settings = server.settings
    holder = Holder(settings.data_dir, server.keys, server.store, server.files, server.audit, server.clock)
    try:
        deletion = Deletion.of(holder, request)
    except ConfigurationError as refused:
        _log.error("not_deleted", study=request.study, code=refused.code, detail=refused.detail)
        return True
    except MoietyError as later:
        return _not_yet(request, later.code, later.detail)
    try:
        signed = deletion.begun() or await _signed(deletion)
        deletion.carry_out(signed)
    except MoietyError as later:
        return _not_yet(request, later.code, later.detail)
    except OSError as later:
        return _not_yet(request, type(later).__name__, str(later))
    _log.info("deleted", study=request.study, files=len(signed.message.files), receipt=signed.message.digest())
    return True


async def _signed(deletion: Deletion) -> Signed[ServerDeletionReceipt]:
    """A new receipt of what is held. Files are read beside the loop, which has a lease to renew and requests to answer:
    what came or went meanwhile is described anew.
    """
    held = deletion.held()
    files = await asyncio.to_thread(deletion.described, held)
    while (now := deletion.held()) != held:
        held, files = now, await asyncio.to_thread(deletion.described, now)
    return deletion.sign(held, files)


def _not_yet(request: Request, code: str, detail: str) -> bool:
    _log.error("not_deleted", study=request.study, code=code, detail=detail, **_AGAIN)
    return False
