"""Routes for strangers: an operator's public card, and questions of enrolment, sealed to the operator and answered
sealed.

What is asked here costs the allowance of the caller's address, as everything that no party of the roster signs. All
strangers wait in one line, in which an address has few places, so that nobody keeps the others out by asking.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from fastapi import APIRouter, Request, Response

from protocol.errors import TooLarge, Unavailable, UnknownResource
from protocol.messages.paths import CARD, ENROLMENT
from protocol.roster.enrolment import MOST_ASKED_SEALED_BYTES, dump_card
from servers.enrolment.desk import Desk
from servers.http.admission import VISIT, Allowance, Shares, Visit
from servers.http.responses import PROBLEM, body_of, octets_answer

router = APIRouter(tags=["enrolment"])
_ASKED_PER_S: Final = 10.0
_EVERYBODY: Final = "everybody"
_TOO_MANY: Final = "too many ask to join at the moment: run the same command again in a minute"
_MOST_WAIT: Final = 200
"""So that a site, which gives up after thirty seconds, is answered before."""
_MOST_WAIT_PER_ADDRESS: Final = 8


class OpenDesk:
    """A desk that answers strangers one after the other, at most so many per second."""

    def __init__(
        self,
        desk: Desk,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.desk = desk
        self._sleep = sleep
        self._allowance = Allowance(_ASKED_PER_S, clock)
        self._line: Shares[asyncio.Future[None]] = Shares()
        self._called: asyncio.Future[None] | None = None

    async def answer(self, sealed: bytes, address: str = "") -> bytes:
        """Raises: Unavailable, and what ``Desk.answer`` raises"""
        turn = self._turn(address)
        try:
            await turn
            while not self._allowance.take(_EVERYBODY):
                await self._sleep(1 / _ASKED_PER_S)
            return await asyncio.to_thread(self.desk.answer, sealed)
        finally:
            self._line.remove(turn)
            if self._called is turn:
                self._call_next()

    def _turn(self, address: str) -> asyncio.Future[None]:
        """A place at the end of the line. Raises: Unavailable"""
        if self._line.of(address) >= _MOST_WAIT_PER_ADDRESS:
            raise Unavailable(_TOO_MANY)
        if len(self._line) >= _MOST_WAIT:
            given_up = self._line.given_up_for(address, busy=asyncio.Future.done)
            if given_up is None:
                raise Unavailable(_TOO_MANY)
            self._line.remove(given_up)
            given_up.set_exception(Unavailable(_TOO_MANY))
        turn = asyncio.get_running_loop().create_future()
        self._line.add(turn, address)
        if self._called is None:
            self._call_next()
        return turn

    def _call_next(self) -> None:
        self._called = next((turn for turn in self._line if not turn.done()), None)
        if self._called is not None:
            self._called.set_result(None)


def _open_desk(request: Request) -> OpenDesk:
    found: OpenDesk | None = request.app.state.desk
    if found is None:
        raise UnknownResource("this server enrols nobody: its first roster was made by hand (docs/operating.md)")
    return found


@router.get(CARD, responses=PROBLEM)
async def operator_card(request: Request) -> Response:
    """The operator's public card, TOML; whose it is its fingerprint says."""
    return Response(dump_card(_open_desk(request).desk.card), media_type="application/toml")


@router.post(ENROLMENT, responses=PROBLEM, openapi_extra=body_of("a sealed question of enrolment", sealed=True))
async def enrol(request: Request) -> Response:
    """Register by an invitation, ask how things stand, found the federation (protocol/roster/enrolment.py)."""
    desk = _open_desk(request)
    sealed = bytearray()
    async for piece in request.stream():
        sealed += piece
        if len(sealed) > MOST_ASKED_SEALED_BYTES:
            raise TooLarge(f"a question of enrolment has at most {MOST_ASKED_SEALED_BYTES} bytes")
    visit: Visit | None = request.scope.get(VISIT)  # none in a test without a socket
    return octets_answer(await desk.answer(bytes(sealed), (visit and visit.asking) or ""))
