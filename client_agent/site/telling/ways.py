"""The two ways by which word reaches people outside: a signed webhook, and mail."""

from __future__ import annotations

import hashlib
import hmac
import json
import smtplib
import ssl
from collections.abc import Callable
from email.message import EmailMessage
from typing import Final

import httpx
from pydantic import BaseModel, ConfigDict

from client_agent.network.ledger import Ledger
from client_agent.network.transport import CountingTransport
from client_agent.settings import AgentSettings
from host.files import read_secret
from host.network import why_unreachable
from protocol.errors import ConfigurationError, MoietyError
from protocol.text import printable

SIGNATURE: Final = "Moiety-Signature"
PURPOSE: Final = "webhook"
_TIMEOUT_S: Final = 20.0
_FIRST_NOT_DONE: Final = 300


class Notice(BaseModel):
    """A study waits for a person: whose, where, and since when (1970). Nothing of it is more than a name."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    site: str
    federation: str
    study: str
    study_digest: str
    since_s: int

    @property
    def subject(self) -> str:
        return f"Moiety: study {self.study} waits for a person at {self.site}"

    @property
    def what_to_do(self) -> str:
        return (
            f"look at it and say yes or no on the agent's machine: 'moiety agent page', or 'moiety agent show "
            f"{self.study}' and then 'moiety agent approve {self.study}' or 'decline'"
        )

    @property
    def text(self) -> str:
        return (
            f"Study {self.study} of federation {self.federation} waits for a person's yes or no at {self.site}. "
            f"Nothing trains there before.\n\nWhat to do: {self.what_to_do}.\n"
        )


class NotDelivered(Exception):
    """It may go better later; the text says why, without a secret."""


Way = Callable[[Notice], None]
"""Raises: NotDelivered"""


def ways_of(settings: AgentSettings, ledger: Ledger) -> dict[str, Way]:
    """Return the channels by name; none where nothing is set. Raises: ConfigurationError that names the key"""
    found: dict[str, Way] = {}
    told = settings.notify
    if told.webhook is not None and told.webhook_secret is not None:
        path = told.webhook_secret
        key = _secret("webhook_secret", lambda: read_secret(path))
        found["webhook"] = _Webhook(told.webhook, key, _context(settings), settings, ledger)
    if told.mail_to:
        found["mail"] = _Mail(settings, _context(settings), _login(settings))
    return found


def described(settings: AgentSettings) -> str:
    """Describe where notifications go, for people; secrets and certificates are read as a start would. Raises:
    ConfigurationError
    """
    told, found = settings.notify, []
    if told.webhook is not None and told.webhook_secret is not None:
        path = told.webhook_secret
        _secret("webhook_secret", lambda: read_secret(path))
        found.append(f"to the webhook at {httpx.URL(told.webhook).host}")
    if told.mail_to:
        _login(settings)
        found.append(f"by mail to {', '.join(told.mail_to)} through {told.smtp_host}")
    _context(settings)
    return f"a study that waits is told {' and '.join(found)}" if found else "nobody is told of studies that wait"


class _Webhook:
    """One POST; the receiver knows by the header that this site sent the body as it is."""

    def __init__(self, url: str, key: str, tls: ssl.SSLContext, settings: AgentSettings, ledger: Ledger) -> None:
        self._url = url
        self._key = key.strip().encode()
        self._tls = tls
        self._proxy = settings.web_proxy
        self._ledger = ledger

    def __call__(self, notice: Notice) -> None:
        told = {"event": "study_waits", **notice.model_dump(), "what_to_do": notice.what_to_do}
        body = json.dumps(told, sort_keys=True).encode()
        signature = hmac.new(self._key, body, hashlib.sha256).hexdigest()
        headers = {"Content-Type": "application/json", SIGNATURE: f"sha256={signature}"}
        transport = CountingTransport(PURPOSE, self._tls, self._ledger, proxy=self._proxy)
        try:
            with httpx.Client(transport=transport, trust_env=False, timeout=_TIMEOUT_S) as http:
                request = http.build_request("POST", self._url, content=body, headers=headers)
                request.extensions["purpose"] = PURPOSE
                answer = http.send(request, stream=True)  # what it says beside its status is not read
                answer.close()
        except httpx.HTTPError as error:
            raise NotDelivered(f"the webhook is out of reach: {why_unreachable(error)}") from None
        if answer.status_code >= _FIRST_NOT_DONE:
            raise NotDelivered(f"the webhook answered {answer.status_code}: look at its receiver's log")


class _Mail:
    def __init__(self, settings: AgentSettings, tls: ssl.SSLContext, login: tuple[str, str] | None) -> None:
        self._told = settings.notify
        self._tls = tls
        self._login = login

    def __call__(self, notice: Notice) -> None:
        told, message = self._told, EmailMessage()
        message["Subject"] = notice.subject
        message["From"] = told.mail_from
        message["To"] = ", ".join(told.mail_to)
        message.set_content(notice.text)
        try:
            with smtplib.SMTP(told.smtp_host or "", told.smtp_port, timeout=_TIMEOUT_S) as smtp:
                if told.smtp_starttls:
                    smtp.starttls(context=self._tls)
                if self._login is not None:
                    smtp.login(*self._login)
                smtp.send_message(message)
        except smtplib.SMTPAuthenticationError:
            raise NotDelivered("the mail server does not take the user and password of 'smtp_credentials'") from None
        except smtplib.SMTPException as error:
            raise NotDelivered(f"the mail server refuses: {printable(str(error))[:300]}") from None
        except OSError as error:
            raise NotDelivered(f"the mail server is out of reach: {why_unreachable(error)}") from None


def _context(settings: AgentSettings) -> ssl.SSLContext:
    """Raises: ConfigurationError"""
    path = settings.notify.ca
    try:
        return ssl.create_default_context(cafile=None if path is None else str(path))
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"key 'notify.ca': {path} cannot be read as PEM certificates: {error}") from None


def _login(settings: AgentSettings) -> tuple[str, str] | None:
    """Raises: ConfigurationError"""
    path = settings.notify.smtp_credentials
    if path is None:
        return None
    user, colon, password = _secret("smtp_credentials", lambda: read_secret(path)).strip().partition(":")
    if not colon:
        raise ConfigurationError(f"key 'notify.smtp_credentials': {path} has one line, user:password")
    return user, password


def _secret(key: str, read: Callable[[], str]) -> str:
    try:
        found = read()
    except MoietyError as error:
        raise ConfigurationError(f"key 'notify.{key}': {error.detail}") from None
    if not found.strip():
        raise ConfigurationError(f"key 'notify.{key}': the file is empty")
    return found
