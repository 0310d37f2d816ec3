"""However many studies a server holds, a list of them fits a control message; it waits while nothing is new."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from client_agent.network.server_client import ServerClient
from protocol.errors import MalformedMessage
from protocol.messages.control import MAX_CONTROL_BYTES, ListedStudy, StudyIndex
from protocol.sharing import Side
from servers.notifications import Changes
from servers.settings import Limits
from servers.store.interface import A_NEW_STUDY
from servers.studies import PAGE_BYTES, studies_after
from tests.unit.client_agent.enveloped import NOW, enveloped
from tests.unit.client_agent.federation import ROSTER, keys

COUNT = 25_000
DIGESTS = [(f"study-{number:05d}", f"{number:064x}") for number in range(COUNT)]
INDEX = StudyIndex(studies=tuple(ListedStudy(name=name, study_digest=digest) for name, digest in DIGESTS))


def a_server(digests: list[tuple[str, str]], **limits: float) -> Any:
    store = SimpleNamespace(study_digests=lambda: digests)
    chain, settings = SimpleNamespace(number=0), SimpleNamespace(limits=Limits(**limits))
    return SimpleNamespace(store=store, chain=chain, changes=Changes(), settings=settings)


def client_of(pages: Any) -> ServerClient:
    transport = httpx.MockTransport(enveloped(pages))
    return ServerClient(Side.A, ROSTER.operator_a, keys("c1"), transport, clock=lambda: float(NOW))


def answers_of(server: Any, sizes: list[int]) -> Any:
    def answer(request: httpx.Request) -> httpx.Response:
        asked = request.url.params
        found = studies_after(server, asked["after"], asked.get("known", ""), float(asked.get("wait_s", 0)))
        page = asyncio.run(found)
        sizes.append(len(page.canonical()))
        return httpx.Response(200, content=page.canonical())

    return answer


def test_pages_together_are_all_studies_and_each_fits() -> None:
    assert len(INDEX.canonical()) > 2 * PAGE_BYTES
    sizes = list[int]()
    client = client_of(answers_of(a_server(DIGESTS), sizes))
    assert client.studies() == INDEX
    assert len(sizes) > 2
    assert max(sizes) < MAX_CONTROL_BYTES // 2
    client.close()


def test_what_is_known_is_not_said_again() -> None:
    sizes = list[int]()
    client = client_of(answers_of(a_server(DIGESTS), sizes))
    assert client.studies(INDEX) is INDEX
    assert len(sizes) == 1
    assert sizes[0] < 200
    client.close()


def test_no_study_is_an_empty_page_and_a_server_that_lost_its_studies_says_so() -> None:
    client = client_of(answers_of(a_server([]), []))
    assert client.studies() == StudyIndex(studies=())
    assert client.studies(INDEX) == StudyIndex(studies=())
    client.close()


def test_the_answer_waits_until_there_is_one_study_more() -> None:
    """Other changes do not wake it, and it waits no longer than the caller and the server allow."""
    digests = DIGESTS[:2]
    known = StudyIndex(studies=INDEX.studies[:2]).digest()

    async def wait() -> tuple[bool, StudyIndex]:
        server = a_server(digests, long_poll_s=30.0)
        asked = asyncio.create_task(studies_after(server, "", known, 20.0))
        await asyncio.sleep(0.01)
        server.changes.notify("a" * 64)  # a round goes on
        await asyncio.sleep(0.01)
        waited = not asked.done()
        digests.append(DIGESTS[2])
        server.changes.notify(A_NEW_STUDY)
        return waited, await asyncio.wait_for(asked, 5)

    waited, found = asyncio.run(wait())
    assert waited
    assert found == StudyIndex(studies=INDEX.studies[:3])
    now_known = found.digest()
    quick = a_server(digests, long_poll_s=0.05)
    unchanged = asyncio.run(asyncio.wait_for(studies_after(quick, "", now_known, 300.0), 5))
    assert unchanged == StudyIndex(studies=(), unchanged=True)


def test_a_server_that_promises_more_for_ever_is_named() -> None:
    client = client_of(lambda request: httpx.Response(200, content=StudyIndex(studies=(), more=True).canonical()))
    with pytest.raises(MalformedMessage, match="promises more studies and shows none"):
        client.studies()
    client.close()


def test_unchanged_is_no_answer_to_who_knows_nothing() -> None:
    page = StudyIndex(studies=(), unchanged=True)
    client = client_of(lambda request: httpx.Response(200, content=page.canonical()))
    assert client.studies() == StudyIndex(studies=())
    client.close()
