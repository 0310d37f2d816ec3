"""A real server on a loopback port, in a thread of this process: for what only sockets show."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np

from client_agent.learning.data import Examples, LocalData
from harness.adversaries.raw_connections import Stranger, until
from harness.federation.processes import FederationSpec, RunningFederation, SiteSpec
from protocol.errors import Unavailable
from protocol.sharing import Side
from servers.app import create_app
from servers.certificate import ServedCertificate
from servers.http.admission import Admission
from servers.http.listening import BoundedServer, listen
from servers.serving import _config
from servers.settings import Limits, ServerSettings
from servers.settings import load_settings as server_settings

_SITES: Final = ("hospital-0", "hospital-1", "hospital-2", "hospital-3")
_STOP_WITHIN_S: Final = 10.0


@contextmanager
def server_with(folder: Path, limits: Mapping[str, object]) -> Iterator[Stranger]:
    """Server B with these limits, as strangers reach it; its settings, keys and files are in ``folder``."""
    nothing = Examples(np.zeros((1, 1), dtype=np.float32), np.zeros(1, dtype=np.int64))
    sites = tuple(SiteSpec(name, LocalData(nothing, nothing)) for name in _SITES)
    files = RunningFederation(FederationSpec("edge", _SITES[0], sites), folder)
    settings = server_settings(files.config(files.parties.roster.message.operator(Side.B).name))
    bounded = settings.limits.model_copy(update=dict(limits))
    server = _server(settings.model_copy(update={"limits": Limits.model_validate(bounded.model_dump())}))
    thread = threading.Thread(target=asyncio.run, args=(server.serve(),), name="edge")
    thread.start()
    try:
        if not until(lambda: server.started or not thread.is_alive()) or not thread.is_alive():
            raise Unavailable("the server on the loopback port did not start; its log says why")
        yield Stranger(files.url(Side.B), files.ca_file)
    finally:
        server.should_exit = True
        thread.join(_STOP_WITHIN_S)


def _server(settings: ServerSettings) -> BoundedServer:
    """The public port alone, as ``servers.serving`` makes it."""
    return BoundedServer(
        _config(create_app(settings), settings, tls=True),
        listen("port", settings.host, settings.port),
        Admission(settings.limits, settings.forwarded_by),
        lambda code: None,
        hears_signals=False,
        tls=ServedCertificate(settings).context,
    )
