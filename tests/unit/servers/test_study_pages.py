"""However many studies a server holds, a list of them fits a control message, and a site sees them all."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from client_agent.network.server_client import ServerClient
from protocol.errors import MalformedMessage
from protocol.sharing import Side
from protocol.wire.authentic import sign
from protocol.wire.messages import MAX_CONTROL_BYTES, Signed, Study, StudyList
from servers.studies import PAGE_BYTES, studies_after
from tests.unit.client_agent.enveloped import NOW, enveloped
from tests.unit.client_agent.federation import ROSTER, keys, study

COUNT = 40


def long_study(number: int) -> Signed[Study]:
    """Of about 60 kB: column names as long as a study may hold."""
    one = study()
    names = tuple(f"column {number:03d} {i:05d} {'x' * 180}" for i in range(280))
    model = one.model.model_copy(update={"inputs": (280,), "feature_names": names})
    named = one.model_copy(update={"name": f"study-{number:03d}", "model": model})
    return sign(named, "r0", keys("r0").signing)


STUDIES = [long_study(number) for number in range(COUNT)]


def a_server(studies: list[Signed[Study]]) -> Any:
    records = [SimpleNamespace(name=signed.message.name, signed=signed) for signed in reversed(studies)]
    return SimpleNamespace(store=SimpleNamespace(studies=lambda: records))


def client_of(pages: Any) -> ServerClient:
    transport = httpx.MockTransport(enveloped(pages))
    return ServerClient(Side.A, ROSTER.operator_a, keys("c1"), transport, clock=lambda: float(NOW))


def test_pages_together_are_all_studies_and_each_fits() -> None:
    assert sum(len(signed.canonical()) for signed in STUDIES) > 2 * PAGE_BYTES
    server, sizes = a_server(STUDIES), list[int]()

    def answer(request: httpx.Request) -> httpx.Response:
        page = studies_after(server, request.url.params["after"])
        sizes.append(len(page.canonical()))
        return httpx.Response(200, content=page.canonical())

    client = client_of(answer)
    assert [one.message.name for one in client.studies().studies] == [one.message.name for one in STUDIES]
    assert len(sizes) > 2
    assert max(sizes) < MAX_CONTROL_BYTES // 2
    client.close()


def test_no_study_is_an_empty_page() -> None:
    assert studies_after(a_server([]), "") == StudyList(studies=())


def test_a_server_that_promises_more_for_ever_is_named() -> None:
    client = client_of(lambda request: httpx.Response(200, content=StudyList(studies=(), more=True).canonical()))
    with pytest.raises(MalformedMessage, match="promises more studies and shows none"):
        client.studies()
    client.close()
