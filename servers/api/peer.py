"""Side B: what side A calls, signed by A's operator (docs/protocol.md 4, 7, 8, 9)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Request, Response

from protocol.arithmetic.ring import ELEMENT_BYTES
from protocol.errors import NotListed, RolledBack, ShareAltered, Unavailable, UnknownResource, WrongRound
from protocol.messages import bodies as masked_sum_body
from protocol.messages import paths
from protocol.messages.control import (
    MAX_CONTROL_BYTES,
    AgreedSet,
    ReleaseSet,
    RoundOutcome,
    RoundState,
    Signed,
    SumRelease,
)
from protocol.messages.peer import ChallengeReveal, HandOver, Histories, LockRequest
from protocol.messages.purpose import RoundStep
from protocol.ot.session import SITE_ELEMENTS, extension_message_bytes
from protocol.release import masking_side
from protocol.sharing import Side
from servers.api.authentication import AtAttempt, StrangerPeer, ThePeer, ThisServer
from servers.api.responses import PROBLEM, body_of, done, message_answer, octets_answer, sealed_answer
from servers.failpoints import Point
from servers.peer_client import histories_to_send, take_histories
from servers.rounds.ciphertexts import countersign_agreed_set, countersign_sum_release
from servers.rounds.endings import countersign_outcome, kept_go, serve
from servers.rounds.intake import read_small, stream_into
from servers.rounds.masked_sum import SealedMaskedSum, sealed_masked_sum, summed_length
from servers.rounds.release import (
    accept_release_set,
    keep_first_output,
    keep_mask,
    new_output_name,
    with_mask_seed,
)
from servers.rounds.side_b import Answering
from servers.rounds.sketches import most_elements, parameters_of
from servers.store.records import RoundRecord


async def _only_b(server: ThisServer, caller: StrangerPeer) -> None:
    """Only side B answers; side A calls. Raises: Unavailable, where another process of this server drives"""
    if server.side is not Side.B:
        raise NotListed("this server is side A: it calls side B and is not called by it")
    if not server.drives:
        raise Unavailable("this process does not drive its server's rounds; the one that does answers side A")


OnlyB = Annotated[None, Depends(_only_b)]


async def side_b(request: Request, only_b: OnlyB, caller: ThePeer) -> Answering:
    answering: Answering = request.app.state.answering
    return answering


_SUMMED: Final = frozenset({RoundState.COMMITTED, RoundState.RELEASED})
SideB = Annotated[Answering, Depends(side_b)]
router = APIRouter(tags=["between the servers"], responses=PROBLEM)


@router.post(paths.PEER_HISTORY, openapi_extra=body_of("Histories"))
async def histories(request: Request, server: ThisServer, only_b: OnlyB, caller: StrangerPeer) -> Response:
    """Exchange both servers' histories; A's view of itself is in the answer, whatever becomes of its own."""
    message = Histories.parse(await read_small(request, caller))
    with suppress(RolledBack):
        take_histories(server, message)
    return message_answer(histories_to_send(server))


# --- oblivious transfer -----------------------------------------------------------------------------------------------


@router.get(paths.PEER_SESSION, status_code=204)
async def session_open(session: str, b: SideB) -> Response:
    """Return whether this session is still open here."""
    b.sessions.require(session)
    return done()


@router.post(paths.PEER_SESSION, openapi_extra=body_of("frame of SessionOpen", sealed=True))
async def open_session(session: str, request: Request, b: SideB, caller: ThePeer) -> Response:
    """Begin a session; the frame that comes back holds SessionOpened and the base OT message."""
    return octets_answer(await b.sessions.open(session, await read_small(request, caller)))


@router.post(paths.PEER_BASE, status_code=204, openapi_extra=body_of("base OT reply", sealed=True))
async def base(session: str, request: Request, b: SideB, caller: ThePeer) -> Response:
    """Finish the base OTs."""
    await b.sessions.finish_base(session, await read_small(request, caller))
    return done()


@router.post(paths.PEER_EXTEND, openapi_extra=body_of("frame of BatchHeader and U", sealed=True))
async def extend(session: str, batch: int, request: Request, b: SideB, caller: ThePeer) -> Response:
    """Take the extension's columns; the answer is the consistency check's chi."""
    limit = MAX_CONTROL_BYTES + extension_message_bytes(SITE_ELEMENTS)
    return octets_answer(await b.sessions.extend(session, batch, await read_small(request, caller, limit)))


@router.post(paths.PEER_ANSWER, openapi_extra=body_of("frame of BatchHeader and the check's answer", sealed=True))
async def answer(session: str, batch: int, request: Request, b: SideB, caller: ThePeer) -> Response:
    """Take the check's answer; what comes back are the products' messages."""
    return octets_answer(await b.sessions.answer(session, batch, await read_small(request, caller)))


# --- rounds -----------------------------------------------------------------------------------------------------------


@router.get(paths.PEER_COLLECTED)
async def collected(b: SideB, at: AtAttempt) -> Response:
    """Return what this side holds; waits a few seconds for what is missing."""
    return message_answer(await b.collected(at.study, at.key))


@router.post(paths.PEER_LOCK, openapi_extra=body_of("LockRequest"))
async def lock(request: Request, server: ThisServer, b: SideB, caller: ThePeer, at: AtAttempt) -> Response:
    """Countersign the agreed set."""
    message = LockRequest.parse(await read_small(request, caller))
    with server.store.alone(at.key.study):
        return message_answer(b.lock(at.key, message))


@router.post(paths.PEER_AGREED_SET, openapi_extra=body_of("Signed[AgreedSet], signed by side A"))
async def agreed_set(request: Request, server: ThisServer, b: SideB, caller: ThePeer, at: AtAttempt) -> Response:
    """Countersign the agreed set of a round of ciphertexts, of which this side holds nothing."""
    signed = Signed[AgreedSet].parse(await read_small(request, caller))
    with server.store.alone(at.key.study):
        return message_answer(countersign_agreed_set(server, b.round(at.key), signed))


@router.post(paths.PEER_CHALLENGE, openapi_extra=body_of("ChallengeReveal"))
async def challenge(request: Request, server: ThisServer, b: SideB, caller: ThePeer, at: AtAttempt) -> Response:
    """Countersign the challenge."""
    message = ChallengeReveal.parse(await read_small(request, caller))
    with server.store.alone(at.key.study):
        return message_answer(b.challenge(at.study, at.key, message))


@router.post(paths.PEER_PRODUCTS, openapi_extra=body_of("frame of ProductsHeader and masked vectors", sealed=True))
async def products(request: Request, server: ThisServer, b: SideB, caller: ThePeer, at: AtAttempt) -> Response:
    """Exchange masked vectors; 503 while the requester's queries are missing."""
    longest = ELEMENT_BYTES * most_elements(at.study.study, server.most_sites)
    body = await read_small(request, caller, MAX_CONTROL_BYTES + longest)
    return octets_answer(await b.products(at.study, at.key, body))


