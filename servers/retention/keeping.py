"""A running server deletes what its operator asked for beside it, and what is over for longer than its settings allow.

deletions/NAME.asked.json   somebody asks; taken away once all of it is deleted, or it was refused
deletions/NAME.json         the signed receipt
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from host import log
from host.audit_log import AGENT, AUDIT, Action, read_audit
from host.files import new_folder, write_durably
from protocol.errors import ConfigurationError, MoietyError
from protocol.messages.control import Signed
from protocol.messages.study import ServerDeletionReceipt
from servers.retention.deleting import FOLDER, Deletion, Holder, Request, receipt_path
from servers.retention.unfinished import Unfinished
from servers.server import Server
from servers.store.study_records import StudyRecord

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
_log = log.logger("retention")


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
    """Return whether nothing is left to do about a request."""
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
