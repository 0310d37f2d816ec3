"""Sites: a session, so that each request need not agree on keys anew."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from protocol.channel.session import SessionOffer
from protocol.errors import MalformedMessage, UnknownResource
from protocol.messages.paths import SESSION
from servers.http.authentication import AnySite, ThisServer
from servers.http.bodies import read_small
from servers.http.responses import PROBLEM, body_of, message_answer
from servers.settings import Role

router = APIRouter(tags=["sessions"], responses=PROBLEM)


@router.post(SESSION, openapi_extra=body_of("SessionOffer"))
async def open_session(request: Request, server: ThisServer, caller: AnySite) -> Response:
    """Grant one: an id, and a secret that only who made the offer can open. A restart forgets it."""
    if server.settings.role is not Role.ALL:
        raise UnknownResource("this server is several processes, which share no sessions: ask in envelopes")
    if caller.in_session:
        raise MalformedMessage("a session is offered in a signed request in an envelope, not in another session")
    offer = SessionOffer.parse(await read_small(request, caller))
    return message_answer(server.sessions.grant(caller.party, server.keys.key_id, offer))
