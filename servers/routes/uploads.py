"""Agents: a large contribution in parts, each acknowledged (docs/protocol.md 3)."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from protocol.wire.paths import CONTRIBUTION_HELD, CONTRIBUTION_PART, CONTRIBUTION_WHOLE
from servers.http.authentication import AnySite, ThisServer
from servers.http.responses import PROBLEM, body_of, message_answer
from servers.rounds import uploads
from servers.studies import study_named

router = APIRouter(tags=["contributions"], responses=PROBLEM)
Digest = Annotated[str, Query(pattern=r"^[0-9a-f]{64}$")]
Length = Annotated[int, Query(ge=1, le=2**40)]
Offset = Annotated[int, Query(ge=0, le=2**40)]


@router.get(CONTRIBUTION_HELD)
async def held(
    study: str, round: int, attempt: int, digest: Digest, length: Length, server: ThisServer, caller: AnySite
) -> Response:
    """How many bytes of the message with this digest are here."""
    record = study_named(server, study)
    return message_answer(
        uploads.held(server, record, uploads.upload_of(caller, record, round, attempt, digest, length))
    )


@router.put(CONTRIBUTION_PART, openapi_extra=body_of("bytes of a sealed share", sealed=True))
async def part(
    study: str,
    round: int,
    attempt: int,
    digest: Digest,
    length: Length,
    offset: Offset,
    request: Request,
    server: ThisServer,
    caller: AnySite,
) -> Response:
    """Keep the next part; the answer says how many bytes are here now."""
    record = study_named(server, study)
    upload = uploads.upload_of(caller, record, round, attempt, digest, length)
    return message_answer(await uploads.take_part(server, caller, record, upload, offset, request))


@router.post(CONTRIBUTION_WHOLE)
async def whole(
    study: str, round: int, attempt: int, digest: Digest, length: Length, server: ThisServer, caller: AnySite
) -> Response:
    """All parts are here: store them as one share; the answer is a signed receipt."""
    record = study_named(server, study)
    upload = uploads.upload_of(caller, record, round, attempt, digest, length)
    return message_answer(await uploads.complete(server, caller, record, upload))
