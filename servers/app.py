"""The FastAPI applications of one server: the whole one, and the one that waits for the federation's first roster.

Nothing of studies is here, and no database is opened; when the first roster is in place the whole server takes over.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache, partial
from http import HTTPStatus
from typing import Any

import httpx
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match, Route
from structlog.typing import FilteringBoundLogger

from host import log
from host.files import is_full
from protocol.channel.signing import require_own_version
from protocol.errors import ErrorCode, MoietyError, OtherVersion, Unavailable
from servers.api import enrolment, health, mail, peer, rounds, studies
from servers.api.direct import Direct, PublicApplication
from servers.api.responses import problem_answer
from servers.background.duties import Duties, end_all, follow_roster
from servers.background.processes import Hearing, drive_in_turn
from servers.correlations import OBLIVIOUS, Transfer
from servers.enrolment.desk import Desk
from servers.event_loop import keep_doing
from servers.monitoring import CountTraffic
from servers.problems import MEDIA_TYPE, internal_problem, problem_body, status_of
from servers.rounds.uploads import sweep
from servers.server import Server, open_server
from servers.settings import Role, ServerSettings
from servers.status import Readiness, make_token

_UPLOADS_LOOKED_AT_EVERY_S = 60.0
_LOGGED_CHARACTERS = 200
_log = log.logger("http")
_OPEN_TO_ALL = (
    studies.router,
    studies.roster_router,
    studies.sessions_router,
    rounds.receipts_router,
    mail.router,
    rounds.router,
    rounds.uploads_router,
    health.alive,
    enrolment.router,
)
_ROUTERS = (*_OPEN_TO_ALL, peer.router)


def create_app(
    settings: ServerSettings,
    *,
    clock: Callable[[], float] = time.time,
    to_peer: httpx.AsyncBaseTransport | None = None,
    transfer: Transfer = OBLIVIOUS,
) -> PublicApplication:
    """The application; state and background tasks begin with its lifespan.

    Clock, way to the peer (None: TLS, as the settings say) and oblivious transfer are arguments for whoever runs both
    servers in one process.

    Raises: ConfigurationError
    """
    server = open_server(settings, clock)
    sweep(server)
    app = PublicApplication(
        title="Moiety server",
        description=f"Side {server.side.value.upper()} of a federation in which the servers see nothing.",
        version="1",
        lifespan=lambda app: _lifespan(app, to_peer, transfer),
        separate_input_output_schemas=False,
        openapi_url=None,
    )
    app.state.server = server
    app.state.fail = lambda: _log.error("not_stopped")
    """Ends this process; whoever serves the application sets it."""
    enrols = settings.card is not None and settings.role is not Role.UPLOAD
    app.state.desk = None if not enrols else enrolment.OpenDesk(Desk(settings, clock))
    for router in _ROUTERS:
        app.include_router(router)
    server.metrics.expect_routes([name for one in _OPEN_TO_ALL for name in _names(one)], _names(peer.router))
    app.add_middleware(CountTraffic, metrics=server.metrics)
    _handle_errors(app, server, _ROUTERS)
    app.take_envelopes(server, _direct(), partial(CountTraffic, metrics=server.metrics))
    return app


@cache
def _direct() -> Direct:
    """Work out the ways to all routes, which takes as long as all else of an application."""
    return Direct(_ROUTERS)


def _names(router: APIRouter) -> list[str]:
    return [route.name for route in router.routes if isinstance(route, APIRoute)]


def create_operations(app: FastAPI) -> FastAPI:
    """Make the operator's own application: metrics, readiness, status, its interface."""
    operations = FastAPI(title=app.title, redoc_url=None)
    operations.openapi = app.openapi  # type: ignore[method-assign]  # it describes the public application, not itself
    operations.state.server = app.state.server
    operations.state.public = app
    operations.state.readiness = Readiness(app)
    operations.state.status_lock = asyncio.Lock()
    make_token(app.state.server.settings.data_dir)
    routers = (health.alive, health.router)
    for router in routers:
        operations.include_router(router)
    _handle_errors(operations, app.state.server, routers)
    return operations


@asynccontextmanager
async def _lifespan(app: FastAPI, to_peer: httpx.AsyncBaseTransport | None, transfer: Transfer) -> AsyncIterator[None]:
    server: Server = app.state.server
    duties = Duties(app, server, to_peer, transfer)
    tasks = [asyncio.create_task(follow_roster(server))]
    if server.store.beside is None:
        duties.begin()
    else:
        tasks += [asyncio.create_task(one) for one in _beside_others(app, server, duties)]
    async with AsyncExitStack() as ending:  # from the last to the first, each whatever became of the others
        ending.callback(server.store.close)
        ending.push_async_callback(asyncio.to_thread, server.shares.close)
        ending.callback(server.ckks.close)
        ending.push_async_callback(duties.end)
        ending.push_async_callback(end_all, tasks)
        yield


def _beside_others(app: FastAPI, server: Server, duties: Duties) -> Iterator[Coroutine[Any, Any, None]]:
    yield Hearing(server).keep()
    yield _sweep_uploads(server)
    if server.settings.role is Role.DRIVER:
        yield drive_in_turn(server, duties, app.state.fail)


