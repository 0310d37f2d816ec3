"""Agents: a round, from its announcement to its output, with contributions whole or in parts."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, BackgroundTasks, Depends, Query, Request, Response

from protocol.errors import UnknownResource
from protocol.messages import bodies as body
from protocol.messages.control import Announcement, ContributedRounds, Go, ReleaseSet, Signed, TagSeed, TagsFailed
from protocol.messages.paths import (
    ANNOUNCEMENT,
    CONTRIBUTION,
    CONTRIBUTION_HELD,
    CONTRIBUTION_PART,
    CONTRIBUTION_WHOLE,
    CONTRIBUTIONS,
    GO,
    OPENING,
    OUTPUT,
    QUERIES,
    RELEASE_SET,
    TAG_SEED,
    TAGS_FAILED,
)
from servers.api.authentication import AnySite, AtAttempt, Round, TheRequester, ThisServer
from servers.api.responses import PROBLEM, body_of, done, message_answer, octets_answer, sealed_answer
from servers.failpoints import Point
from servers.rounds import contributions, release, sketches, uploads
from servers.rounds.intake import read_small
from servers.server import Server
from servers.store.records import AnswerKind
from servers.store.upload_parts import Upload
from servers.studies import going_study, study_named

router = APIRouter(tags=["rounds"], responses=PROBLEM)


@router.post(ANNOUNCEMENT, openapi_extra=body_of("Signed[Announcement], signed by the requester"))
async def announce(study: str, round: Round, request: Request, server: ThisServer, caller: TheRequester) -> Response:
    """Open a round; the answer adds this server's signature."""
    signed = Signed[Announcement].parse(await read_small(request, caller))
    return message_answer(contributions.announce(server, going_study(server, study), round, signed))


@router.put(CONTRIBUTION, openapi_extra=body_of("a sealed share", sealed=True))
async def contribute(request: Request, server: ThisServer, caller: AnySite, at: AtAttempt) -> Response:
    """Store one share; the answer is a signed receipt."""
    answer = message_answer(await contributions.contribute(server, caller, at.study, at.key, request))
    answer.background = BackgroundTasks()
    answer.background.add_task(_receipt_sent, server)
    return answer


async def _receipt_sent(server: Server) -> None:
    """Awaited, not called: for a function that is called there would be a thread."""
    server.failpoints.reach(Point.AFTER_RECEIPT_SENT)


@router.post(QUERIES, status_code=204, openapi_extra=body_of("sealed query shares", sealed=True))
async def queries(request: Request, server: ThisServer, caller: TheRequester, at: AtAttempt) -> Response:
    """Store the requester's query shares of an attempt."""
    current = contributions.round_of(server, at.study, at.key)
    await sketches.store_queries(server, caller, at.study, current, request)
    return done()


@router.get(OPENING)
async def opening(server: ThisServer, caller: TheRequester, at: AtAttempt) -> Response:
    """This side's shares of range checks and distances, sealed to the requester; the same bytes every time."""
    answer = server.store.answer(at.key, AnswerKind.OPENING)
    if answer is None:
        raise UnknownResource("this attempt has no opening here (yet); wait until the view says 'measured'")
    return octets_answer(answer.body)


@router.put(RELEASE_SET, status_code=204, openapi_extra=body_of("Signed[ReleaseSet], signed by the requester"))
async def release_set(request: Request, server: ThisServer, caller: TheRequester, at: AtAttempt) -> Response:
    """Say whose sum is released."""
    signed = Signed[ReleaseSet].parse(await read_small(request, caller))
    with server.store.alone(at.key.study):
        release.accept_release_set(server, contributions.round_of(server, at.study, at.key), signed)
    return done()


@router.put(TAG_SEED, openapi_extra=body_of("TagSeed"))
async def tag_seed(request: Request, server: ThisServer, caller: TheRequester, at: AtAttempt) -> Response:
    """Show the seed of a round's tags; the answer is this side's check of its half."""
    message = TagSeed.parse(await read_small(request, caller))
    current = contributions.round_of(server, at.study, at.key)
    return message_answer(await release.check_half(server, current, message))


