"""Agents: the links of the roster that they do not have yet."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Response

from protocol.errors import UnknownResource
from protocol.messages.paths import ROSTER_CHANGE
from protocol.messages.roster import MOST_CHANGES
from servers.http.authentication import AnySite, ThisServer
from servers.http.responses import PROBLEM, message_answer

Number = Annotated[int, Path(ge=1, le=MOST_CHANGES)]
router = APIRouter(tags=["roster"], responses=PROBLEM)


@router.get(ROSTER_CHANGE)
async def get_roster_change(number: Number, server: ThisServer, caller: AnySite) -> Response:
    """One change with all three signatures; whoever fetches it checks that it continues what it holds."""
    if number > server.chain.number:
        raise UnknownResource(f"the roster has {server.chain.number} changes here, asked for change {number}")
    return message_answer(server.chain.changes[number - 1])
