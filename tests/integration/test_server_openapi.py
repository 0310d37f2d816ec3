"""Requests made from the server's own OpenAPI description, signed by a site that is in the roster, never break it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.generation import GenerationMode

from harness.adversaries.signed_client import SignedClient
from protocol.sharing import Side
from tests.kit.processes import Federation, start_servers

SITES = ("hospital-0", "hospital-1", "hospital-2", "hospital-3")
LONG_POLL = "wait_s"
PROBLEM = {"type", "title", "status", "detail", "code"}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with start_servers(tmp_path_factory.mktemp("openapi"), SITES, limits={"long_poll_s": 0.01}) as running:
        yield running


@pytest.fixture(scope="module")
def client(federation: Federation) -> Iterator[SignedClient]:
    signed = federation.client(SITES[1])
    yield signed
    signed.close()


def describe(federation: Federation, client: SignedClient, side: Side) -> schemathesis.BaseSchema:
    raw = client.http.get(federation.servers[side].operations_url + "/openapi.json").json()
    return schemathesis.openapi.from_dict(raw)


@pytest.mark.parametrize("side", list(Side))
def test_no_request_that_the_description_allows_or_forbids_ends_in_an_internal_error(
    federation: Federation, client: SignedClient, side: Side
) -> None:
    found: list[Any] = list(describe(federation, client, side).get_all_operations())
    operations = [result.ok() for result in found]
    assert len(operations) > 20
    seen: set[int] = set()
    for operation in operations:

        @settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy(generation_mode=GenerationMode.POSITIVE), body=st.binary(max_size=200))
        def send(case: schemathesis.Case, body: bytes) -> None:
            path = case.path.format(**{name: quote(str(v), safe="") for name, v in case.path_parameters.items()})
            query = urlencode({name: value for name, value in (case.query or {}).items() if name != LONG_POLL})
            response = client.send(side, case.method.upper(), path + (f"?{query}" if query else ""), body)
            seen.add(response.status_code)
            assert response.status_code < 500, (case.method, path, response.text)
            if response.status_code >= 400:
                assert set(response.json()) == PROBLEM, (path, response.text)

        send()
    assert seen & {400, 404, 409, 422}
    federation.wait_for(side, "/healthz")
    assert "internal error" not in federation.servers[side].log.lower()
