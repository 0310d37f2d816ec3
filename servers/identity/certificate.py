"""The TLS certificate that a server shows: until when it holds, and the one that takes its place without a restart."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from cryptography import x509

from host import log
from host.files import read_secret
from protocol.errors import ConfigurationError, Unavailable
from servers.settings import ServerSettings

WARNED_DAYS: Final = (30, 7, 1)
_OWN_CA_KEY: Final = "ca-key.pem"
_PUT_THERE: Final = (
    "; put the certificate's chain and its key there (docs/enrolling.md), or begin with 'moiety server init --own-ca', "
    "which makes both"
)
DAY_S: Final = 86400.0
_log = log.logger("certificate")


class ServedCertificate:
    """The certificate chain of ``tls_certificate``; ``expires_s`` is when the first of the chain ends, since 1970;
    ``context`` shows it."""

    def __init__(self, settings: ServerSettings) -> None:
        """Raises: ConfigurationError that names the key and the file"""
        self._chain, self._key = settings.tls_certificate, settings.tls_key
        self._said_days: float = float("inf")
        self._problem = ""
        self._seen = self._look()
        self.context = require_pair(self._chain, self._key)
        self.expires_s = _expires_s(self._chain)

    def require_valid(self, now_s: float) -> None:
        """Raises: Unavailable once it has expired: every caller that checks certificates is refused"""
        if now_s >= self.expires_s:
            raise Unavailable(
                f"the TLS certificate in {self._chain} expired on {_date(self.expires_s)}, no site can connect: put a "
                "renewed one (and its key) there; it is taken up within a minute, without a restart"
            )

    def remark(self, now_s: float) -> str | None:
        """Return a remark about a certificate that ends soon; None while there are more than 30 days."""
        left_days = (self.expires_s - now_s) / DAY_S
        if left_days > WARNED_DAYS[0]:
            return None
        how = "'moiety server renew'" if (self._chain.parent / _OWN_CA_KEY).exists() else "the CA's or ACME's way"
        if left_days <= 0:
            return f"expired on {_date(self.expires_s)}, no site can connect: renew {self._chain} ({how})"
        return f"expires on {_date(self.expires_s)}, in {left_days:.1f} days: renew {self._chain} ({how})"

    def warn(self, now_s: float) -> None:
        """Into the log, once for each of 30, 7, 1 and 0 days that are left."""
        left_days = (self.expires_s - now_s) / DAY_S
        passed = min((days for days in (*WARNED_DAYS, 0) if left_days <= days), default=None)
        if passed is not None and passed < self._said_days:
            self._said_days = passed
            detail = self.remark(now_s)
            if passed:
                _log.warning("certificate_expires", detail=detail)
            else:
                _log.error("certificate_expired", detail=detail)

    def renew(self, show: Callable[[ssl.SSLContext], None]) -> bool:
        """Load changed files that fit; ``show`` is called with what connections see from here on.

        Open connections keep theirs. Files that do not fit each other, half of a renewal for one, change nothing, are
        said once in the log, and are tried again when they change.
        """
        try:
            seen = self._look()
            if seen == self._seen:
                return False
            self._seen = seen
            context, expires_s = require_pair(self._chain, self._key), _expires_s(self._chain)
        except ConfigurationError as wrong:
            if self._problem != wrong.detail:
                kept = "the one before is served until the files fit"
                _log.error("certificate_not_renewed", detail=f"{wrong.detail}; {kept}")
            self._problem = wrong.detail
            return False
        self.context, self.expires_s, self._said_days, self._problem = context, expires_s, float("inf"), ""
        show(context)
        _log.info("certificate_renewed", detail=f"the new one expires on {_date(expires_s)}")
        return True

    def _look(self) -> list[tuple[int, int, int]]:
        try:
            found = [path.stat() for path in (self._chain, self._key)]
        except OSError as error:
            raise ConfigurationError(f"{error.filename}: cannot be read: {error.strerror}") from None
        return [(one.st_ino, one.st_mtime_ns, one.st_size) for one in found]


def check_tls(settings: ServerSettings) -> None:
    """Read the TLS files once, before anything is served with them.

    Raises: ConfigurationError that names the key and the file
    """
    for key in ("tls_certificate", "tls_key", "peer_ca"):
        path: Path | None = getattr(settings, key)
        try:
            if path is not None:
                read_secret(path) if key == "tls_key" else path.read_bytes()
        except OSError as error:
            raise ConfigurationError(
                f"key '{key}': {path}: cannot be read: {error.strerror}{_next_step(key, path)}"
            ) from None
        except ConfigurationError as error:
            raise ConfigurationError(f"key '{key}': {error.detail}{_next_step(key, path)}") from None
    require_pair(settings.tls_certificate, settings.tls_key)
    try:
        ssl.create_default_context(cafile=settings.peer_ca)
    except ssl.SSLError as error:
        raise ConfigurationError(
            f"key 'peer_ca': {settings.peer_ca} holds no CA certificate in PEM ({error.reason or error})"
        ) from None


def _next_step(key: str, path: Path | None) -> str:
    missing = path is not None and not path.exists()
    return _PUT_THERE if missing and key != "peer_ca" else ""


def require_pair(chain: Path, key: Path) -> ssl.SSLContext:
    """A context that shows this chain, by a private key that nobody else may read. Raises: ConfigurationError"""
    read_secret(key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(chain, key)
    except ssl.SSLError as error:
        raise ConfigurationError(
            f"keys 'tls_certificate' and 'tls_key': {chain} and {key} are not a certificate chain and its private "
            f"key, both PEM ({error.reason or error})"
        ) from None
    except OSError as error:
        raise ConfigurationError(f"{chain} or {key} cannot be read: {error.strerror}") from None
    return context


def _expires_s(chain: Path) -> float:
    try:
        found = x509.load_pem_x509_certificates(chain.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"key 'tls_certificate': {chain} holds no certificate in PEM ({error})") from None
    return min(certificate.not_valid_after_utc for certificate in found).timestamp()


def _date(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
