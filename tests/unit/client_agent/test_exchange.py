"""One request and its answer, while another thread stops the agent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from client_agent.network.exchange import Exchange, TransportFailure

MADE: Any = SimpleNamespace(follows=False, session=None)
"""A request that is in no session."""


@pytest.mark.parametrize("before", [True, False])
def test_connections_that_close_before_or_while_a_request_is_made_end_nobody(before: bool) -> None:
    """Making a request may open a session, which takes a while: then the client's own error came out."""
    http = httpx.Client(transport=httpx.MockTransport(lambda request: httpx.Response(200)))

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

    http = httpx.Client(transport=httpx.MockTransport(broken))
    request = httpx.Request("GET", "https://server-a/")
    exchange = Exchange(http, lambda again: (request, MADE), "operator-a", 100, lambda: 0.0)
    with pytest.raises(RuntimeError, match="a defect"), exchange:
        pass
