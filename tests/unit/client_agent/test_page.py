"""A site's page: who may come in, what another user or web page can do (nothing), and what it shows."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from client_agent.page import app
from client_agent.page.app import COOKIE, Door, make_page
from client_agent.settings import load_settings
from client_agent.site.journal import StudyJournal
from client_agent.study.approval import approval_of
from harness.federation.processes import write_secret
from host.doctor import Report, failed, ok
from host.web_page import FORM_FIELD
from protocol.messages.control import sign
from protocol.roster.keyfile import dump_party_keys
from tests.kit.present import present
from tests.unit.client_agent.commands import write_config
from tests.unit.client_agent.federation import REQUESTER, keys, study

# --- page -------------------------------------------------------------------------------------------------------------

STUDY = study()
PORT = 8765
ORIGIN = f"http://127.0.0.1:{PORT}"
REPORT = Report(
    of="c1", findings=(ok("disk", "9 GB free"), failed("clock", "off by <b>ten</b> minutes", "let NTP set it"))
)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Settings of site c1, whose agent has found the study."""
    found = write_config(tmp_path)
    write_secret(tmp_path / "c1.toml", dump_party_keys(keys("c1")))
    found.write_text(found.read_text().replace(f'"{REQUESTER}"', '"c1"').replace("keys.toml", "c1.toml"))
    kept = journal(found)
    kept.write(kept.folder / "study.json", sign(STUDY, REQUESTER, keys(REQUESTER).signing))
    return found


def journal(config: Path) -> StudyJournal:
    return StudyJournal(config.parent / "state", STUDY.name)


def as_requester(config: Path) -> Path:
    config.write_text(config.read_text().replace('"c1"', f'"{REQUESTER}"').replace("c1.toml", "keys.toml"))
    return config


class Browser:
    """Asks the page in this process, and keeps its cookies."""

    def __init__(self, config: Path, door: Door) -> None:
        self.door = door
        self._transport = httpx.ASGITransport(make_page(load_settings(config), door, lambda: REPORT))
        self._cookies = httpx.Cookies()

    def get(self, path: str, **more: Any) -> httpx.Response:
        return asyncio.run(self._ask("GET", path, more))

    def post(self, path: str, **more: Any) -> httpx.Response:
        return asyncio.run(self._ask("POST", path, more))

    def say(self, word: str, origin: str | None = ORIGIN, **fields: str) -> httpx.Response:
        """A person's word on the study, by the page's form."""
        headers = {} if origin is None else {"origin": origin}
        return self.post(f"/studies/{STUDY.name}/{word}", data=form(self.door, **fields), headers=headers)

    async def _ask(self, method: str, path: str, more: dict[str, Any]) -> httpx.Response:
        async with httpx.AsyncClient(transport=self._transport, base_url=ORIGIN, cookies=self._cookies) as client:
            answer = await client.request(method, path, **more)
            self._cookies = httpx.Cookies(client.cookies)
            return answer


def entered(config: Path, door: Door | None = None) -> Browser:
    client = Browser(config, door or Door(PORT))
    assert client.get("/login", params={"token": client.door.token}).headers["location"] == "/"
    return client


async def _piece() -> AsyncIterator[bytes]:
    yield b"x"


@pytest.fixture
def door() -> Door:
    return Door(PORT)


@pytest.fixture
def inside(config: Path) -> Browser:
    return entered(config)


def form(door: Door, **fields: str) -> dict[str, str]:
    return {FORM_FIELD: door.form_token, "digest": STUDY.digest(), "person": "Dr. A", "reason": "permit 7", **fields}


# --- what the site needs ----------------------------------------------------------------------------------------------


def test_what_doctor_finds_is_shown_with_what_to_do(inside: Browser) -> None:
    text = inside.get("/check").text
    assert "Something keeps the agent from running." in text
    assert "off by &lt;b&gt;ten&lt;/b&gt; minutes<br>let NTP set it" in text
    assert "9 GB free" in text


# --- the door ---------------------------------------------------------------------------------------------------------


def test_the_token_opens_once_and_the_cookie_is_the_browsers_alone(config: Path, door: Door) -> None:
    client = Browser(config, door)
    assert client.get("/").status_code == 403
    assert client.get("/login", params={"token": "x"}).status_code == 403
    came = client.get("/login", params={"token": door.token})
    said = came.headers["set-cookie"].lower()
    assert all(part in said for part in ("httponly", "samesite=strict", "path=/"))
    assert client.get("/").status_code == 200
    other = Browser(config, door)
    assert other.get("/login", params={"token": door.token}).status_code == 403
    assert other.get("/", headers={"cookie": f"{COOKIE}={'x' * 43}"}).status_code == 403


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8765", "localhost:8765", "127.0.0.1", "[::1]:8765"])
def test_another_name_for_this_machine_is_answered_by_nothing(inside: Browser, host: str) -> None:
    for path in ("/", "/login", f"/studies/{STUDY.name}", "/static/page.js"):
        assert inside.get(path, headers={"host": host}).status_code == 421


