"""Alive, for everybody; ready, metrics and status, on the operator's own port; unsigned. Status alone names studies."""

from __future__ import annotations

import time
from typing import Annotated, Final

import structlog
from fastapi import APIRouter, Header, Request, Response

from protocol.errors import ConfigurationError
from servers.api.authentication import ThisServer
from servers.api.responses import PROBLEM
from servers.monitoring import CONTENT_TYPE
from servers.status import Readiness, Status, is_proof, status_of

_BEARER: Final = "Bearer "
_LOG = structlog.get_logger()
alive = APIRouter(tags=["operation"])
router = APIRouter(tags=["operation"])


@alive.get("/healthz")
async def healthz() -> dict[str, str]:
    """The process answers."""
    return {"status": "ok"}


@alive.get("/drives", responses=PROBLEM)
async def drives(server: ThisServer, response: Response) -> dict[str, str]:
    """This process speaks with the other server and takes rounds further: of several, one does. For a proxy, which asks
    every second: no is an answer, and neither logged nor counted as a refusal.
    """
    if not server.drives:
        response.status_code = 503
    return {"status": "drives" if server.drives else "stands by"}


@router.get("/readyz", responses=PROBLEM)
async def readyz(request: Request) -> dict[str, str]:
    """Room on the disk, a certificate that holds, the database, the peer, an OT session; as it was some seconds ago."""
    readiness: Readiness = request.app.state.readiness
    await readiness.require()
    return {"status": "ready", "database": "ok"} | readiness.seen() | readiness.remarks()


@router.get("/metrics")
async def metrics(request: Request, server: ThisServer) -> Response:
    """Prometheus text format."""
    readiness: Readiness = request.app.state.readiness
    readiness.look_soon()
    return Response(server.metrics.exposition(), media_type=CONTENT_TYPE)


@router.get("/status", response_model=Status, responses=PROBLEM)
async def status(
    request: Request,
    server: ThisServer,
    study: str | None = None,
    authorization: Annotated[str, Header()] = "",
) -> Status | Response:
    """Everything that an operator asks of its server, for a caller who can read the token in ``data_dir``."""
    try:
        known = is_proof(server.settings.data_dir, authorization.removeprefix(_BEARER), time.time())
    except ConfigurationError as error:  # where the token lies is told to the log alone
        _LOG.error("status_token_unreadable", reason=error.detail)
        known = False
    if not known:
        return Response(status_code=401)
    async with request.app.state.status_lock:  # one picture at a time, however many ask
        return await status_of(request.app.state.public, request.app.state.readiness, study)
