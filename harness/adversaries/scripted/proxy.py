"""A proxy that opens TLS, between an agent's own client and a server: it keeps, alters, loses and makes up what passes.

What it sees is what TLS carries: requests with their headers and bodies, and the answers to them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import httpx

from client_agent.network import server_client
from client_agent.network.server_client import ServerClient
from harness.adversaries.scripted.there import there
from harness.adversaries.signed_client import Reached
from protocol.sharing import Side
from protocol.wire.channel.envelope import Correspondence

_KEY_ID: Final = re.compile(r'keyid="([^"]+)"')
_NONCE: Final = re.compile(r'nonce="([^"]+)"')


def whole(answer: httpx.Response) -> httpx.Response:
    """A copy that can be read once more."""
    return httpx.Response(answer.status_code, headers=answer.headers, content=answer.read())


def as_it_is(request: httpx.Request, answer: httpx.Response) -> httpx.Response:
    """What an honest proxy does with an answer."""
    return answer


def between(request: httpx.Request, server_key_id: str) -> Correspondence:
    """What anybody on the way reads of a request's signature."""
    stated = request.headers["signature-input"]
    caller, nonce = (there(found.search(stated), "key and nonce")[1] for found in (_KEY_ID, _NONCE))
    return Correspondence(caller, server_key_id, nonce)


@dataclass
class Proxy(httpx.BaseTransport):
    """Hands on what ``change`` makes of a request's body, and what ``tamper`` makes of the answer to it.

    ``loses`` says of the n-th request (from 0) that it does not arrive, ``forgets`` that its answer does not.
    """

    onward: httpx.BaseTransport
    change: Callable[[bytes], bytes] = bytes
    tamper: Callable[[httpx.Request, httpx.Response], httpx.Response] = as_it_is
    loses: Callable[[int], bool] = lambda number: False
    forgets: Callable[[int], bool] = lambda number: False
    asked: list[httpx.Request] = field(default_factory=list)
    answers: list[httpx.Response] = field(default_factory=list)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        body, number = self.change(request.read()), len(self.asked)
        self.asked.append(request)
        if self.loses(number):
            raise httpx.ConnectError("the proxy lost the request", request=request)
        headers = [(name, value) for name, value in request.headers.multi_items() if name != "content-length"]
        answer = whole(
            self.onward.handle_request(httpx.Request(request.method, request.url, headers=headers, content=body))
        )
        self.answers.append(whole(answer))
        if self.forgets(number):
            raise httpx.ReadError("the proxy lost the answer", request=request)
        return self.tamper(request, answer)

    def close(self) -> None:
        self.onward.close()


def agents_client(
    servers: Reached, side: Side, site: str, through: httpx.BaseTransport, *, in_sessions: bool = False
) -> ServerClient:
    """A site's client as its agent has it, two attempts a request, behind ``through``."""
    retry = server_client.RetryPolicy(attempts=2, first_wait_s=0.0, longest_wait_s=0.001)
    operator = servers.roster.operator(side)
    keys, clock = servers.keys(site), servers.clock.now
    return ServerClient(side, operator, keys, through, retry=retry, clock=clock, in_sessions=in_sessions)