@router.put(paths.PEER_RELEASE_SET, status_code=204, openapi_extra=body_of("Signed[ReleaseSet]"))
async def put_release_set(request: Request, server: ThisServer, b: SideB, caller: ThePeer, at: AtAttempt) -> Response:
    """Take the requester's release set from the other side."""
    signed = Signed[ReleaseSet].parse(await read_small(request, caller))
    if at.key in server.altered:
        raise server.altered[at.key]
    with server.store.alone(at.key.study):
        accept_release_set(server, b.round(at.key), signed)
    return done()


@router.get(paths.PEER_RELEASE_SET)
async def get_release_set(b: SideB, at: AtAttempt) -> Response:
    """Give the requester's release set, if this side has it."""
    return message_answer(_released_set(b.round(at.key)))


@router.post(paths.PEER_SUM_RELEASE, openapi_extra=body_of("Signed[SumRelease], signed by side A"))
async def sum_release(request: Request, server: ThisServer, b: SideB, caller: ThePeer, at: AtAttempt) -> Response:
    """Countersign that a round of ciphertexts ends with this sum."""
    signed = Signed[SumRelease].parse(await read_small(request, caller))
    with server.store.alone(at.key.study):
        return message_answer(countersign_sum_release(server, at.study, at.key, signed))


@router.put(
    paths.PEER_MASKED_SUM,
    status_code=204,
    openapi_extra=body_of("sealed MaskedSumHeader and sum", sealed=True),
)
async def put_masked_sum(request: Request, server: ThisServer, b: SideB, caller: ThePeer, at: AtAttempt) -> Response:
    """Odd rounds: take A's masked sum, add this side's, and keep the output."""
    current = _with_release_set(b.round(at.key), Side.A)
    if current.state in _SUMMED:
        return done()
    with server.files.draft(Point.MASKED_SUM_MIDWAY) as draft:
        parameters = parameters_of(at.study, current)
        intake = SealedMaskedSum(server, current, parameters, draft)
        try:
            await stream_into(
                request, intake.feed, masked_sum_body.most_masked_sum_bytes(summed_length(current, parameters))
            )
            await asyncio.to_thread(intake.finish, caller)
        except ShareAltered as error:  # the sum may still be coming, and this answer be lost
            server.altered[current.key] = error
            raise
        name = new_output_name(server, current)
        await asyncio.to_thread(draft.keep, name)
    keep_first_output(server, at.study, current, name, intake.half_digest())
    return done()


