"""A party's requests, signed and in envelopes as agents and server A send them; an attack may spoil one."""

from __future__ import annotations

import hashlib
import secrets
import select
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Literal, Protocol, TypeVar, cast

import httpx

from host.clock import SYSTEM, Clock
from host.files import read_secret
from host.settings import read_text
from protocol.channel.commitment import MessageDigest
from protocol.channel.envelope import ANSWER_TYPE, Correspondence, EnclosedRequest, open_answer, sign_enclosed
from protocol.channel.keys import SealingKey
from protocol.channel.message import Message
from protocol.channel.sealing import SealedReader
from protocol.channel.signing import DigestField, verify_answer
from protocol.errors import ConfigurationError, ProtocolViolation
from protocol.messages import bodies
from protocol.messages.control import MAX_CONTROL_BYTES, Roster, require_roster
from protocol.messages.paths import PEER_SEALED, SEALED
from protocol.roster.keyfile import PartyKeys, parse_party_keys, parse_roster
from protocol.sharing import Side

_CONTRIBUTION = "/contribution"
_PEER_PREFIX = "/v1/peer/"
ENCLOSED_OF_LONG_BODIES = 2**12


def digest_of(body: bytes, digest_field: DigestField) -> bytes:
    """The digest that a request with this body states."""
    if digest_field is DigestField.CONTENT:
        return hashlib.sha256(body).digest()
    digest = MessageDigest()
    digest.update(body)
    return digest.digest()


@dataclass(frozen=True)
class Outgoing:
    """A request as it leaves: the signature's headers, the envelope and what follows it."""

    side: Side
    url: str
    headers: list[tuple[str, str]]
    content: bytes
    between: Correspondence


class Reached(Protocol):
    """Two running servers, wherever they are, as somebody who speaks for the sites itself reaches them.

    ``connect`` is their own way in, where it is not TLS; ``tails`` is the end of their logs.
    """

    clock: Clock
    connect: Callable[[], httpx.BaseTransport] | None
    folder: Path

    @property
    def roster(self) -> Roster: ...

    @property
    def ca_file(self) -> Path: ...

    def url(self, side: Side) -> str: ...

    def keys(self, name: str) -> PartyKeys: ...

    def tails(self) -> str: ...


@dataclass
class Deployment:
    """Two servers that run somewhere, as the site whose keys these are reaches them; ``study`` is one of theirs."""

    roster: Roster
    own: PartyKeys = field(repr=False)
    ca_file: Path
    study: str
    clock: Clock = SYSTEM
    connect: Callable[[], httpx.BaseTransport] | None = None
    folder: Path = Path()

    @classmethod
    def named(cls, roster: Path, keys: Path, ca: Path, study: str) -> Deployment:
        """Raises: ConfigurationError; BadSignature when the roster lacks a signature"""
        signed = require_roster(parse_roster(read_text(roster), str(roster)))
        own = parse_party_keys(read_secret(keys), str(keys))
        if own.name not in {site.name for site in signed.sites}:
            raise ConfigurationError(f"{keys} holds the keys of {own.name!r}, which is no site of {roster}")
        return cls(signed, own, ca, study)

    def url(self, side: Side) -> str:
        return there(self.roster.operator(side).url, f"address of server {side.value}")

    def keys(self, name: str) -> PartyKeys:
        return self.own

    def tails(self) -> str:
        return ""


class SignedClient:
    """Requests of one party to either server; nothing is retried."""

    def __init__(self, federation: Reached, keys: PartyKeys) -> None:
        self.federation = federation
        self.keys = keys
        named = federation.roster.party(keys.name)
        self.key_id = keys.key_id if named is None else named.key_id
        connect = federation.connect or self._over_tls
        self.http = httpx.Client(transport=connect(), trust_env=False, timeout=60)

    def _over_tls(self) -> httpx.BaseTransport:
        context = ssl.create_default_context(cafile=str(self.federation.ca_file))
        return httpx.HTTPTransport(verify=context, trust_env=False)

    def close(self) -> None:
        self.http.close()

    def enclose(
        self,
        side: Side,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        created: int | None = None,
        stated: bytes | None = None,
        digest_field: DigestField | None = None,
    ) -> Outgoing:
        """A request ready to go; ``stated`` is the body whose digest it states, where that is another one."""
        stating = digest_field or (DigestField.SEALED if path.endswith(_CONTRIBUTION) else DigestField.CONTENT)
        operator = self.federation.roster.operator(side)
        between = Correspondence(self.key_id, operator.key_id, secrets.token_urlsafe(18))
        follows = stating is DigestField.SEALED or len(body) > MAX_CONTROL_BYTES
        enclosed = body[:ENCLOSED_OF_LONG_BODIES] if follows else body
        asked = EnclosedRequest(
            method=cast(Literal["GET", "POST", "PUT"], method),
            target=path,
            body_digest=digest_of(body if stated is None else stated, stating).hex(),
            digest_field=stating,
            enclosed_bytes=len(enclosed),
            body_bytes=len(body),
        )
        url = self.federation.url(side) + (PEER_SEALED if path.startswith(_PEER_PREFIX) else SEALED)
        now = int(self.federation.clock.now()) if created is None else created
        envelope, signed = sign_enclosed(asked, enclosed, operator.sealing, between, url, self.keys.signing, now)
        return Outgoing(side, url, signed, envelope + body[len(enclosed) :], between)

    def post(self, outgoing: Outgoing, *, chunked: bool = False, held_back: object = None) -> httpx.Response:
        """Send it. -> the server's answer out of its envelope, or as it came where it is not signed

        A chunked request states no length outside of its envelope. ``held_back`` says when the body arrives.
        """
        content = iter([outgoing.content]) if chunked else outgoing.content
        more = {} if held_back is None else {"held_back": held_back}
        response = self.http.request("POST", outgoing.url, headers=outgoing.headers, content=content, extensions=more)
        if "signature" not in response.headers:
            return response
        operator = self.federation.roster.operator(outgoing.side)
        verified = verify_answer(
            response.status_code,
            list(response.headers.multi_items()),
            dict(outgoing.headers)["Signature"],
            operator.verify_key,
            operator.key_id,
        )
        if verified.content_type != ANSWER_TYPE:
            return response
        status, body = open_answer(response.content, self.keys.sealing, outgoing.between)
        return httpx.Response(status, content=body)

    def send(self, side: Side, method: str, path: str, body: bytes = b"") -> httpx.Response:
        return self.post(self.enclose(side, method, path, body))

    def ok(self, side: Side, method: str, path: str, body: bytes = b"") -> bytes:
        response = self.send(side, method, path, body)
        assert response.is_success, f"{method} {path}: {response.status_code} {response.text}"
        return response.content


