"""One server's two ports in one process: the public one under TLS, and the operator's own (docs/operating.md)."""

from __future__ import annotations

import asyncio
import gc
import resource
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, suppress
from typing import Any, Final

import uvicorn
from fastapi import FastAPI

from host import log
from host.folder_lock import one_of_several, one_process
from protocol.errors import ConfigurationError, ErrorCode
from servers.api.admission import Admission
from servers.api.listener import BoundedServer, listen
from servers.app import create_app, create_founding, create_founding_operations, create_operations
from servers.background.drain import keep_draining
from servers.enrolment.pairing import completed
from servers.identity.certificate import ServedCertificate
from servers.server import Server
from servers.settings import Role, ServerSettings
from servers.store.processes import process_name

_log = log.logger("serving")
_FILES_BESIDE_CONNECTIONS = 512
_OPERATIONS_PER_S: Final = 1000.0
"""On the operator's own port, whose callers the operator chooses; what strangers may do is another port's setting."""
_LOOKED_AT_EVERY_S: Final = 30.0
"""The certificate's files."""


def serve(settings: ServerSettings) -> None:
    """Serve both ports until a signal.

    Raises: ConfigurationError, also while another server runs in ``data_dir``
    """
    with _place(settings):
        if settings.card is not None and not settings.roster.exists():
            _serve_founding(settings)
            if not settings.roster.exists():
                return
        _serve_alone(completed(settings))


def _place(settings: ServerSettings) -> AbstractContextManager[None]:
    """The folder alone, or with the other processes of the same server."""
    who = f"the server of side {settings.side.value!r}"
    if settings.role is Role.ALL:
        return one_process(settings.data_dir, "data_dir", who)
    if not settings.roster.exists():
        raise ConfigurationError("key 'role': a federation is founded by one process: start it with role 'all' first")
    name = process_name(settings)
    return one_of_several(settings.data_dir, "data_dir", f"{who}, {name}", name)


def _serve_founding(settings: ServerSettings) -> None:
    """Until the first roster is in place, or a signal: nothing but enrolment."""
    application = create_founding(settings)
    certificate = ServedCertificate(settings)
    operations = create_founding_operations(application)
    admission = Admission(settings.limits, settings.forwarded_by)
    server = _listening(settings, application, operations, admission, certificate, lambda code: None)

    def founded() -> None:
        server.should_exit = True

    application.state.founded = founded
    _say_listening(settings, "; ".join(application.state.desk.desk.waits_for()))
    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(_serve(server, _keep(server, time.time, certificate)))


def _serve_alone(settings: ServerSettings) -> None:
    application = create_app(settings)
    served: Server = application.state.server
    metrics = served.metrics
    certificate = served.certificate = ServedCertificate(settings)
    metrics.certificate_expires_s.set_function(lambda: certificate.expires_s)
    _allow_files(2 * settings.limits.connections + _FILES_BESIDE_CONNECTIONS)

    def refused(code: ErrorCode) -> None:
        metrics.refusals.labels(code.value).inc()

    admission = Admission(settings.limits, settings.forwarded_by, on_refused=metrics.connections_refused.inc)
    metrics.connections.set_function(lambda: admission.connections)
    server = _listening(settings, application, create_operations(application), admission, certificate, refused)
    _say_listening(settings)
    _run_to_its_end(server, application, certificate)


def _listening(
    settings: ServerSettings,
    application: FastAPI,
    operations: FastAPI,
    admission: Admission,
    certificate: ServedCertificate,
    refused: Callable[[ErrorCode], None],
) -> BoundedServer:
    """Both ports, taken: the public one, and beside it the operator's own. Raises: ConfigurationError"""
    public = listen("port", settings.host, settings.port)
    own = BoundedServer(
        _config(operations, settings, tls=False),
        listen("operations_port", settings.operations_host, settings.operations),
        Admission(settings.limits.model_copy(update={"unsigned_per_s": _OPERATIONS_PER_S})),
        refused,
        hears_signals=False,
    )
    config = _config(application, settings, tls=True)
    return BoundedServer(config, public, admission, refused, beside=own, tls=certificate.context)


def _run_to_its_end(server: BoundedServer, application: FastAPI, certificate: ServedCertificate) -> None:
    """Raises: SystemExit, where what it does failed: whoever starts again what failed is to start this again"""
    failed = False

    def stop() -> None:
        server.should_exit = True

    def fail() -> None:
        nonlocal failed
        failed = server.should_exit = True

    application.state.fail = fail
    gc.freeze()  # what is there by now stays: no collection looks through it again
    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        served: Server = application.state.server
        runner.run(_serve(server, _keep(server, served.clock, certificate), keep_draining(served, stop)))
    if failed:  # the log says why
        raise SystemExit(1)


def _say_listening(settings: ServerSettings, waits_for: str = "") -> None:
    own = f"http://{settings.operations_host}:{settings.operations}"
    _log.info("listening", url=settings.public_url, port=settings.port, operations=own, waits_for=waits_for)


async def _serve(server: BoundedServer, *beside: Coroutine[Any, Any, None]) -> None:
    """Serve until a signal; what runs beside it ends with it."""
    tasks = [asyncio.create_task(one) for one in beside]
    try:
        await server.serve()
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def _keep(server: BoundedServer, clock: Callable[[], float], certificate: ServedCertificate) -> None:
    """A certificate that was renewed on disk is shown from then on; one that ends soon is in the log."""
    while True:
        certificate.renew(server.show)
        certificate.warn(clock())
        await asyncio.sleep(_LOOKED_AT_EVERY_S)


def _config(application: FastAPI, settings: ServerSettings, *, tls: bool) -> uvicorn.Config:
    return uvicorn.Config(
        application,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="on" if tls else "off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=settings.limits.idle_s,
        timeout_graceful_shutdown=2,
    )


def _allow_files(wanted: int) -> None:
    """As many open files as connections and their bodies need, where the system lets this process have them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
