"""Ports for the servers that a test starts: free, and no other worker's where tests run side by side."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack

HOST = "127.0.0.1"


def free_ports() -> tuple[int, int]:
    """One per server."""
    a, b = more_free_ports(2)
    return a, b


def more_free_ports(wanted: int) -> tuple[int, ...]:
    """As many as wanted. Each worker takes those of its own residue: no other finds one free before it is used."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    own = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    found: list[int] = []
    with ExitStack() as held:
        while len(found) < wanted:
            one = held.enter_context(socket.socket())
            one.bind((HOST, 0))
            port = one.getsockname()[1]
            if port // 2 % workers == own:  # Linux gives out odd ports alone to those who ask for any
                found.append(port)
    return tuple(found)
