"""A server that has no roster yet: it shows its card, takes registrations in, and waits until there is one.

Nothing of studies is here, and no database is opened; when the first roster is in place the whole server takes over.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from fastapi import APIRouter, FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from host import log
from host.files import is_full
from protocol.errors import ErrorCode, MoietyError, Unavailable
from servers.enrolment.desk import Desk
from servers.http.problems import MEDIA_TYPE, internal_problem, problem_body, status_of
from servers.routes import enrolment, health
from servers.settings import ServerSettings

_LOGGED_CHARACTERS = 200
_log = log.logger("founding")
_router = APIRouter(tags=["operation"])


def create_founding(settings: ServerSettings, *, clock: Callable[[], float] = time.time) -> FastAPI:
    """The public application; ``state.founded`` is called once the first roster is in place.

    Raises: ConfigurationError
    """
    app = FastAPI(title="Moiety server, before its federation is founded", openapi_url=None)
    app.state.founded = lambda: None

    def founded() -> None:
        _log.info("founded", roster=str(settings.roster))
        app.state.founded()

    app.state.desk = enrolment.OpenDesk(Desk(settings, clock, founded))
    for router in (health.alive, enrolment.router):
        app.include_router(router)
    _handle_errors(app)
    return app


def create_founding_operations(app: FastAPI) -> FastAPI:
    """Make the operator's own application while the server waits for its roster: alive, and what is waited for."""
    operations = FastAPI(title="Operations, before the federation is founded", openapi_url=None)
    operations.state.desk = app.state.desk
    for router in (health.alive, _router):
        operations.include_router(router)
    _handle_errors(operations)
    return operations


@_router.get("/readyz")
def readyz(request: Request) -> dict[str, str]:
    """Not ready: what is still to be done."""
    desk: enrolment.OpenDesk = request.app.state.desk
    waits_for = "; ".join(desk.desk.waits_for())
    raise Unavailable(f"the federation is not founded yet; this server waits for {waits_for or 'its start'}")


def _handle_errors(app: FastAPI) -> None:
    def answer(code: ErrorCode, detail: str, status: int | None = None) -> Response:
        body = problem_body(code, detail, status)
        return Response(body, status_code=status or status_of(code), media_type=MEDIA_TYPE)

    @app.exception_handler(MoietyError)
    async def refused(request: Request, error: MoietyError) -> Response:
        _log.info("refused", route=request.url.path[:_LOGGED_CHARACTERS], code=error.code, detail=error.detail)
        return answer(error.code, error.detail)

    @app.exception_handler(HTTPException)
    async def no_such_route(request: Request, error: HTTPException) -> Response:
        if error.status_code == 404 and request.url.path.startswith("/v1/"):
            return answer(ErrorCode.UNAVAILABLE, "this federation is not founded yet: only enrolment is served here")
        return answer(ErrorCode.UNKNOWN_RESOURCE, f"{request.method}: {error.detail}", error.status_code)

    @app.exception_handler(ClientDisconnect)
    async def gone(request: Request, error: ClientDisconnect) -> Response:
        return answer(ErrorCode.UNAVAILABLE, "the connection ended before the body did; send it again")

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        if isinstance(error, OSError) and is_full(error):
            return answer(ErrorCode.STORAGE_FULL, "the server's disk is full; nothing was stored; send it again later")
        _log.error("failed", route=request.url.path, exc_info=error)
        return Response(internal_problem(), status_code=500, media_type=MEDIA_TYPE)
