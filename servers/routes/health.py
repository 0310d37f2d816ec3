"""Alive, for everybody; ready and metrics, on the operator's own port; unsigned, and without anything about studies."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from servers.http.authentication import ThisServer
from servers.http.responses import PROBLEM
from servers.monitoring.metrics import CONTENT_TYPE
from servers.readiness import Readiness

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
