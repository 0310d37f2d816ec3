"""Agents: sealed mail between the requester and the sites, opaque to this server (docs/protocol.md 3, 4)."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

from fastapi import APIRouter, Path, Query, Request, Response

from protocol.errors import ConflictingMessage, NotListed, TooLarge, UnknownResource
from protocol.messages.letter import Topic, most_bytes, parse_topic, require_length, require_route
from protocol.messages.paths import EVERY_SITE, MAIL
from servers.api.authentication import AnySite, ThisServer
from servers.api.responses import PROBLEM, body_of, done, stream_answer
from servers.event_loop import SHORT_BYTES
from servers.failpoints import Point
from servers.rounds.intake import Caller, HashIntake, same_body, stream_into
from servers.rounds.letters import require_announced, superseded
from servers.server import Server
from servers.store.files import file_name
from servers.store.records import MailRecord, StudyRecord
from servers.studies import refuse, study_named

_MOST_BYTES = 2**33  # checkpoints alone come near; a study's own caps are lower nearly always
router = APIRouter(tags=["mail"], responses=PROBLEM)

_NAME: Final = r"^[a-z0-9][a-z0-9-]{0,62}$"
TopicText = Annotated[str, Path(pattern=_NAME)]
Recipient = Annotated[str, Path(pattern=_NAME)]


@router.put(MAIL, status_code=204, openapi_extra=body_of("sealed bytes", sealed=True))
async def put_mail(
    study: str, topic: TopicText, recipient: Recipient, request: Request, server: ThisServer, caller: AnySite
) -> Response:
    """Leave a letter that the study calls for now: the requester for sites, a site for the requester only."""
    record, of = study_named(server, study), parse_topic(topic)
    # a round that was planned before a change may still write to whom that removed: nobody fetches it
    require_route(of.kind, caller.name, recipient, server.chain.newest_with(recipient))
    await _store(server, caller, record, of, recipient, request)
    return done()


@router.get(MAIL)
async def get_mail(
    study: str,
    topic: TopicText,
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
    return stream_answer(server.files.read(found[0].file), bytes.fromhex(found[0].body_digest))


async def _store(
    server: Server, caller: Caller, study: StudyRecord, topic: Topic, recipient: str, request: Request
) -> None:
    most = min(most_bytes(topic.kind, study.study, server.most_sites), _MOST_BYTES)
    stated = int(request.headers.get("content-length", "0"))
    if stated > most:
        raise TooLarge(f"a letter {str(topic)!r} has at most {most} bytes in this study, this one has {stated}")
    of = (study.digest, caller.name, recipient, str(topic))
    known = server.store.mail(*of)
    if known is not None:
        _require_same(server, known, await same_body(request, caller, most))
        return
    require_announced(server, study, topic, caller.name, recipient)
    server.files.require_room(stated)
    with server.files.draft() as draft:
        intake = HashIntake(draft.write)
        await stream_into(request, intake.feed, most, SHORT_BYTES)
        digest = intake.finish(caller)
        require_length(topic.kind, intake.size_bytes, most)
        name = file_name("mail", *of, digest)
        await asyncio.to_thread(draft.keep, name)
    with server.store.alone(study.digest):
        known = server.store.mail(*of)
        if known is not None:  # the first one stands: of two that arrive at once, too
            if known.file != name:
                server.files.delete([name])
            _require_same(server, known, digest)
            return
        server.failpoints.reach(Point.BEFORE_MAIL_STORED)
        gone = superseded(server, study, topic, caller.name, recipient)
        server.store.add_mail(MailRecord(*of, digest, name), gone)
        server.failpoints.reach(Point.AFTER_MAIL_STORED)
        server.files.delete([mail.file for mail in gone])


def _require_same(server: Server, known: MailRecord, digest: str) -> None:
    if known.body_digest != digest:
        error = ConflictingMessage(
            f"mail {known.topic!r} to {known.recipient!r} came before with other bytes; the first one stands"
        )
        raise refuse(server, known.study, known.sender, error)