T = TypeVar("T")


def there(value: T | None, what: str) -> T:
    """The value. Raises: ProtocolViolation, when the script is not as far as it thinks"""
    if value is None:
        raise ProtocolViolation(f"there is no {what} here: the script is not as far as it thinks")
    return value


H = TypeVar("H", bound=Message)


def opened(body: bytes, key: SealingKey, form: type[H]) -> tuple[H, bytes]:
    """The header and the content of a body. Raises: BrokenSeal, MalformedMessage"""
    reader = SealedReader(key)
    content = b"".join(bodies.open_body(reader, [body]))
    return form.parse(reader.header or b""), content


HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
ME, PROXY = "127.0.0.1", "127.0.0.3"


class Stranger:
    """Opens connections to one server; ``local``: to one on this machine, where it has addresses of its own."""

    def __init__(self, url: str, ca: Path) -> None:
        host, port = url.removeprefix("https://").split(":")
        self._to = (host, int(port))
        self.local = host == ME
        self._context = ssl.create_default_context(cafile=str(ca))
        self._context.check_hostname = False

    def bare(self, source: str | None = None) -> socket.socket:
        """A connection that never begins TLS, from an address of this machine; whichever it is where none is said."""
        return socket.create_connection(self._to, timeout=20, source_address=None if source is None else (source, 0))

    def dial(self, source: str | None = None) -> ssl.SSLSocket:
        """A connection under TLS. Raises: OSError when it is not let in"""
        plain = self.bare(source)
        try:
            return self._context.wrap_socket(plain, server_hostname=self._to[0])
        except OSError:
            plain.close()
            raise

    def ask(self, request: bytes, source: str | None = None) -> tuple[int, bytes]:
        """One request on a connection of its own: status and body."""
        with self.dial(source) as connection:
            connection.sendall(request)
            return answer(connection)


def answer(connection: ssl.SSLSocket) -> tuple[int, bytes]:
    """Status and body of one answer; 0 when the connection ends without one."""
    found = HTTPResponse(connection)
    with suppress(OSError, HTTPException):
        found.begin()
        return found.status, found.read()
    return 0, b""


def pour(connection: ssl.SSLSocket, pieces: Iterable[bytes]) -> int:
    """Send until the server will not take more: how many bytes it let come."""
    sent = 0
    with suppress(OSError):
        for piece in pieces:
            connection.sendall(piece)
            sent += len(piece)
    return sent


def closed_within(connections: Sequence[socket.socket], seconds: float) -> int:
    """Count those that the server has closed when the time is over, or as soon as all are."""
    waiting = {connection.fileno(): connection for connection in connections}
    deadline = time.monotonic() + seconds
    poll = select.poll()
    for number in waiting:
        poll.register(number, select.POLLIN)
    while waiting and (left := deadline - time.monotonic()) > 0:
        for number, _ in poll.poll(1000 * left):
            if _ended(waiting[number]):
                poll.unregister(number)
                del waiting[number]
    return len(connections) - len(waiting)


def _ended(connection: socket.socket) -> bool:
    """Return whether nothing more comes; what came before the end is thrown away."""
    connection.setblocking(False)
    try:
        while connection.recv(2**16):
            pass
    except (BlockingIOError, ssl.SSLWantReadError):
        return False
    except OSError:
        return True
    return True


def until(holds: Callable[[], bool], within_s: float = 10.0) -> bool:
    """Return whether it holds before the time is over."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(0.02)
    return False
