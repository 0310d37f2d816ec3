"""Certificates of a CA, for a name, until some time, renewed in the same files; servers of tests that show them."""

from __future__ import annotations

import http.server
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import trustme

from harness.federation.processes import write_secret

DAY_S = 86400.0


def write_certificate(
    folder: Path, authority: trustme.CA, host: str = "127.0.0.1", *, ends_in_days: float = 300.0
) -> tuple[Path, Path]:
    """``tls.pem`` and ``tls.key`` in ``folder``, as a server's settings name them; the CA lasts longer."""
    until = datetime.fromtimestamp(time.time() + ends_in_days * DAY_S, UTC)
    began = datetime.fromtimestamp(time.time() - 400 * DAY_S, UTC)
    made = authority.issue_cert(host, not_after=until, not_before=began)
    chain, key = folder / "tls.pem", folder / "tls.key"
    made.cert_chain_pems[0].write_to_path(str(chain))
    key.unlink(missing_ok=True)
    write_secret(key, made.private_key_pem.bytes().decode())
    return chain, key


def shown(
    folder: Path, authority: trustme.CA, host: str = "127.0.0.1", *, ends_in_days: float = 90.0
) -> ssl.SSLContext:
    """A server's context with a new certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*write_certificate(folder, authority, host, ends_in_days=ends_in_days))
    return context


@contextmanager
def answering(
    context: ssl.SSLContext | None,
    handler: type[http.server.BaseHTTPRequestHandler] = http.server.BaseHTTPRequestHandler,
) -> Iterator[str]:
    """A server under TLS, or plain without a context. -> its address"""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
