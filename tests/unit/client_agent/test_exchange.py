"""One request and its answer, while another thread stops the agent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from client_agent.net.exchange import Exchange, TransportFailure, Way
from client_agent.net.server_client import WAITS_S

MADE: Any = SimpleNamespace(follows=False, session=None)
"""A request that is in no session."""


@pytest.mark.parametrize("before", [True, False])
def test_connections_that_close_before_or_while_a_request_is_made_end_nobody(before: bool) -> None:
    """Making a request may open a session, which takes a while: then the client's own error came out."""
    http = Way(httpx.MockTransport(lambda request: httpx.Response(200)), WAITS_S)

    def made(again: bool) -> tuple[httpx.Request, Any]:
        http.close()
        return httpx.Request("GET", "https://server-a/"), MADE

    if before:
        http.close()
    with pytest.raises(TransportFailure, match="the agent is stopping"), Exchange(http, made, "a", 100, lambda: 0.0):
        pass


def test_another_error_of_an_open_client_is_not_taken_for_a_stop() -> None:
    def broken(request: httpx.Request) -> httpx.Response:
        raise RuntimeError("a defect")

    http = Way(httpx.MockTransport(broken), WAITS_S)
    request = httpx.Request("GET", "https://server-a/")
    exchange = Exchange(http, lambda again: (request, MADE), "operator-a", 100, lambda: 0.0)
    with pytest.raises(RuntimeError, match="a defect"), exchange:
        pass


def test_a_request_says_where_it_goes_and_how_long_its_answer_may_take_and_nothing_that_nobody_reads() -> None:
    sent: list[httpx.Request] = []

    def taken(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return httpx.Response(302, headers={"location": "https://elsewhere/", "set-cookie": "a=b"})

    way = Way(httpx.MockTransport(taken), WAITS_S)
    for _ in range(2):
        headers = [("Content-Length", "2")]
        request = way.post("https://server-a:8443/v1/x", headers, iter([b"a", b"b"]), 7.0, purpose="view", study=None)
        assert way.send(request).status_code == 302
    assert [request.read() for request in sent] == [b"ab", b"ab"]
    assert sent[1].headers.raw == [(b"Host", b"server-a:8443"), (b"Content-Length", b"2")]
    assert str(sent[1].url) == "https://server-a:8443/v1/x"
    assert sent[1].extensions["timeout"] == {**WAITS_S, "read": WAITS_S["read"] + 7}
    assert sent[1].extensions["purpose"] == "view"
    assert len(sent) == 2, "no redirect is followed"


def test_a_closed_way_sends_nothing_and_closes_its_transport_once() -> None:
    closed: list[int] = []

    class Counted(httpx.MockTransport):
        def close(self) -> None:
            closed.append(1)

    way = Way(Counted(lambda request: httpx.Response(200)), WAITS_S)
    for _ in range(2):
        way.close()
    assert closed == [1]
    with pytest.raises(RuntimeError, match="the way is closed"):
        way.send(way.post("https://server-a/", [("Content-Length", "0")], iter(()), 0.0))
