"""Agents: studies, and what changes in them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from protocol.messages.control import ReadyNotice, Signed, Study, StudyEnd
from protocol.messages.paths import END, READY, STUDIES, STUDY, VIEW
from servers import studies
from servers.http.authentication import AnySite, TheRequester, ThisServer
from servers.http.bodies import read_small
from servers.http.responses import PROBLEM, body_of, done, message_answer, shared_answer
from servers.routes.numbers import LARGEST

router = APIRouter(tags=["studies"], responses=PROBLEM)


@router.post(STUDIES, status_code=201, openapi_extra=body_of("Signed[Study], signed by the requester"))
async def create_study(request: Request, server: ThisServer, caller: TheRequester) -> Response:
    """Create a study; the answer adds this server's signature."""
    signed = Signed[Study].parse(await read_small(request, caller))
    return message_answer(studies.create(server, signed), 201)


@router.get(STUDIES)
async def list_studies(
    server: ThisServer,
    caller: AnySite,
    after: Annotated[str, Query(pattern=r"^[a-z0-9-]{0,63}$")] = "",
    known: Annotated[str, Query(pattern=r"^([0-9a-f]{64})?$")] = "",
    wait_s: Annotated[float, Query(ge=0, le=300, allow_inf_nan=False)] = 0.0,
) -> Response:
    """Names and digests of the studies of the caller's roster, by name, in pages: those after this name; waits while
    the digest of all of them is ``known``."""
    return message_answer(await studies.studies_after(server, after, known, wait_s))


@router.get(STUDY)
async def get_study(study: str, server: ThisServer, caller: AnySite) -> Response:
    """One study with the requester's and this server's signature."""
    return message_answer(studies.study_named(server, study).signed)


@router.post(READY, status_code=204, openapi_extra=body_of("ReadyNotice"))
async def ready(study: str, request: Request, server: ThisServer, caller: AnySite) -> Response:
    """The calling site can be listed from now on."""
    notice = ReadyNotice.parse(await read_small(request, caller))
    studies.note_ready(server, studies.study_named(server, study), caller.name, notice)
    return done()


@router.post(END, openapi_extra=body_of("Signed[StudyEnd], signed by the requester"))
async def end_study(study: str, request: Request, server: ThisServer, caller: TheRequester) -> Response:
    """End a study, with the final state and its reason."""
    signed = Signed[StudyEnd].parse(await read_small(request, caller))
    return message_answer(studies.end(server, studies.study_named(server, study), signed))


@router.get(VIEW, responses={204: {"description": "No other news than those named, in all of wait_s"}})
async def view(
    study: str,
    server: ThisServer,
    caller: AnySite,
    after: Annotated[int, Query(ge=0, le=LARGEST)] = 0,
    wait_s: Annotated[float, Query(ge=0, le=300, allow_inf_nan=False)] = 0.0,
    news: Annotated[str, Query(pattern=r"^([0-9a-f]{64})?$")] = "",
) -> Response:
    """The study as this server sees it; waits while its cursor equals ``after``, or, where ``news`` are named, while
    what a contributor acts on has this digest."""
    record = studies.study_named(server, study)
    if not news:
        return shared_answer(await studies.watch(server, record, caller.name, after, wait_s))
    found = await studies.watch_news(server, record, caller.name, news, wait_s)
    return done() if found is None else shared_answer(found)
