"""Certificates for servers of tests: of a CA, for a name, until some time; a renewed one in the same files."""

from __future__ import annotations

import time
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
