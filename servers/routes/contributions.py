"""Agents: what a server has a site's receipts for, so that a lost memory is noticed (docs/protocol.md 13)."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Query, Response

from protocol.messages.control import ContributedRounds
from protocol.messages.paths import CONTRIBUTIONS
from servers.http.authentication import AnySite, ThisServer
from servers.http.responses import PROBLEM, message_answer

router = APIRouter(tags=["contributions"], responses=PROBLEM)
PAGE: Final = 500
Hexadecimal = Annotated[str, Query(pattern=r"^[0-9a-f]{64}$")]


@router.get(CONTRIBUTIONS)
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
