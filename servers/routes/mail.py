"""Agents: sealed mail between the requester and the sites, opaque to this server (docs/protocol.md 3, 4)."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

from fastapi import APIRouter, Path, Query, Request, Response

from protocol.errors import ConflictingMessage, NotListed, UnknownParty, UnknownResource
from protocol.wire.paths import EVERY_SITE, MAIL
from servers.authentication import AnySite, Caller, ThisServer
from servers.bodies import OpaqueIntake, stream_into
from servers.context import Server
from servers.failpoints import Point
from servers.routes.answers import PROBLEM, body_of, done, stream_answer
from servers.store.interface import MailRecord, StudyRecord
from servers.store.shares import file_name
from servers.studies import refuse, study_named

router = APIRouter(tags=["mail"], responses=PROBLEM)

_NAME: Final = r"^[a-z0-9][a-z0-9-]{0,62}$"
Topic = Annotated[str, Path(pattern=_NAME)]
Recipient = Annotated[str, Path(pattern=_NAME)]


@router.put(MAIL, status_code=204, openapi_extra=body_of("sealed bytes", sealed=True))
async def put_mail(
    study: str, topic: Topic, recipient: Recipient, request: Request, server: ThisServer, caller: AnySite
) -> Response:
    """Leave sealed bytes: the requester for any site or every site, a site for the requester only."""
    record = study_named(server, study)
    _require_allowed(server, caller.name, recipient)
    await _store(server, caller, record, topic, recipient, request)
    return done()


@router.get(MAIL)
async def get_mail(
    study: str,
    topic: Topic,
    recipient: Recipient,
    server: ThisServer,
    caller: AnySite,
    sender: Annotated[str | None, Query(pattern=_NAME)] = None,
) -> Response:
    """Fetch mail for oneself or for every site; ``sender`` when several sent the same topic."""
    record = study_named(server, study)
    if recipient not in (caller.name, EVERY_SITE):
        raise NotListed(
            f"{caller.name!r} can fetch its own mail and that for {EVERY_SITE!r}, not that of {recipient!r}"
        )
    found = [
        mail
        for mail in server.store.mail_for(record.digest, (recipient,))
        if mail.topic == topic and sender in (None, mail.sender)
    ]
    if len(found) != 1:
        hint = "name the sender" if found else "wait until the view lists it"
        raise UnknownResource(f"{len(found)} mails of topic {topic!r} wait for {recipient!r}; {hint}")
    return stream_answer(server.files.read(found[0].file))


def _require_allowed(server: Server, sender: str, recipient: str) -> None:
    if sender == server.roster.requester:
        if recipient != EVERY_SITE and recipient not in {p.name for p in server.roster.sites}:
            raise UnknownParty(f"no site {recipient!r} in the roster")
    elif recipient != server.roster.requester:
        raise NotListed(f"a site may write to the requester {server.roster.requester!r} only, not to {recipient!r}")


async def _store(
    server: Server, caller: Caller, study: StudyRecord, topic: str, recipient: str, request: Request
) -> None:
    limit = server.settings.limits.mail_bytes
    server.files.require_room(int(request.headers.get("content-length", "0")))
    draft = server.files.draft()
    try:
        intake = OpaqueIntake(draft)
        await stream_into(request, intake, limit)
        digest = intake.finish(caller)
        if _came_before(server, study, caller.name, recipient, topic, digest):
            draft.discard()
            return
        name = file_name("mail", study.digest, caller.name, recipient, topic, digest)
        await asyncio.to_thread(draft.keep, name)
    except BaseException:
        draft.discard()
        raise
    if not _came_before(server, study, caller.name, recipient, topic, digest):
        server.failpoints.reach(Point.BEFORE_MAIL_STORED)
        server.store.add_mail(MailRecord(study.digest, caller.name, recipient, topic, digest, name))
        server.failpoints.reach(Point.AFTER_MAIL_STORED)


def _came_before(server: Server, study: StudyRecord, sender: str, recipient: str, topic: str, digest: str) -> bool:
    known = server.store.mail(study.digest, sender, recipient, topic)
    if known is not None and known.body_digest != digest:
        error = ConflictingMessage(
            f"mail {topic!r} to {recipient!r} came before with other bytes; the first one stands"
        )
        raise refuse(server, study.digest, sender, error)
    return known is not None
