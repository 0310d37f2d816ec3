"""Operators: alive, ready, metrics; unsigned, and without anything about studies."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from protocol.errors import PeerUnreachable, Unavailable
from protocol.sharing import Side
from servers.authentication import ThisServer
from servers.metrics import CONTENT_TYPE
from servers.routes.answers import PROBLEM

router = APIRouter(tags=["operation"])


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """The process answers."""
    return {"status": "ok"}


@router.get("/readyz", responses=PROBLEM)
async def readyz(request: Request, server: ThisServer) -> dict[str, str]:
    """The database answers, the peer can be reached, an OT session is open."""
    server.store.ready()
    if server.side is Side.A:
        await request.app.state.peer.reachable()
        open_here = request.app.state.pool.session_open
    else:
        open_here = request.app.state.answering.sessions.session_open
        if not open_here:
            raise PeerUnreachable("side A has not opened an OT session here yet")
    if not open_here:
        raise Unavailable("no OT session is open with the peer yet; one is opened when a study needs it")
    return {"status": "ready", "database": "ok", "peer": "ok", "ot_session": "open"}


@router.get("/metrics")
async def metrics(server: ThisServer) -> Response:
    """Prometheus text format."""
    return Response(server.metrics.exposition(), media_type=CONTENT_TYPE)
