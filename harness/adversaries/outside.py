"""Attacks from outside and from one site, on a federation of one's own or on servers that run somewhere.

They leave nothing behind where they are refused: a request is answered or not, a letter is too long to be stored.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import httpx

from harness.adversaries import forgeries
from harness.adversaries.attack import NO_SIGNATURE_COUNTS, Attempt, Found, passes
from harness.adversaries.refused_messages import ANY_LETTER
from harness.adversaries.scripted_requester import ScriptedSites, make_study
from harness.adversaries.scripted_rounds import SITES, SMALL, VICTIM
from harness.adversaries.signed_client import Deployment, Outgoing, SignedClient
from harness.federation.memory.servers import ServersInMemory
from protocol.errors import BrokenSeal
from protocol.messages import paths
from protocol.sharing import Side

Ask: TypeAlias = Callable[[SignedClient, str], list[httpx.Response]]
"""Requests that need no more than a site's keys and the name of a study. -> what both servers answer"""


def _taken(ask: Ask, client: SignedClient, study: str) -> Found:
    """It succeeds when one of the requests is taken."""
    taken = sum(answer.is_success for answer in ask(client, study))
    return Found(taken > 0, taken)


def _on_own_servers(ask: Ask, folder: Path) -> Found:
    with ServersInMemory(folder, SITES) as servers:
        sites = ScriptedSites(servers, make_study(servers, SMALL))
        try:
            sites.create()
            return _taken(ask, sites.clients[VICTIM], sites.study.name)
        finally:
            sites.close()


def _on_running_servers(ask: Ask, place: Deployment) -> Found:
    client = SignedClient(place, place.own)
    try:
        return _taken(ask, client, place.study)
    finally:
        client.close()


def _view(client: SignedClient, study: str, side: Side, created: int | None = None) -> Outgoing:
    return client.enclose(side, "GET", paths.fill(paths.VIEW, study=study), created=created)


def _in_anothers_name(client: SignedClient, study: str) -> list[httpx.Response]:
    other = next(site.name for site in client.federation.roster.sites if site.name != client.keys.name)
    pretended = replace(forgeries.impostor(client.keys, secrets.token_bytes(32)), name=other)
    forged = SignedClient(client.federation, pretended)
    try:
        return [_answered(forged, _view(forged, study, side)) for side in Side]
    finally:
        forged.close()


def _answered(forged: SignedClient, asked: Outgoing) -> httpx.Response:
    """A server that believes it seals its answer to the site whose name was taken."""
    try:
        return forged.post(asked)
    except BrokenSeal:
        return httpx.Response(httpx.codes.OK)


def _replayed(client: SignedClient, study: str) -> list[httpx.Response]:
    asked = [_view(client, study, side) for side in Side]
    for one in asked:
        client.post(one)
    return [client.post(one) for one in asked]


def _delayed(client: SignedClient, study: str) -> list[httpx.Response]:
    then = int(client.federation.clock.now()) - 3600
    return [client.post(_view(client, study, side, then)) for side in Side]


def _long_letter(client: SignedClient, study: str) -> list[httpx.Response]:
    path = paths.fill(paths.MAIL, study=study, topic="refusal", recipient=client.federation.roster.requester)
    return [client.send(Side.A, "PUT", path, bytes(2**20))]


def _attempt(ask: Ask, without: Mapping[str, object]) -> Attempt:
    return Attempt(partial(_on_own_servers, ask), without, partial(_on_running_servers, ask))


ATTEMPTS: Final = {
    "request-in-anothers-name": _attempt(_in_anothers_name, NO_SIGNATURE_COUNTS),
    "request-replayed": _attempt(_replayed, {"servers.store.sql.SqlStore.remember_nonce": passes}),
    "request-delayed": _attempt(
        _delayed,
        {"protocol.channel.signing.require_time": passes, "servers.roster.sessions.require_time": passes},
    ),
    "letter-of-a-megabyte": _attempt(_long_letter, ANY_LETTER),
}
