"""A hospital's proxy ends TLS and reads what passes; what it makes up is attack ``proxy-makes-answers-up``.

The agent's own client speaks through it to a server's side of envelopes and signatures. What the proxy reads is kept
and searched: no name, no topic and nothing of what is asked or answered is in it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
import stamina

from client_agent.network.answer import UnsignedAnswer
from client_agent.network.body import Body
from client_agent.network.server_client import RetryPolicy, ServerClient
from protocol.channel.signing import DigestField, digest_value
from protocol.errors import MalformedMessage
from protocol.messages.control import ReadyNotice, StudyView
from protocol.sharing import Side
from tests.unit.client_agent.enveloped import NOW, closed, opened
from tests.unit.client_agent.federation import DIGEST, ROSTER, keys, operator_keys

SERVER = operator_keys(Side.A)
Tamper = Callable[[httpx.Request, httpx.Response], httpx.Response]


def view(cursor: int = 7, **changes: object) -> StudyView:
    return StudyView(study="unit", study_digest=DIGEST, cursor=cursor, ready=(), mail=()).model_copy(update=changes)


def whole(response: httpx.Response) -> httpx.Response:
    """A copy that can be read once more."""
    return httpx.Response(response.status_code, headers=response.headers, content=response.read())


@dataclass
class Proxy:
    """Between the agent and a server: hands on what comes back, or what ``tamper`` makes of it."""

    tamper: Tamper | None = None
    seen: list[httpx.Request] = field(default_factory=list)
    answers: list[httpx.Response] = field(default_factory=list)
    asked: int = 0
    cursor: int = 7

    def handle(self, request: httpx.Request) -> httpx.Response:
        asked = opened(request, SERVER)
        self.asked += 1
        self.seen.append(request)
        answer = whole(closed(asked, SERVER, self._server(asked.request)))
        self.answers.append(whole(answer))
        return answer if self.tamper is None else self.tamper(request, answer)

    def _server(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/output"):
            digest = digest_value(DigestField.CONTENT, hashlib.sha256(b"the output").digest())
            return httpx.Response(200, headers={"content-digest": digest}, content=b"the output")
        if request.method in ("POST", "PUT"):
            return httpx.Response(204)
        self.cursor += 1
        return httpx.Response(200, content=view(self.cursor).canonical())


def client(proxy: Proxy) -> ServerClient:
    retry = RetryPolicy(attempts=2, first_wait_s=0.0, longest_wait_s=0.001)
    transport = httpx.MockTransport(proxy.handle)
    return ServerClient(Side.A, ROSTER.operator_a, keys("c1"), transport, retry=retry, clock=lambda: float(NOW))


@pytest.fixture(autouse=True)
def _quiet() -> None:
    stamina.instrumentation.set_on_retry_hooks(())


def test_a_replayed_request_earns_no_signed_refusal() -> None:
    """Sent a second time, a request is refused, and that refusal is nobody's statement."""
    unsigned = httpx.Response(
        401, content=json.dumps({"code": "bad_signature", "detail": "this nonce came before"}).encode()
    )
    proxy = Proxy(lambda request, answer: whole(unsigned))
    server = client(proxy)
    with pytest.raises(UnsignedAnswer, match="this nonce came before"):
        server.view("unit")
    server.close()


def test_a_proxy_reads_no_names_and_nothing_of_what_is_asked_or_answered(tmp_path: Path) -> None:
    """The public header of a share names its site: it is enclosed, what follows is ciphertext."""
    share = tmp_path / "share"
    header = b'{"site":"hospital-north","study":"unit"}'
    share.write_bytes(b"MOIETY\x00\x01" + header + bytes(range(256)) * 400)
    proxy = Proxy()
    server = client(proxy)
    server.view("unit", 3, 1.0)
    server.ready("unit", ReadyNotice(study_digest=DIGEST, site="c1"))
    with pytest.raises(MalformedMessage):  # this server gives no receipts
        server.contribute("unit", 3, 1, Body.contribution(share, bytes(32)))
    server.close()
    read = b""
    for request in proxy.seen:
        read += str(request.url).encode() + repr(request.headers).encode() + request.read()
    for answer in proxy.answers:
        read += repr(answer.headers).encode() + answer.read()
    assert {request.url.path for request in proxy.seen} == {"/v1/sealed"}
    assert len(read) > 100_000
    for word in (b"unit", b"ready", b"view", b"cursor", b"stud", b"hospital", b"contribution", DIGEST.encode()):
        assert word not in read, word
    assert ROSTER.operator_a.name.encode() not in read
