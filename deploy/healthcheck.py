"""Exit code 0 if the server of this container answers 200 at /healthz; only the standard library.

``healthcheck.py SETTINGS.toml``. The address is the loopback, so the server's own certificate is taken as the anchor
and the host name is not compared. ``healthcheck.py SETTINGS.toml --ready`` prints what ``/readyz`` says at the
operator's own port; the exit code is 0 if the server is ready. Neither asks a proxy that the environment names.
"""

from __future__ import annotations

import os
import ssl
import sys
import tomllib
import urllib.error
import urllib.request
from pathlib import Path

_TIMEOUT_S = 4.0
_OPERATIONS_ABOVE = 1000


def check(settings: Path) -> bool:
    """Whether the server that these settings describe is alive."""
    table = tomllib.loads(settings.read_text(encoding="utf-8"))
    port = os.environ.get("MOIETY_SERVER_PORT", table.get("port"))
    certificate = os.environ.get("MOIETY_SERVER_TLS_CERTIFICATE", table.get("tls_certificate"))
    context = ssl.create_default_context(cafile=str(settings.parent / str(certificate)))
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    with opener.open(f"https://127.0.0.1:{port}/healthz", timeout=_TIMEOUT_S) as answer:
        return bool(answer.status == 200)


def ready(settings: Path) -> tuple[bool, str]:
    """Whether it is ready, and what it says."""
    table = tomllib.loads(settings.read_text(encoding="utf-8"))
    port = int(os.environ.get("MOIETY_SERVER_PORT", table.get("port"))) + _OPERATIONS_ABOVE
    port = int(os.environ.get("MOIETY_SERVER_OPERATIONS_PORT", table.get("operations_port", port)))
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
            f"http://127.0.0.1:{port}/readyz", timeout=2 * _TIMEOUT_S
        ) as answer:
            return True, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return False, refused.read().decode()


if __name__ == "__main__":
    try:
        if sys.argv[2:] == ["--ready"]:
            alive, said = ready(Path(sys.argv[1]))
            sys.stdout.write(said.rstrip() + "\n")
        else:
            alive = check(Path(sys.argv[1]))
    except OSError as error:
        sys.exit(f"not healthy: {error}")
    sys.exit(0 if alive else 1)
