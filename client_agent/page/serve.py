"""``moiety agent page``: the page on the loopback until it is interrupted."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable

import uvicorn

from client_agent.page.app import make_page
from client_agent.page.door import LOOPBACK, Door
from client_agent.page.models import remove_leftovers
from client_agent.settings import AgentSettings
from host.doctor import Report
from protocol.errors import ConfigurationError


def serve_page(settings: AgentSettings, port: int, look: Callable[[], Report]) -> None:
    """Print the address with its one-time token, then serve. Raises: ConfigurationError"""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((LOOPBACK, port))
        listener.listen()  # who opens the address at once waits for the page and is not turned away
    except OSError as error:
        listener.close()
        raise ConfigurationError(
            f"option --port: {port} cannot be listened on ({error.strerror}): name another"
        ) from None
    remove_leftovers(settings)
    door = Door(listener.getsockname()[1])
    page = make_page(settings, door, look)
    sys.stdout.write(f"open, in one browser, once: {door.origin}/login?token={door.token}\n")
    sys.stdout.flush()
    config = uvicorn.Config(
        page, log_config=None, access_log=False, server_header=False, proxy_headers=False, timeout_keep_alive=5
    )
    uvicorn.Server(config).run(sockets=[listener])
