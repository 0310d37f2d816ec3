"""Agents: a large contribution in parts, each acknowledged (docs/protocol.md 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from protocol.messages.paths import CONTRIBUTION_HELD, CONTRIBUTION_PART, CONTRIBUTION_WHOLE
from servers.http.authentication import AnySite, ThisServer
from servers.http.responses import PROBLEM, body_of, message_answer
from servers.rounds import uploads
from servers.routes.numbers import Attempt, Round
from servers.store.files.upload_parts import Upload
from servers.store.study_records import StudyRecord
from servers.studies import going_study

router = APIRouter(tags=["contributions"], responses=PROBLEM)
Digest = Annotated[str, Query(pattern=r"^[0-9a-f]{64}$")]
Length = Annotated[int, Query(ge=1, le=2**40)]
Offset = Annotated[int, Query(ge=0, le=2**40)]


@dataclass(frozen=True)
class Named:
    """The upload that a request is about, of a study that is here."""

    record: StudyRecord
    upload: Upload


async def named_upload(
    study: str, round: Round, attempt: Attempt, digest: Digest, length: Length, server: ThisServer, caller: AnySite
) -> Named:
    """Read the upload's name from path and query. Raises: UnknownStudy, RolledBack"""
    record = going_study(server, study)
    return Named(record, uploads.upload_of(caller, record, round, attempt, digest, length))


ThisUpload = Annotated[Named, Depends(named_upload)]


@router.get(CONTRIBUTION_HELD)
async def held(named: ThisUpload, server: ThisServer) -> Response:
    """Return how many bytes of the message with this digest are here."""
    return message_answer(await uploads.held(server, named.record, named.upload))


@router.put(CONTRIBUTION_PART, openapi_extra=body_of("bytes of a sealed share", sealed=True))
async def part(named: ThisUpload, offset: Offset, request: Request, server: ThisServer, caller: AnySite) -> Response:
    """Keep the next part; the answer says how many bytes are here now."""
    return message_answer(await uploads.take_part(server, caller, named.record, named.upload, offset, request))


@router.post(CONTRIBUTION_WHOLE)
async def whole(named: ThisUpload, server: ThisServer, caller: AnySite) -> Response:
    """All parts are here: store them as one share; the answer is a signed receipt."""
    return message_answer(await uploads.complete(server, caller, named.record, named.upload))
