"""Notifications to a site's people: the ways to them, what was sent, and problems that last.

notices.json    for each waiting study and way: delivered when, or since when and why not
problems.json   the last problem of each study, until it is solved; of none ("") what concerns all of them

Each notice has a thread of its own for each way, and keeps no study from going on. What cannot be delivered is tried
again for three days, with pauses that grow, and again at the next start; what was delivered is not sent twice.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import smtplib
import ssl
import threading
from collections.abc import Callable, Mapping
from email.message import EmailMessage
from functools import partial
from pathlib import Path
from typing import Final

import httpx
import stamina
import structlog

from client_agent.net.contacts import keep_notes, read_notes
from client_agent.net.ledger import Ledger
from client_agent.net.transport import CountingTransport
from client_agent.settings import AgentSettings, NotifySettings
from client_agent.site.events import AgentEvent, EventKind, EventSink, ShownLines
from host.files import read_secret
from host.frozen import Frozen
from host.network import why_unreachable
from protocol.errors import ConfigurationError, MoietyError
from protocol.text import printable

SIGNATURE: Final = "Moiety-Signature"
PURPOSE: Final = "webhook"
_TIMEOUT_S: Final = 20.0
_FIRST_NOT_DONE: Final = 300


class Notice(Frozen):
    """A study waits for a person: whose, where, and since when (1970). Nothing of it is more than a name."""

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
        key = _secret("webhook_secret", told.webhook_secret).strip().encode()
        transport = partial(CountingTransport, PURPOSE, _context(settings), ledger, proxy=settings.web_proxy)
        found["webhook"] = partial(_post, told.webhook, key, transport)
    if told.mail_to:
        found["mail"] = partial(_mail, told, _context(settings), _login(settings))
    return found


def described(settings: AgentSettings) -> str:
    """Describe where notifications go; secrets and certificates are read as at a start. Raises: ConfigurationError"""
    told, found = settings.notify, []
    if told.webhook is not None and told.webhook_secret is not None:
        _secret("webhook_secret", told.webhook_secret)
        found.append(f"to the webhook at {httpx.URL(told.webhook).host}")
    if told.mail_to:
        _login(settings)
        found.append(f"by mail to {', '.join(told.mail_to)} through {told.smtp_host}")
    _context(settings)
    return f"a study that waits is told {' and '.join(found)}" if found else "nobody is told of studies that wait"


def _post(url: str, key: bytes, transport: Callable[[], CountingTransport], notice: Notice) -> None:
    """One POST; the receiver knows by the header that this site sent the body as it is. Raises: NotDelivered"""
    told = {"event": "study_waits", **notice.model_dump(), "what_to_do": notice.what_to_do}
    body = json.dumps(told, sort_keys=True).encode()
    signature = hmac.new(key, body, hashlib.sha256).hexdigest()
    headers = {"Content-Type": "application/json", SIGNATURE: f"sha256={signature}"}
    try:
        with httpx.Client(transport=transport(), trust_env=False, timeout=_TIMEOUT_S) as http:
            request = http.build_request("POST", url, content=body, headers=headers)
            request.extensions["purpose"] = PURPOSE
            answer = http.send(request, stream=True)  # what it says beside its status is not read
            answer.close()
    except httpx.HTTPError as error:
        raise NotDelivered(f"the webhook is out of reach: {why_unreachable(error)}") from None
    if answer.status_code >= _FIRST_NOT_DONE:
        raise NotDelivered(f"the webhook answered {answer.status_code}: look at its receiver's log")


def _mail(told: NotifySettings, tls: ssl.SSLContext, login: tuple[str, str] | None, notice: Notice) -> None:
    """Raises: NotDelivered"""
    message = EmailMessage()
    message["Subject"] = notice.subject
    message["From"] = told.mail_from
    message["To"] = ", ".join(told.mail_to)
    message.set_content(notice.text)
    try:
        with smtplib.SMTP(*told.mail_server, timeout=_TIMEOUT_S) as smtp:
            smtp.starttls(context=tls)
            if login is not None:
                smtp.login(*login)
            smtp.send_message(message)
    except smtplib.SMTPAuthenticationError:
        raise NotDelivered("the mail server does not take the user and password of 'smtp_credentials'") from None
    except smtplib.SMTPException as error:
        raise NotDelivered(f"the mail server refuses: {printable(str(error))[:300]}") from None
    except OSError as error:
        raise NotDelivered(f"the mail server is out of reach: {why_unreachable(error)}") from None


def _context(settings: AgentSettings) -> ssl.SSLContext:
    path = settings.notify.ca
    try:
        return ssl.create_default_context(cafile=None if path is None else str(path))
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"key 'notify.ca': {path} cannot be read as PEM certificates: {error}") from None


def _login(settings: AgentSettings) -> tuple[str, str] | None:
    path = settings.notify.smtp_credentials
    if path is None:
        return None
    user, colon, password = _secret("smtp_credentials", path).strip().partition(":")
    if not colon:
        raise ConfigurationError(f"key 'notify.smtp_credentials': {path} has one line, user:password")
    return user, password


def _secret(key: str, path: Path) -> str:
    try:
        found = read_secret(path)
    except MoietyError as error:
        raise ConfigurationError(f"key 'notify.{key}': {error.detail}") from None
    if not found.strip():
        raise ConfigurationError(f"key 'notify.{key}': the file is empty")
    return found


NOTICES: Final = "notices.json"
_FIRST_PAUSE_S: Final = 5.0
_LONGEST_PAUSE_S: Final = 3600.0
_TRIED_FOR_S: Final = 3 * 86400.0
_log = structlog.get_logger("agent")


class Sent(Frozen):
    """One study by one way; times are since 1970. ``delivered_at_s`` is None until it went well."""

    study: str
    study_digest: str
    way: str
    delivered_at_s: float | None = None
    failing_since_s: float | None = None
    failure: str = ""


class Notices:
    """Ways to people, and what went by each of them; with no ways it does nothing."""

    def __init__(self, state_dir: Path, ways: Mapping[str, Way], clock: Callable[[], float]) -> None:
        self._path = state_dir / NOTICES
        self._ways = dict(ways)
        self._clock = clock
        self._lock = threading.Lock()
        self._known = {(one.study_digest, one.way): one for one in read_notes(self._path, Sent)}
        self._under_way: set[tuple[str, str]] = set()

    def tell(self, notice: Notice) -> None:
        """Returns at once."""
        for way in self._ways:
            key = (notice.study_digest, way)
            with self._lock:
                known = self._known.get(key)
                if key in self._under_way or (known is not None and known.delivered_at_s is not None):
                    continue
                self._under_way.add(key)
            threading.Thread(target=self._work, args=(way, notice), name=f"notice by {way}", daemon=True).start()

    def _work(self, way: str, notice: Notice) -> None:
        try:
            self._deliver(way, notice)
        except Exception:  # nobody else would hear of it
            _log.exception("notice_failed", way=way, study=notice.study)
            self._keep(notice, way, "an error nobody expected: see the agent's log")
        finally:
            with self._lock:
                self._under_way.discard((notice.study_digest, way))

    def _deliver(self, way: str, notice: Notice) -> None:
        try:
            for attempt in stamina.retry_context(
                on=NotDelivered,
                attempts=None,
                timeout=_TRIED_FOR_S,
                wait_initial=_FIRST_PAUSE_S,
                wait_max=_LONGEST_PAUSE_S,
            ):
                with attempt:
                    self._try(way, notice)
        except NotDelivered as last:
            _log.error("notice_given_up", way=way, study=notice.study, detail=str(last))

    def _try(self, way: str, notice: Notice) -> None:
        try:
            self._ways[way](notice)
        except NotDelivered as refused:
            if self._keep(notice, way, str(refused)):
                _log.warning("notice_not_delivered", way=way, study=notice.study, detail=str(refused))
            raise
        self._keep(notice, way, "")
        _log.info("notice_delivered", way=way, study=notice.study)

    def _keep(self, notice: Notice, way: str, failure: str) -> bool:
        key, now = (notice.study_digest, way), self._clock()
        with self._lock:
            known = self._known.get(key)
            if known is not None and failure and known.failure == failure:
                return False
            since = None if not failure else now if known is None else known.failing_since_s or now
            self._known[key] = Sent(
                study=notice.study,
                study_digest=notice.study_digest,
                way=way,
                delivered_at_s=None if failure else now,
                failing_since_s=since,
                failure=failure,
            )
            keep_notes(self._path, self._known.values())
        return True


PROBLEMS: Final = "problems.json"
_OVER: Final = frozenset({EventKind.ROUND, EventKind.FINISHED})


class Problem(Frozen):
    """``since_s`` is when this text came first, since 1970; the text says what to do, where somebody can."""

    study: str
    round: int | None = None
    text: ShownLines
    since_s: float


class Problems:
    """Written when it changes; a round that ended, or a start that went well, takes a study's problem away."""

    def __init__(self, state_dir: Path, clock: Callable[[], float]) -> None:
        self._path = state_dir / PROBLEMS
        self._clock = clock
        self._lock = threading.Lock()
        self._known = {one.study: one for one in read_notes(self._path, Problem)}

    def noting(self, emit: EventSink) -> EventSink:
        """The same sink, every event of which is noted here first."""

        def noted(event: AgentEvent) -> None:
            if event.kind is EventKind.PROBLEM:
                self._note(event)
            elif event.kind in _OVER:
                self.mended(event.study)
            emit(event)

        return noted

    def mended(self, study: str) -> None:
        with self._lock:
            if self._known.pop(study, None) is not None:
                keep_notes(self._path, self._known.values())

    def _note(self, event: AgentEvent) -> None:
        with self._lock:
            known = self._known.get(event.study)
            if known is None or known.text != event.text:
                now_s = self._clock()
                self._known[event.study] = Problem(study=event.study, round=event.round, text=event.text, since_s=now_s)
                keep_notes(self._path, self._known.values())
