"""The surface for strangers before the federation is founded: the card and enrolment, bounded; and the way there."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import trustme
from fastapi import FastAPI
from httpx import ASGITransport, AsyncClient, Response
from structlog.testing import capture_logs

from client_agent.settings import load_settings
from client_agent.site.enrolment import Way
from client_agent.site.enrolment_folder import Wanted, make_folder, open_folder
from host.network import WebProxy
from protocol.errors import ConfigurationError, Unavailable
from protocol.messages.paths import CARD, ENROLMENT
from protocol.roster.enrolment import MOST_ASKED_SEALED_BYTES, parse_card
from protocol.sharing import Side
from servers.api.enrolment import OpenDesk
from servers.app import create_founding, create_founding_operations
from servers.doctor import examine_server
from servers.enrolment.desk import Desk
from tests.kit.certificates import answering, shown
from tests.kit.web_proxy import tunnelling_proxy
from tests.unit.enrolment.cards import operator_card
from tests.unit.enrolment.enrolling import Operators, Shown


class Asked:
    """An application without a network."""

    def __init__(self, app: FastAPI) -> None:
        self.app = app

    def get(self, path: str) -> Response:
        return asyncio.run(self._ask("GET", path, b""))

    def post(self, path: str, body: bytes) -> Response:
        return asyncio.run(self._ask("POST", path, body))

    async def _ask(self, method: str, path: str, body: bytes) -> Response:
        transport = ASGITransport(self.app, raise_app_exceptions=False)
        async with AsyncClient(transport=transport, base_url="https://a.example") as client:
            return await client.request(method, path, content=body)


@pytest.fixture
def public(both: Operators) -> Asked:
    return Asked(create_founding(both.settings[Side.A]))


def test_a_founding_server_shows_its_card_and_nothing_of_studies(both: Operators, public: Asked) -> None:
    assert parse_card(public.get(CARD).text, "there") == both.desks[Side.A].card
    assert public.get("/healthz").json() == {"status": "ok"}
    early = public.post("/v1/sealed", b"x")
    assert (early.status_code, early.json()["code"]) == (503, "unavailable")
    assert "not founded yet" in early.json()["detail"]
    assert public.get("/metrics").status_code == 404
    assert not (both.settings[Side.A].data_dir / "server.db").exists()


def test_what_is_waited_for_is_on_the_operators_port(both: Operators, public: Asked) -> None:
    answer = Asked(create_founding_operations(public.app)).get("/readyz")
    assert answer.status_code == 503
    assert "waits for the requester to join" in answer.json()["detail"]
    assert public.get("/readyz").status_code == 404


def test_a_question_is_no_longer_than_one_can_be(public: Asked) -> None:
    assert [public.post(ENROLMENT, sealed).json()["code"] for sealed in (b"", b"x" * 2000)] == ["broken_seal"] * 2
    long = public.post(ENROLMENT, b"x" * (MOST_ASKED_SEALED_BYTES + 1))
    assert (long.status_code, long.json()["code"]) == (413, "too_large")


class Strangers:
    """Questions at a desk whose clock moves only while it pauses; each is answered by whose it is."""

    def __init__(self) -> None:
        self.now_s, self.answered = 0.0, list[str]()
        self.desk = OpenDesk(cast("Desk", self), lambda: self.now_s, self._pause)

    def answer(self, sealed: bytes) -> bytes:
        self.answered.append(sealed.decode())
        return sealed

    async def _pause(self, seconds: float) -> None:
        self.now_s += seconds

    async def ask(self, *addresses: str) -> int:
        """-> how many of these questions, asked at once and in this order, were answered"""
        asked = (self.desk.answer(address.encode(), address) for address in addresses)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert all(isinstance(one, bytes | Unavailable) for one in answers)
        return sum(isinstance(one, bytes) for one in answers)


def test_who_asks_without_end_keeps_nobody_else_out_of_enrolment() -> None:
    """Neither one address nor sixteen, whatever the server answers per second; a site waits and is answered."""
    crowd = Strangers()
    assert asyncio.run(crowd.ask(*["flood"] * 300, "site")) == 9
    assert crowd.answered == ["flood"] * 8 + ["site"]
    crowd = Strangers()
    assert asyncio.run(crowd.ask(*[f"flood {number % 16}" for number in range(3200)], "site")) == 129
    assert crowd.answered[-1] == "site"
    assert crowd.now_s == pytest.approx(2.9, abs=0.2)  # a hundred at once, then ten per second


def test_a_full_line_takes_in_who_waits_in_fewer_places() -> None:
    crowd = Strangers()
    assert asyncio.run(crowd.ask(*[f"flood {number % 40}" for number in range(300)], "site")) == 200
    assert crowd.answered[-1] == "site"


def test_who_leaves_the_line_stops_nobody_behind() -> None:
    crowd = Strangers()

    async def some_leave() -> list[bool]:
        asked = [asyncio.create_task(crowd.ask(name)) for name in ("called", "waits", "site")]
        while len(crowd.desk._line) < len(asked):
            await asyncio.sleep(0)
        asked[0].cancel()
        asked[1].cancel()
        await asyncio.wait(asked)
        return [one.cancelled() for one in asked]

    assert asyncio.run(some_leave()) == [True, True, False]
    assert "site" in crowd.answered
    assert "waits" not in crowd.answered


def test_a_full_disk_is_said_and_what_nobody_expected_shows_nothing(
    public: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error, status in ((OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), 507), (ZeroDivisionError("inside"), 500)):

        async def broken(self: OpenDesk, *_: object, error: Exception = error) -> bytes:
            raise error

        monkeypatch.setattr(OpenDesk, "answer", broken)
        with capture_logs():  # drawing a traceback for a terminal takes seconds
            answer = public.post(ENROLMENT, b"x")
        assert answer.status_code == status
        assert "inside" not in answer.text


def test_doctor_says_what_a_server_without_a_roster_waits_for(both: Operators) -> None:
    report = examine_server(both.folder / "a" / "settings.toml")
    (found,) = [one.found for one in report.findings if one.check == "roster and keys"]
    assert "right before the federation is founded; waits for the requester to join" in found


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Under a certificate that nobody knows."""
    monkeypatch.setattr(Shown, "asked", [])
    with answering(shown(tmp_path, trustme.CA()), Shown) as url:
        yield url