async def _sweep_uploads(server: Server) -> None:
    """Delete partial uploads here to an attempt whose end another process saw."""
    await keep_doing(lambda: sweep(server), _UPLOADS_LOOKED_AT_EVERY_S, _log, "uploads_not_swept")


def _handle_errors(app: FastAPI, server: Server, routers: Sequence[APIRouter]) -> None:
    problem = partial(problem_answer, server)
    _handle_common_errors(app, problem, _log)

    @app.exception_handler(RequestValidationError)
    async def wrong_parameters(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return problem(ErrorCode.MALFORMED_MESSAGE, f"{where}: {first['msg']}")

    @app.exception_handler(HTTPException)
    async def no_such_route(request: Request, error: HTTPException) -> Response:
        try:
            require_own_version([(name, value) for name, value in request.headers.items()])
        except OtherVersion as newer:  # which may call at addresses that do not exist here
            return problem(newer.code, newer.detail)
        detail = f"{request.method} {request.url.path}: {error.detail}"
        # counted alone: any stranger could push the last refusals out with addresses that do not exist
        answer = problem(ErrorCode.UNKNOWN_RESOURCE, detail, error.status_code, noted=False)
        return _with_allow(answer, request, routers)


def _with_allow(answer: Response, request: Request, routers: Sequence[APIRouter]) -> Response:
    """Name, in a 405, the methods of all routes at the address."""
    if answer.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        routes = [one for router in (request.app.router, *routers) for one in router.routes if isinstance(one, Route)]
        there = [one.methods or () for one in routes if one.matches(request.scope)[0] is Match.PARTIAL]
        answer.headers["allow"] = ", ".join(sorted({method for methods in there for method in methods}))
    return answer


def _handle_common_errors(
    app: FastAPI, problem: Callable[[ErrorCode, str], Response], said: FilteringBoundLogger
) -> None:
    @app.exception_handler(MoietyError)
    async def refused(request: Request, error: MoietyError) -> Response:
        said.info("refused", route=request.url.path[:_LOGGED_CHARACTERS], code=error.code, detail=error.detail)
        return problem(error.code, error.detail)

    @app.exception_handler(ClientDisconnect)
    async def gone(request: Request, error: ClientDisconnect) -> Response:
        return problem(ErrorCode.UNAVAILABLE, "the connection ended before the body did; send it again")

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        if isinstance(error, OSError) and is_full(error):
            return problem(ErrorCode.STORAGE_FULL, "the server's disk is full; nothing was stored; send it again later")
        said.error("failed", route=request.url.path, exc_info=error)
        return Response(internal_problem(), status_code=500, media_type=MEDIA_TYPE)


_founding_log = log.logger("founding")
_router = APIRouter(tags=["operation"])


def create_founding(settings: ServerSettings, *, clock: Callable[[], float] = time.time) -> FastAPI:
    """The public application; ``state.founded`` is called once the first roster is in place.

    Raises: ConfigurationError
    """
    app = FastAPI(title="Moiety server, before its federation is founded", openapi_url=None)
    app.state.founded = lambda: None

    def founded() -> None:
        _founding_log.info("founded", roster=str(settings.roster))
        app.state.founded()

    app.state.desk = enrolment.OpenDesk(Desk(settings, clock, founded))
    routers = (health.alive, enrolment.router)
    for router in routers:
        app.include_router(router)
    _handle_founding_errors(app, routers)
    return app


def create_founding_operations(app: FastAPI) -> FastAPI:
    """Make the operator's own application while the server waits for its roster: alive, and what is waited for."""
    operations = FastAPI(title="Operations, before the federation is founded", openapi_url=None)
    operations.state.desk = app.state.desk
    routers = (health.alive, _router)
    for router in routers:
        operations.include_router(router)
    _handle_founding_errors(operations, routers)
    return operations


@_router.get("/readyz")
def readyz(request: Request) -> dict[str, str]:
    """Not ready: what is still to be done."""
    desk: enrolment.OpenDesk = request.app.state.desk
    waits_for = "; ".join(desk.desk.waits_for())
    raise Unavailable(f"the federation is not founded yet; this server waits for {waits_for or 'its start'}")


def _handle_founding_errors(app: FastAPI, routers: Sequence[APIRouter]) -> None:
    def answer(code: ErrorCode, detail: str, status: int | None = None) -> Response:
        body = problem_body(code, detail, status)
        return Response(body, status_code=status or status_of(code), media_type=MEDIA_TYPE)

    _handle_common_errors(app, answer, _founding_log)

    @app.exception_handler(HTTPException)
    async def no_such_route(request: Request, error: HTTPException) -> Response:
        if error.status_code == 404 and request.url.path.startswith("/v1/"):
            return answer(ErrorCode.UNAVAILABLE, "this federation is not founded yet: only enrolment is served here")
        refused = answer(ErrorCode.UNKNOWN_RESOURCE, f"{request.method}: {error.detail}", error.status_code)
        return _with_allow(refused, request, routers)
