"""What a party signs and sends without an envelope is answered by nothing: a proxy could read it, and its answer.

Every address of the running applications is asked, so that one which is added later is asked too.

Every route is asked, which an attack on one of them would not do.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from protocol.channel.signing import sign_request
from protocol.messages.paths import CARD, ENROLMENT, STUDIES
from protocol.parameters import PROTOCOL_VERSION
from protocol.sharing import Side
from servers.app import create_app
from servers.settings import load_settings
from tests.kit.processes import Federation, prepare_servers

SITES = [f"hospital-{i}" for i in range(4)]
PUBLIC = {"/healthz", "/drives", CARD, ENROLMENT}  # who enrols is in no roster: its invitation proves it
VALUES = {"study": "trial", "topic": "refusal", "recipient": SITES[0], "session": "00" * 32}
BODY = b"{}"


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    return prepare_servers(tmp_path_factory.mktemp("outside"), SITES, seed=7)


def every_route(routes: Iterable[Any]) -> Iterator[APIRoute]:
    """Those of included routers too, which the library keeps as they are."""
    for route in routes:
        included = getattr(route, "original_router", None)
        if included is not None:
            yield from every_route(included.routes)
        else:
            assert isinstance(route, APIRoute), "a route of another kind: ask it too"
            yield route


def signed_routes(app: FastAPI) -> list[tuple[str, str]]:
    """Method and address of every route but the public ones, its placeholders filled."""
    routes = [route for route in every_route(app.routes) if route.path not in PUBLIC]
    found = [(method, route.path) for route in routes for method in sorted(route.methods or ())]
    return [(method, re.sub(r"{(\w+)[^}]*}", lambda place: VALUES.get(place[1], "1"), path)) for method, path in found]


class Outside:
    """A party's own signature over a request without an envelope; ``read`` counts how often its body was asked for."""

    def __init__(self, federation: Federation, side: Side, app: FastAPI) -> None:
        self._federation, self._side = federation, side
        self._url = federation.url(side)
        self._client = httpx.AsyncClient(transport=httpx.ASGITransport(app=app))
        self.read = 0

    async def ask(self, method: str, path: str, version: str = PROTOCOL_VERSION) -> httpx.Response:
        peer = self._federation.roster.operator(self._side.other).name
        keys = self._federation.keys(peer if path.startswith("/v1/peer/") else SITES[0])
        digest = hashlib.sha256(b"" if method == "GET" else BODY).digest()
        made: dict[str, Any] = {"created": int(time.time()), "nonce": secrets.token_urlsafe(18)}
        signed = sign_request(method, self._url + path, digest, keys.signing, keys.key_id, **made)
        headers = [(name, value.replace(PROTOCOL_VERSION, version)) for name, value in signed]
        return await self._client.request(method, self._url + path, headers=headers, content=self._body())

    async def _body(self) -> AsyncIterator[bytes]:
        self.read += 1
        yield BODY


@pytest.mark.parametrize("side", list(Side))
def test_a_signed_request_outside_an_envelope_is_answered_by_no_route(federation: Federation, side: Side) -> None:
    """Refused as a wrong signature is, with what to install, before a byte of its body is read."""

    async def ask_all() -> None:
        app = create_app(load_settings(federation.servers[side].config))
        async with app.router.lifespan_context(app):
            outside, routes = Outside(federation, side, app), signed_routes(app)
            assert len(routes) > 20
            for method, path in routes:
                answer = await outside.ask(method, path)
                assert (answer.status_code, answer.json()["code"]) == (401, "bad_signature"), (method, path)
                assert "in no envelope" in answer.json()["detail"], path
                assert "signature" not in answer.headers, path
            assert outside.read == 0
            assert (await outside.ask("GET", "/healthz")).status_code == 200

    asyncio.run(ask_all())


def test_a_caller_of_another_version_is_told_what_to_install(federation: Federation) -> None:
    """Version 1 knew no envelopes: whoever still speaks it hears of the version, not of a wrong signature."""

    async def ask() -> None:
        app = create_app(load_settings(federation.servers[Side.B].config))
        async with app.router.lifespan_context(app):
            answer = await Outside(federation, Side.B, app).ask("GET", STUDIES, version="moiety/1")
            assert (answer.status_code, answer.json()["code"]) == (400, "other_version")
            assert "0.2.0" in answer.json()["detail"]

    asyncio.run(ask())
