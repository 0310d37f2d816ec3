"""The process that answers with views, in envelopes and bare.

``python -m harness.bench.view_server SETTINGS VIEWS`` serves every file of the folder VIEWS as the view of the study
that has the file's name: under the protocol's address in an envelope, signed and sealed as a server does it, and under
``/bare`` without. HTTP and TLS are a server's own; there is no study behind the views, so that both ways do the same.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Final

import uvicorn
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from host import log
from protocol.wire import paths
from servers.http.envelope import Envelope
from servers.server import open_server
from servers.settings import load_settings

BARE: Final = "/bare"
"""What is asked for under this goes around the envelopes."""
_NOT_FOUND: Final = 404


class Views:
    """Answers from memory."""

    def __init__(self, folder: Path) -> None:
        self._views = {paths.fill(paths.VIEW, study=file.name): file.read_bytes() for file in folder.iterdir()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await Request(scope, receive).body()
        view = self._views.get(scope["path"])
        answer = Response(view, media_type="application/json") if view is not None else Response(status_code=_NOT_FOUND)
        await answer(scope, receive, send)


class BothWays:
    """Hands requests to the envelopes, and those under ``BARE`` around them."""

    def __init__(self, views: Views, envelope: Envelope) -> None:
        self._views = views
        self._envelope = envelope

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].startswith(BARE):
            await self._views({**scope, "path": scope["path"].removeprefix(BARE)}, receive, send)
        else:
            await self._envelope(scope, receive, send)


def main(settings_file: Path, folder: Path) -> None:
    """Serve until a signal."""
    log.configure()
    settings = load_settings(settings_file)
    server, views = open_server(settings), Views(folder)
    config = uvicorn.Config(
        BothWays(views, Envelope(views, server)),
        host=settings.host,
        port=settings.port,
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
    )
    try:
        with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
            runner.run(uvicorn.Server(config).serve())
    finally:
        server.ckks.close()
        server.store.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
