"""A running server deletes what its operator asked for beside it, and what is over for longer than its settings allow.

deletions/NAME.asked.json   somebody asks; taken away once it was answered
deletions/NAME.json         the signed receipt
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from host import log
from host.audit.entry import AGENT, Action
from host.audit.log import AUDIT, read_audit
from host.durable import new_folder, write_durably
from protocol.errors import MoietyError
from servers.retention.deleting import FOLDER, Holder, Request, delete_study, receipt_path
from servers.server import Server
from servers.store.interface import StudyRecord

LOOKED_AT_EVERY_S: Final = 10.0
_AGED_EVERY_LOOKS: Final = 360
_DAY_S: Final = 86400.0
_ASKED: Final = ".asked.json"
_REQUEST: Final = TypeAdapter(Request)
_log = log.logger("retention")


def ask(data_dir: Path, request: Request) -> Path:
    """Leave word for the server that runs; -> the file that it takes away once the receipt lies there."""
    path = new_folder(data_dir / FOLDER) / f"{request.study}{_ASKED}"
    write_durably(path, _REQUEST.dump_json(request))
    return path


async def keep_to_retention(server: Server) -> None:
    """Until it is cancelled. Only studies that are over are touched, which no round is under way in."""
    looks = 0
    while True:
        try:
            answer_requests(server)
            if looks % _AGED_EVERY_LOOKS == 0:
                for request in aged(server):
                    _delete(server, request)
        except Exception:
            _log.exception("not_deleted")
        looks += 1
        await asyncio.sleep(LOOKED_AT_EVERY_S)


def answer_requests(server: Server) -> None:
    """What somebody left word for; what is no request is taken away and said in the log."""
    for path in sorted((server.settings.data_dir / FOLDER).glob(f"*{_ASKED}")):
        try:
            _delete(server, _REQUEST.validate_json(path.read_bytes()))
        except ValidationError:
            _log.error("not_deleted", file=path.name, detail="the request cannot be read")
        path.unlink(missing_ok=True)


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
    held = server.store.holds_of(record.digest)
    left = held.files or held.letters or held.answers or held.rounds
    return not left and receipt_path(server.settings.data_dir, record.name).exists()


def _delete(server: Server, request: Request) -> None:
    settings = server.settings
    holder = Holder(settings.data_dir, server.keys, server.store, server.files, server.audit, server.clock)
    try:
        signed = delete_study(holder, request)
    except MoietyError as refused:
        _log.error("not_deleted", study=request.study, code=refused.code, detail=refused.detail)
        return
    _log.info("deleted", study=request.study, files=len(signed.message.files), receipt=signed.message.digest())
