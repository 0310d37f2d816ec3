"""Requests that nobody means, to running servers: of strangers, of a site, of the requester and of the peer.

What is sent is drawn from a seed; what comes back is counted by kind and status.
"""

from __future__ import annotations

import json
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final
from urllib.parse import quote

import httpx

from harness.attack.signed_client import Outgoing, SignedClient, Stranger, answer
from protocol.channel.signing import DigestField
from protocol.errors import MoietyError
from protocol.messages import paths
from protocol.sharing import Side
from tests.frozen.examples import EXAMPLES
from tests.fuzz.mutations import TEXTS, mutated, mutated_json
from tests.kit.processes import Federation

PLAYED: Final = "played"
"""The study that is played with; the honest one has another name."""
_SILENT_S: Final = 0.1
_TEMPLATES: Final = tuple(
    value
    for name, value in vars(paths).items()
    if name.isupper() and isinstance(value, str) and value.startswith("/v1/")
)
OF_SITES: Final = tuple(one for one in _TEMPLATES if not one.startswith("/v1/peer/"))
OF_PEERS: Final = tuple(one for one in _TEMPLATES if one.startswith("/v1/peer/studies"))
_MESSAGES: Final = tuple(json.dumps(fields).encode() for fields in EXAMPLES.values())
_METHODS: Final = (
    "GET",
    "POST",
    "PUT",
    "HEAD",
    "DELETE",
    "PATCH",
    "OPTIONS",
    "TRACE",
    "CONNECT",
    "get",
    "PROPFIND",
    "A" * 40,
)
_TRICKS: Final = (
    "/../../etc/passwd",
    "/%2e%2e/%2e%2e/etc/passwd",
    "//healthz",
    "/healthz/",
    "/v1/./studies",
    "/v1/studies/%00",
    "/v1/studies/%ff%fe",
    "/v1/studies/..%2f..%2fserver.db/view",
    "/v1/studies/a;b=c",
    "/v1/studies?after=%F0%9F%98%80&known=&wait_s=nan",
    "/status",
    "/metrics",
    "/openapi.json",
    "/docs",
    "/readyz",
    "*",
    "http://elsewhere.example/healthz",
    "/" + "a" * 3000,
    "/" + "%41" * 1000,
    "/v1/sealed?x=1",
    "/v1/sealed#fragment",
    "/v1\\sealed",
)
_HEADERS: Final = (
    "Content-Encoding: gzip",
    "Content-Encoding: br, deflate",
    "Accept-Encoding: gzip, *;q=0",
    "Transfer-Encoding: gzip, chunked",
    "Transfer-Encoding: identity",
    "Expect: 100-continue",
    "Upgrade: websocket\r\nConnection: Upgrade",
    "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA",
    "X-Forwarded-For: 10.0.0.1, ::1",
    "Forwarded: for=unknown",
    "Range: bytes=0-18446744073709551615",
    "Cookie: a=" + "b" * 3000,
    "Content-Type: application/json",
    "Content-Type: multipart/form-data; boundary=x",
    "Signature: moiety=:AAAA:",
    'Signature-Input: moiety=("@method");created=1',
    "Sealed-Head-Digest: sha-256=:AAAA:",
    "Moiety-Version: moiety/1",
    "Content-Length: 0",
    "Content-Length: 18446744073709551616",
    "Content-Length: -1",
    "Content-Length: 3, 3",
    "Host: elsewhere.example",
    "A: " + "\x80\xff",
    " folded: yes",
    "No colon",
    ": no name",
    "\x00: nul",
    *(f"X-{n}: {n}" for n in range(5)),
)


@dataclass
class Counts:
    """Requests so far, by kind, and what came back: a status, or ``closed`` where the connection ended without one."""

    requests: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)

    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def note(self, kind: str, status: int, what: Callable[[], str]) -> None:
        with self.lock:
            self.requests[kind] += 1
            self.answers[str(status) if status else "closed"] += 1
        if status == 500 or status > 503:
            self.errors.append(f"{kind}: {status}: {what()}"[:2000])