@router.get(paths.PEER_MASKED_SUM)
async def get_masked_sum(server: ThisServer, b: SideB, at: AtAttempt) -> Response:
    """Even rounds: give this side's masked sum."""
    current = _with_release_set(b.round(at.key), Side.B)
    if current.state not in _SUMMED:
        await asyncio.to_thread(server.shares.require_unaltered, current)
    current = with_mask_seed(server, current)
    if current.state not in _SUMMED:
        keep_mask(server, at.study, current)
    parameters = parameters_of(at.study, current)
    return sealed_answer(sealed_masked_sum(server, current, parameters))


@router.put(paths.PEER_GO, status_code=204, openapi_extra=body_of("HandOver"))
async def put_go(request: Request, server: ThisServer, b: SideB, caller: ThePeer, at: AtAttempt) -> Response:
    """Side A has stored the requester's go: serve."""
    handed = HandOver.parse(await read_small(request, caller))
    with server.store.alone(at.key.study):
        serve(server, at.study, at.key, handed)
    return done()


@router.get(paths.PEER_GO)
async def get_go(b: SideB, at: AtAttempt) -> Response:
    """Give the requester's go, if this side has it."""
    return message_answer(kept_go(b.round(at.key)))


@router.post(paths.PEER_OUTCOME, openapi_extra=body_of("Signed[RoundOutcome], signed by side A"))
async def outcome(request: Request, server: ThisServer, b: SideB, caller: ThePeer, at: AtAttempt) -> Response:
    """Countersign that a round is skipped or an attempt burnt."""
    signed = Signed[RoundOutcome].parse(await read_small(request, caller))
    with server.store.alone(at.key.study):
        return message_answer(countersign_outcome(server, at.key, signed))


def _released_set(record: RoundRecord) -> Signed[ReleaseSet]:
    if record.release_set is None:
        raise UnknownResource("the requester's release set is not here")
    return record.release_set


def _with_release_set(record: RoundRecord, masks: Side) -> RoundRecord:
    if RoundStep.MASK not in record.announcement.message.protection.plan.steps:
        raise WrongRound(f"round {record.key.round} is one of ciphertexts; both servers sign its sum, none masks it")
    _released_set(record)
    if masking_side(record.key.round) is not masks:
        raise NotListed(f"in round {record.key.round} side {masks.other.value!r} is the one that masks its sum")
    return record