@router.put(GO, status_code=204, openapi_extra=body_of("Signed[Go], signed by the requester"))
async def go(request: Request, server: ThisServer, caller: TheRequester, at: AtAttempt) -> Response:
    """Say that both sides' checks add up to zero: the sum may be served."""
    signed = Signed[Go].parse(await read_small(request, caller))
    with server.store.alone(at.key.study):
        release.take_go(server, contributions.round_of(server, at.study, at.key), signed)
    return done()


@router.post(TAGS_FAILED, openapi_extra=body_of("Signed[TagsFailed], signed by the requester"))
async def tags_failed(request: Request, server: ThisServer, caller: TheRequester, at: AtAttempt) -> Response:
    """Say that they do not; the answer is this side's shares of single sites' errors."""
    signed = Signed[TagsFailed].parse(await read_small(request, caller))
    current = contributions.round_of(server, at.study, at.key)
    return message_answer(await release.share_errors(server, current, signed))


@router.get(OUTPUT)
async def output(study: str, round: Round, server: ThisServer, caller: AnySite) -> Response:
    """This side's half of the aggregate, sealed to the calling site; a short one by the session that asks for it."""
    record = study_named(server, study)
    latest = server.store.latest_attempt(record.digest, round)
    served = release.served_output(server, record, latest, caller.name)
    if caller.in_session and body.is_short_output(served.header):
        return octets_answer(body.frame_output(served.header, served.content))
    return sealed_answer(served.sealed(), served.at_hand)


receipts_router = APIRouter(tags=["contributions"], responses=PROBLEM)
PAGE: Final = 500
Hexadecimal = Annotated[str, Query(pattern=r"^[0-9a-f]{64}$")]


@receipts_router.get(CONTRIBUTIONS)
async def contributed(
    server: ThisServer,
    caller: AnySite,
    nonce: Hexadecimal,
    after_study: Hexadecimal = "0" * 64,
    after_round: Annotated[int, Query(ge=0, le=10**6)] = 0,
) -> Response:
    """Rounds of updates that hold a contribution of the caller and were not skipped, by study and round, in pages."""
    found = server.store.contributed(caller.name, (after_study, after_round), PAGE + 1)
    rounds, more = found[:PAGE], len(found) > PAGE
    page = ContributedRounds(site=caller.name, nonce=nonce, rounds=tuple(rounds), more=more)
    return message_answer(server.sign(page))


uploads_router = APIRouter(tags=["contributions"], responses=PROBLEM)
Length = Annotated[int, Query(ge=1, le=2**40)]
Offset = Annotated[int, Query(ge=0, le=2**40)]


async def named_upload(caller: AnySite, at: AtAttempt, digest: Hexadecimal, length: Length) -> Upload:
    """Read the upload's name from path and query."""
    return Upload(at.key, caller.name, digest, length)


ThisUpload = Annotated[Upload, Depends(named_upload)]


@uploads_router.get(CONTRIBUTION_HELD)
async def held(upload: ThisUpload, at: AtAttempt, server: ThisServer) -> Response:
    """Return how many bytes of the message with this digest are here."""
    return message_answer(await uploads.held(server, at.study, upload))


@uploads_router.put(CONTRIBUTION_PART, openapi_extra=body_of("bytes of a sealed share", sealed=True))
async def part(upload: ThisUpload, at: AtAttempt, offset: Offset, request: Request, server: ThisServer) -> Response:
    """Keep the next part; the answer says how many bytes are here now."""
    return message_answer(await uploads.take_part(server, at.study, upload, offset, request))


@uploads_router.post(CONTRIBUTION_WHOLE)
async def whole(upload: ThisUpload, at: AtAttempt, server: ThisServer, caller: AnySite) -> Response:
    """All parts are here: store them as one share; the answer is a signed receipt."""
    return message_answer(await uploads.complete(server, caller, at.study, upload))