class Strangers:
    """Bytes on connections that are kept while the server keeps them."""

    def __init__(self, federation: Federation, side: Side, random: Random, counts: Counts) -> None:
        self._stranger = Stranger(federation.url(side), federation.ca_file)
        self._random = random
        self._counts = counts
        self._connection: ssl.SSLSocket | None = None

    def send(self, kind: str, request: bytes) -> None:
        """One request, on the connection that is open or a new one."""
        connection, status = self._connection, 0
        with suppress(OSError):  # a server that has too many connections of this address lets no other in
            connection = connection or self._stranger.dial()
            connection.settimeout(_SILENT_S)
            connection.sendall(request)
            status, _ = answer(connection)
        self._counts.note(kind, status, lambda: repr(request[:500]))
        kept = status in (200, 404, 405) and kind == "stranger, whole request"
        self._connection = connection if kept else None
        if connection is not None and not kept:
            connection.close()

    def whole(self) -> None:
        """A request that any HTTP server reads."""
        random = self._random
        method = random.choice(("GET", "POST", "PUT"))
        body = b"" if method == "GET" else mutated(_MESSAGES, random)[: random.choice((0, 10, 4000))]
        target = random.choice((*_TRICKS[:9], "/healthz", "/v1/card", drawn_target(OF_SITES, random)))
        head = f"{method} {target} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        self.send("stranger, whole request", head.encode("latin-1", "replace") + body)

    def spoiled(self) -> None:
        """Methods, targets, header lines and chunks that are wrong, and bytes altered at random."""
        random = self._random
        lines = [random.choice(_HEADERS) for _ in range(random.choice((0, 1, 2, 5, 80)))]
        method, target = random.choice(_METHODS), random.choice((*_TRICKS, paths.SEALED, paths.ENROLMENT))
        version = random.choice(("HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/9.9", "", "ICY"))
        head = "\r\n".join([f"{method} {target} {version}", "Host: x", *lines]).encode("latin-1", "replace")
        request = head + b"\r\n\r\n" + self._spoiled_body()
        if random.random() < 0.5:
            request = mutated((request,), random)
        self.send("stranger, spoiled request", request)

    def _spoiled_body(self) -> bytes:
        random = self._random
        chunk = random.randbytes(random.choice((0, 1, 50)))
        return random.choice(
            (
                b"",
                chunk,
                b"%x\r\n%s\r\n0\r\n\r\n" % (len(chunk), chunk),
                b"ffffffffffffffffff\r\n" + chunk,
                b"-1\r\n" + chunk,
                b"5;ext=%s\r\nabcde\r\n0\r\nTrailer: x\r\n\r\n" % chunk.hex().encode(),
                b"0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
            )
        )

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


class Members:
    """Signed and sealed requests of one party, with anything inside."""

    def __init__(
        self, client: SignedClient, who: str, templates: Sequence[str], random: Random, counts: Counts
    ) -> None:
        self._client = client
        self._who = who
        self._templates = templates
        self._random = random
        self._counts = counts

    def send(self, side: Side) -> None:
        """One request; a tenth of them is altered on its way, so that seal or signature break."""
        random = self._random
        target, method = drawn_target(self._templates, random), random.choice(("GET", "POST", "PUT"))
        body = b"" if method == "GET" else mutated_json(_MESSAGES, random)
        try:
            request = self._client.enclose(side, method, target, body, digest_field=random.choice((None, *DigestField)))
        except (MoietyError, ValueError):  # not even a client of one's own makes an envelope of that
            return
        kind = f"{self._who}, in an envelope"
        if random.random() < 0.1:
            kind, request = f"{self._who}, altered on the way", self._altered(request)
        try:
            status = self._client.post(request, chunked=random.random() < 0.05).status_code
        except httpx.HTTPError:
            status = 0
        self._counts.note(kind, status, lambda: f"{method} {target} {body[:300]!r}")

    def _altered(self, request: Outgoing) -> Outgoing:
        random, headers = self._random, list(request.headers)
        if random.random() < 0.5:
            content = mutated((request.content,), random)
            return Outgoing(request.side, request.url, headers, content, request.between)
        place = random.randrange(len(headers))
        name, value = headers[place]
        spoiled = mutated((value.encode(),), random).decode("latin-1")
        headers[place] = (name, "".join(letter for letter in spoiled if " " <= letter <= "~"))
        return Outgoing(request.side, request.url, headers, request.content, request.between)


def drawn_target(templates: Sequence[str], random: Random) -> str:
    """A route's address with values that fit, nearly fit or do not."""
    template = random.choice(templates)
    values: dict[str, Any] = {
        "study": random.choice((PLAYED, PLAYED, "nobody", _text(random))),
        "round": _number(random),
        "attempt": _number(random),
        "number": _number(random),
        "batch": _number(random),
        "version": _number(random),
        "session": random.choice(("ab" * 32, _text(random))),
        "topic": random.choice(("weights-1", "welcome-0", "checkpoint-1", "refusal", _text(random))),
        "recipient": random.choice(("hospital-0", "hospital-4", "every-site", _text(random))),
    }
    target = template.format(**values)
    if random.random() < 0.4:
        names = random.sample(("after", "wait_s", "known", "sender", "digest", "length", "offset", "nonce", "other"), 3)
        target += "?" + "&".join(f"{name}={random.choice((_number(random), _text(random)))}" for name in names)
    return target


def _number(random: Random) -> object:
    return random.choice((1, 1, 1, 2, 0, -1, 10**6, 10**30, "1.0", "0x1", "nan", "", "%20"))


def _text(random: Random) -> str:
    return quote(random.choice(TEXTS).encode("utf-8", "replace")[:200], safe="%")
