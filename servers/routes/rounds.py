"""Agents: a round, from its announcement to its output."""

from __future__ import annotations

from fastapi import APIRouter, BackgroundTasks, Request, Response

from protocol.errors import UnknownResource
from protocol.rounds.states import RoundKey
from protocol.wire.messages import Announcement, ReleaseSet, Signed
from protocol.wire.paths import ANNOUNCEMENT, CONTRIBUTION, OPENING, OUTPUT, QUERIES, RELEASE_SET
from servers.http.authentication import AnySite, TheRequester, ThisServer
from servers.http.bodies import read_small
from servers.http.responses import PROBLEM, body_of, done, message_answer, octets_answer, sealed_answer
from servers.points import Point
from servers.rounds import collect, release, sketches
from servers.store.interface import AnswerKind
from servers.studies import study_named

router = APIRouter(tags=["rounds"], responses=PROBLEM)


@router.post(ANNOUNCEMENT, openapi_extra=body_of("Signed[Announcement], signed by the requester"))
async def announce(study: str, round: int, request: Request, server: ThisServer, caller: TheRequester) -> Response:
    """Open a round; the answer adds this server's signature."""
    signed = Signed[Announcement].parse(await read_small(request, caller))
    return message_answer(collect.announce(server, study_named(server, study), round, signed))


@router.put(CONTRIBUTION, openapi_extra=body_of("a sealed share", sealed=True))
async def contribute(
    study: str, round: int, attempt: int, request: Request, server: ThisServer, caller: AnySite
) -> Response:
    """Store one share; the answer is a signed receipt."""
    record = study_named(server, study)
    key = RoundKey(record.digest, round, attempt)
    answer = message_answer(await collect.contribute(server, caller, record, key, request))
    answer.background = BackgroundTasks()
    answer.background.add_task(server.failpoints.reach, Point.AFTER_RECEIPT_SENT)
    return answer


@router.post(QUERIES, status_code=204, openapi_extra=body_of("sealed query shares", sealed=True))
async def queries(
    study: str, round: int, attempt: int, request: Request, server: ThisServer, caller: TheRequester
) -> Response:
    """Store the requester's query shares of an attempt."""
    record = study_named(server, study)
    current = collect.round_of(server, record, round, attempt)
    await sketches.store_queries(server, caller, record, current, request)
    return done()


@router.get(OPENING)
async def opening(study: str, round: int, attempt: int, server: ThisServer, caller: TheRequester) -> Response:
    """This side's shares of range checks and distances, sealed to the requester; the same bytes every time."""
    key = RoundKey(study_named(server, study).digest, round, attempt)
    answer = server.store.answer(key, AnswerKind.OPENING)
    if answer is None:
        raise UnknownResource("this attempt has no opening here (yet); wait until the view says 'measured'")
    return octets_answer(answer.body)


@router.put(RELEASE_SET, status_code=204, openapi_extra=body_of("Signed[ReleaseSet], signed by the requester"))
async def release_set(
    study: str, round: int, attempt: int, request: Request, server: ThisServer, caller: TheRequester
) -> Response:
    """Say whose sum is released."""
    signed = Signed[ReleaseSet].parse(await read_small(request, caller))
    current = collect.round_of(server, study_named(server, study), round, attempt)
    release.accept_release_set(server, current, signed)
    return done()


@router.get(OUTPUT)
async def output(study: str, round: int, server: ThisServer, caller: AnySite) -> Response:
    """This side's half of the aggregate, sealed to the calling site."""
    record = study_named(server, study)
    latest = server.store.latest_attempt(record.digest, round)
    return sealed_answer(release.sealed_output(server, record, latest, caller.name))