def test_the_way_is_by_a_proxy_and_trusts_nobody(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shown, "body", b"a card")
    with tunnelling_proxy("user:word") as proxy:
        way = Way(WebProxy.parse(proxy.url, "user:word"))
        assert way(server, CARD, b"", 100) == (200, b"a card")
        assert proxy.asked == [f"CONNECT {server.removeprefix('https://')} HTTP/1.1"]
        assert Shown.asked == ["GET /v1/card HTTP/1.1"]
        with pytest.raises(Unavailable, match=r"407.*nothing is lost: run the same command again"):
            Way(WebProxy.parse(proxy.url))(server, CARD, b"", 100)


def test_no_more_of_an_answer_is_read_than_it_can_be(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shown, "body", b"x" * 50_000)
    assert len(Way()(server, ENROLMENT, b"asked", 100)[1]) == 101
    assert Shown.asked == ["POST /v1/enrolment HTTP/1.1"]


def test_a_server_that_is_away_is_named() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"https://127.0.0.1:{nobody.getsockname()[1]}"
        with pytest.raises(Unavailable, match=rf"{url}: nobody listens there.*run the same command again"):
            Way()(url, CARD, b"", 100)


def test_public_certificates_are_trusted_by_a_file_that_is_there(
    both: Operators, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards = (both.desks[Side.A].card, operator_card(Side.B))
    told = tmp_path / "told.pem"
    told.write_text("told")
    for name, ca, said in (("one", told, "told"), ("two", None, "system")):
        paths = ssl.get_default_verify_paths()._replace(cafile=str(tmp_path / "system.pem"))
        (tmp_path / "system.pem").write_text("system")
        monkeypatch.setattr(
            "client_agent.site.enrolment_folder.ssl.get_default_verify_paths", lambda paths=paths: paths
        )
        joined = make_folder(tmp_path / name, "clinic-1", Wanted(5, tmp_path, ca, "http://proxy:3128", told), cards)
        assert (joined.folder / "ca.pem").read_text() == f"{cards[0].ca}\n{said}"
        settings = load_settings(joined.folder / "settings.toml")
        assert (settings.proxy, settings.proxy_credentials) == ("http://proxy:3128", told)
    nothing = SimpleNamespace(cafile=None)
    monkeypatch.setattr("client_agent.site.enrolment_folder.ssl.get_default_verify_paths", lambda: nothing)
    monkeypatch.setattr("client_agent.site.enrolment_folder._BUNDLES", (tmp_path / "none.pem",))
    with pytest.raises(ConfigurationError, match="this machine has no file of these: name one with --ca"):
        make_folder(tmp_path / "three", "clinic-1", Wanted(5, tmp_path), cards)
    assert not (tmp_path / "three").exists()
    monkeypatch.setattr("client_agent.site.enrolment_folder._BUNDLES", (tmp_path / "system.pem",))  # as on Debian
    joined = make_folder(tmp_path / "four", "clinic-1", Wanted(5, tmp_path), cards)
    assert (joined.folder / "ca.pem").read_text() == f"{cards[0].ca}\nsystem"


def test_a_folder_with_the_public_card_of_other_keys_is_refused(both: Operators) -> None:
    joined, other = both.join("clinic-1"), both.join("clinic-2")
    (joined.folder / "site.public.toml").write_bytes((other.folder / "site.public.toml").read_bytes())
    with pytest.raises(ConfigurationError, match=r"is not the public card of .*restore the folder"):
        open_folder(joined.folder)
