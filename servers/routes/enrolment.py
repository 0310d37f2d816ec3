"""For strangers: an operator's public card, and questions of enrolment, sealed to the operator and answered sealed.

What is asked here costs the allowance of the caller's address, as everything that no party of the roster signs, and
that of all strangers together.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from fastapi import APIRouter, Request, Response

from protocol.errors import TooLarge, Unavailable, UnknownResource
from protocol.wire.enrolment.card import dump_card
from protocol.wire.enrolment.exchange import MOST_ASKED_SEALED_BYTES
from protocol.wire.paths import CARD, ENROLMENT
from servers.enrolment.desk import Desk
from servers.http.admission import Allowance
from servers.http.responses import PROBLEM, body_of, octets_answer

router = APIRouter(tags=["enrolment"])
_ASKED_PER_S: Final = 10.0
_EVERYBODY: Final = "everybody"


class OpenDesk:
    """A desk that strangers may ask so many times per second, one after the other."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self._allowance = Allowance(_ASKED_PER_S, time.monotonic)
        self._one_by_one = asyncio.Lock()

    async def answer(self, sealed: bytes) -> bytes:
        """Raises: Unavailable, and what ``Desk.answer`` raises"""
        if not self._allowance.take(_EVERYBODY):
            raise Unavailable("too many ask to join at the moment: run the same command again in a minute")
        async with self._one_by_one:
            return await asyncio.to_thread(self.desk.answer, sealed)


def _open_desk(request: Request) -> OpenDesk:
    found: OpenDesk | None = request.app.state.desk
    if found is None:
        raise UnknownResource("this server enrols nobody: its roster is carried by hand (docs/operating.md)")
    return found


@router.get(CARD, responses=PROBLEM)
async def operator_card(request: Request) -> Response:
    """The operator's public card, TOML; whose it is its fingerprint says."""
    return Response(dump_card(_open_desk(request).desk.card), media_type="application/toml")


@router.post(ENROLMENT, responses=PROBLEM, openapi_extra=body_of("a sealed question of enrolment", sealed=True))
async def enrol(request: Request) -> Response:
    """Register by an invitation, ask how things stand, found the federation (protocol/wire/enrolment)."""
    desk = _open_desk(request)
    sealed = bytearray()
    async for piece in request.stream():
        sealed += piece
        if len(sealed) > MOST_ASKED_SEALED_BYTES:
            raise TooLarge(f"a question of enrolment has at most {MOST_ASKED_SEALED_BYTES} bytes")
    return octets_answer(await desk.answer(bytes(sealed)))
