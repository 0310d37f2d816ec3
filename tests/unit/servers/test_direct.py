"""Enclosed requests go to their routes' functions directly, as FastAPI would take them, or not at all."""

from __future__ import annotations

import asyncio
from typing import Annotated

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.routing import APIRoute
from starlette.types import Scope

from servers.api import enrolment, health, mail, peer, rounds, studies
from servers.api.authentication import Round
from servers.api.direct import Direct

ROUTERS = (
    *(rounds.receipts_router, enrolment.router, mail.router, peer.router, studies.roster_router),
    *(rounds.router, studies.router, rounds.uploads_router),
)
router = APIRouter()
HEX = Annotated[str, Query(pattern=r"^([0-9a-f]{4})?$")]


async def _first(request: Request) -> str:
    order: list[str] = request.scope.setdefault("order", [])
    order.append("first")
    return "first"


First = Annotated[str, Depends(_first)]


async def _second(first: First, round: Round) -> int:
    return round + len(first)


def _in_a_thread() -> int:
    return 1


@router.get("/v1/things/{name}/rounds/{round}")
async def thing(
    name: str,
    round: Round,
    request: Request,
    second: Annotated[int, Depends(_second)],
    first: First,
    needed: HEX,
    wait_s: Annotated[float, Query(ge=0, le=300, allow_inf_nan=False)] = 0.5,
    sender: Annotated[str | None, Query(pattern=r"^[a-z]+$")] = None,
) -> Response:
    return Response(f"{name} {round} {second} {first} {needed} {wait_s} {sender} {request.scope['order']}")


@router.get("/v1/threads")
async def threads(one: Annotated[int, Depends(_in_a_thread)]) -> Response:
    return Response(str(one))


@router.get("/v1/dictionary")
async def dictionary() -> dict[str, str]:
    return {}


DIRECT = Direct([router])
APP = FastAPI()
APP.include_router(router)


async def _directly(path: str, query: str) -> bytes | None:
    found = DIRECT.find("GET", path, query)
    if found is None:
        return None
    scope: Scope = {"type": "http", "method": "GET", "path": path, "headers": [], "app": APP}
    return bytes((await found.answer(Request(scope))).body)


async def _by_fastapi(address: str) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=APP), base_url="http://server") as client:
        return await client.get(address)


@pytest.mark.parametrize(
    "address",
    [
        "/v1/things/a-b/rounds/3?needed=00ff",
        "/v1/things/a.b_c/rounds/1?needed=&wait_s=300",
        "/v1/things/x/rounds/1000000?wait_s=12.25&needed=abcd&sender=me",
        "/v1/things/x/rounds/01?needed=0000",
    ],
)
def test_what_is_taken_is_answered_as_fastapi_answers_it(address: str) -> None:
    path, _, query = address.partition("?")
    answer = asyncio.run(_by_fastapi(address))
    assert answer.status_code == 200
    assert asyncio.run(_directly(path, query)) == answer.content


@pytest.mark.parametrize(
    "address",
    [
        "/v1/things/x/rounds/0?needed=0000",  # below the least
        "/v1/things/x/rounds/1000001?needed=0000",
        "/v1/things/x/rounds/one?needed=0000",
        "/v1/things/x/rounds/1",  # needed is needed
        "/v1/things/x/rounds/1?needed=00zz",
        "/v1/things/x/rounds/1?needed=0000&wait_s=nan",
        "/v1/things/x/rounds/1?needed=0000&wait_s=301",
        "/v1/things/x/rounds/1?needed=0000&needed=0001",
        "/v1/things/x/rounds/1?needed=0000&another=1",
        "/v1/things/x/rounds/1?needed=%30000",
        "/v1/things/x/rounds/1?needed",
        "/v1/things/%78/rounds/1?needed=0000",
        "/v1/things//rounds/1?needed=0000",
        "/v1/things/x/rounds/1/?needed=0000",
        "/v1/things/x/rounds",
        "/v1/threads",
        "/v1/dictionary",
        "/v2/things/x/rounds/1?needed=0000",
    ],
)
def test_all_else_is_left_to_fastapi(address: str) -> None:
    path, _, query = address.partition("?")
    assert DIRECT.find("GET", path, query) is None


def test_another_method_is_left_to_fastapi() -> None:
    assert DIRECT.find("POST", "/v1/things/x/rounds/1", "needed=0000") is None


def test_every_route_of_agents_and_the_peer_has_a_direct_way() -> None:
    routes = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    direct = Direct(ROUTERS)
    for route in routes:
        path = route.path
        for name, value in {"round": "1", "attempt": "1", "number": "1", "batch": "0"}.items():
            path = path.replace(f"{{{name}}}", value)
        for name in ("study", "topic", "recipient", "session"):
            path = path.replace(f"{{{name}}}", "x")
        query = ""
        if "/contribution/" in path:
            query = f"digest={'0' * 64}&length=1" + ("&offset=0" if path.endswith("/part") else "")
        if path == "/v1/contributions":
            query = f"nonce={'0' * 64}"
        method = next(iter(route.methods or ()))
        found = direct.find(method, path, query)
        assert found is not None, path
        assert found.route is route


def test_health_is_not_asked_in_an_envelope() -> None:
    assert Direct([health.alive]).find("GET", "/healthz", "") is None


def test_what_a_route_depends_on_besides_its_function_is_never_left_out() -> None:
    """A guard of a whole router, or of a route: such a request is FastAPI's."""
    guarded, guards = APIRouter(dependencies=[Depends(_first)]), [Depends(_first)]

    async def open_to_whom_the_guard_lets_in() -> Response:
        return Response("")

    guarded.add_api_route("/v1/by-router", open_to_whom_the_guard_lets_in)
    single = APIRouter()
    single.add_api_route("/v1/by-route", open_to_whom_the_guard_lets_in, dependencies=guards)
    single.add_api_route("/v1/open", open_to_whom_the_guard_lets_in)
    direct = Direct([guarded, single])
    assert [direct.find("GET", f"/v1/{path}", "") is None for path in ("by-router", "by-route", "open")] == [
        True,
        True,
        False,
    ]
