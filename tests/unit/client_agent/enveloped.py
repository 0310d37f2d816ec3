"""A server's side of envelopes, for ``httpx.MockTransport``: handlers see what is enclosed, answers leave signed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import httpx

from protocol.channel.commitment import head_digest
from protocol.channel.envelope import (
    ANSWER_TYPE,
    LENGTH_BYTES,
    SEALED_TYPE,
    Correspondence,
    EnclosedRequest,
    close_answer,
    open_request,
)
from protocol.channel.signing import DigestField, VerifiedRequest, sign_answer, signed_digest, verify_request
from protocol.messages.control import Party
from protocol.messages.paths import SEALED
from protocol.roster.keyfile import PartyKeys
from protocol.sharing import Side
from tests.unit.client_agent.federation import ROSTER, operator_keys

Handler = Callable[[httpx.Request], httpx.Response]
NOW = 1_800_000_000


@dataclass(frozen=True)
class Opened:
    """A request out of its envelope."""

    caller: Party
    verified: VerifiedRequest
    between: Correspondence
    signature: str
    enclosed: EnclosedRequest
    request: httpx.Request


def opened(request: httpx.Request, server: PartyKeys, now: int = NOW) -> Opened:
    """Verify and open, as a server does."""
    assert (request.method, request.url.path) == ("POST", SEALED)
    known = {party.key_id: party for party in ROSTER.parties}
    keys = {key_id: party.verify_key for key_id, party in known.items()}
    verified = verify_request("POST", str(request.url), list(request.headers.multi_items()), keys.get, now)
    body = request.read()
    length = LENGTH_BYTES + int.from_bytes(body[:LENGTH_BYTES], "big")
    assert verified.digest_field is DigestField.SEALED_HEAD
    assert verified.body_digest == head_digest(body[:length])
    between = Correspondence(verified.key_id, server.key_id, verified.nonce)
    enclosed, first = open_request(body[LENGTH_BYTES:length], server.sealing, between)
    inner = httpx.Request(
        enclosed.method, f"https://{request.url.host}{enclosed.target}", content=first + body[length:]
    )
    return Opened(known[verified.key_id], verified, between, request.headers["signature"], enclosed, inner)


def closed(
    asked: Opened, server: PartyKeys, answer: httpx.Response, *, signer: PartyKeys | None = None
) -> httpx.Response:
    """The handler's answer as a server sends it; ``signer`` where somebody else signs."""
    by = server if signer is None else signer
    names = {name for name, _ in answer.headers.multi_items()}
    if answer.status_code == 200 and names & {field.value for field in DigestField}:
        field, digest = signed_digest(answer.headers.multi_items())
        made = sign_answer(
            200,
            SEALED_TYPE,
            digest,
            by.signing,
            by.key_id,
            created=NOW,
            request_signature=asked.signature,
            digest_field=field,
        )
        return httpx.Response(200, headers=list(made), stream=answer.stream)
    to = asked.caller.sealing
    sealed = close_answer(answer.status_code, answer.read(), to, asked.between)
    digest = hashlib.sha256(sealed).digest()
    made = sign_answer(200, ANSWER_TYPE, digest, by.signing, by.key_id, created=NOW, request_signature=asked.signature)
    return httpx.Response(200, headers=list(made), content=sealed)


def enveloped(handler: Handler, side: Side = Side.A) -> Handler:
    """A handler for a transport, behind the envelopes of one server."""
    server = operator_keys(side)

    def answer(request: httpx.Request) -> httpx.Response:
        asked = opened(request, server)
        return closed(asked, server, handler(asked.request))

    return answer