def test_every_answer_forbids_frames_other_origins_and_caches(inside: Browser) -> None:
    for path in ("/", "/ledger", f"/studies/{STUDY.name}", "/nowhere", "/static/page.css"):
        headers = inside.get(path).headers
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "default-src 'none'" in headers["content-security-policy"]
        assert (headers["referrer-policy"], headers["cache-control"]) == ("same-origin", "no-store")


@pytest.mark.parametrize("origin", ["https://evil.example", "null", None, "http://127.0.0.1:9999"])
def test_another_page_approves_nothing(inside: Browser, config: Path, origin: str | None) -> None:
    """With the session's cookie and even its form's token: what SameSite and the form would each stop alone."""
    assert inside.say("approve", origin).status_code == 403
    assert approval_of(journal(config), STUDY.digest()) is None


def test_a_form_without_the_sessions_token_approves_nothing(inside: Browser, config: Path) -> None:
    for token in ("", "x", Door(PORT).form_token):
        assert inside.say("approve", **{FORM_FIELD: token}).status_code == 403
    assert approval_of(journal(config), STUDY.digest()) is None


def test_another_user_of_the_machine_approves_nothing(config: Path, door: Door) -> None:
    """A user with neither the token nor the cookie, whatever else it says."""
    stranger = Browser(config, door)
    door.enter(door.token)
    for word in ("approve", "leave"):
        assert stranger.say(word).status_code == 403
    assert stranger.get(f"/studies/{STUDY.name}").status_code == 403
    assert approval_of(journal(config), STUDY.digest()) is None
    assert journal(config).left is None


def test_more_than_a_form_is_not_read(inside: Browser) -> None:
    assert inside.say("approve", reason="x" * 20_000).status_code == 413
    unsized = inside.post(f"/studies/{STUDY.name}/approve", content=_piece(), headers={"origin": ORIGIN})
    assert unsized.status_code == 413


# --- words ------------------------------------------------------------------------------------------------------------


def test_a_yes_is_kept_with_name_reason_and_digest(inside: Browser, config: Path) -> None:
    assert "waits for your yes or no" in inside.get("/").text
    assert "two halves that look random" in inside.get(f"/studies/{STUDY.name}").text
    sent = inside.say("approve")
    assert (sent.status_code, sent.headers["location"]) == (303, f"/studies/{STUDY.name}")
    word = present(approval_of(journal(config), STUDY.digest()))
    assert (word.approved, word.person, word.reason, word.study_digest) == (True, "Dr. A", "permit 7", STUDY.digest())
    after = inside.get(f"/studies/{STUDY.name}").text
    assert "Approve</button>" not in after
    assert "Leave this study" in after
    inside.say("leave", reason="over")
    assert journal(config).left == "Dr. A: over"


@pytest.mark.parametrize(
    ("fields", "said"),
    [({"digest": "0" * 64}, "is another one than was shown"), ({"person": " "}, "needs the name of the person")],
)
def test_a_word_is_on_what_was_shown_and_by_somebody(
    fields: dict[str, str], said: str, inside: Browser, config: Path
) -> None:
    sent = inside.say("approve", **fields)
    assert sent.status_code == 409
    assert said in sent.text
    assert approval_of(journal(config), STUDY.digest()) is None


def test_a_no_ends_it(inside: Browser, config: Path) -> None:
    inside.say("decline")
    word = present(approval_of(journal(config), STUDY.digest()))
    assert not word.approved
    assert "left by this site" in inside.get("/").text


def test_unknown_pages_studies_and_words(inside: Browser) -> None:
    assert inside.get("/nowhere").status_code == 404
    assert "knows no study" in inside.get("/studies/other").text
    odd = inside.say("delete")
    assert odd.status_code == 404
    assert inside.get("/static/door.py").status_code in (403, 404)
    assert inside.post("/login", headers={"origin": ORIGIN}).status_code == 405


# --- page address -----------------------------------------------------------------------------------------------------


def test_who_opens_the_address_at_once_is_not_turned_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The page itself may take a moment: it is not serving yet when its address stands in the terminal."""
    connected: list[bool] = []

    def begins_late(config: object) -> Any:
        printed = present(re.search(r"http://127\.0\.0\.1:(\d+)/login", capsys.readouterr().out))
        with socket.create_connection(("127.0.0.1", int(printed[1])), timeout=5.0):
            connected.append(True)
        return SimpleNamespace(run=lambda sockets: [one.close() for one in sockets])

    monkeypatch.setattr(app, "make_page", lambda settings, door, look: None)
    monkeypatch.setattr("uvicorn.Server", begins_late)
    settings: Any = SimpleNamespace(state_dir=tmp_path)
    app.serve_page(settings, 0, lambda: pytest.fail("nobody looks"))
    assert connected == [True]
