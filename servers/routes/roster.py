"""Agents: the links of the roster that they do not have yet."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Response

from protocol.errors import UnknownResource
from protocol.wire.chain.change import MOST_CHANGES
from protocol.wire.paths import ROSTER_CHANGE
from servers.http.authentication import AnySite, ThisServer
from servers.http.responses import PROBLEM, message_answer

Number = Annotated[int, Path(ge=1, le=MOST_CHANGES)]
roster_router = APIRouter(tags=["roster"], responses=PROBLEM)


@roster_router.get(ROSTER_CHANGE)
async def get_roster_change(number: Number, server: ThisServer, caller: AnySite) -> Response:
    """One change with all three signatures; whoever fetches it checks that it continues what it holds."""
    if number > server.chain.number:
        raise UnknownResource(f"the roster has {server.chain.number} changes here, asked for change {number}")
    return message_answer(server.chain.changes[number - 1])
