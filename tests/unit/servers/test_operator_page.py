"""An operator's page: who may come in, what others can do (nothing), what it shows, and what it never holds."""

from __future__ import annotations

import asyncio
import base64
import re
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from typer.testing import CliRunner

from harness.federation.memory.federation import InMemoryFederation
from harness.federation.memory.learners import EROSION, light_learner, light_sites, light_study
from harness.federation.processes import FederationSpec
from host.web_page.guard import FORM_FIELD, form_token
from host.web_page.pages import moment
from protocol.errors import ConfigurationError, ErrorCode
from protocol.policy.site_policy import SitePolicy
from protocol.sharing import Side
from protocol.wire.chain.chain import signers
from protocol.wire.chain.making import Wanted
from servers.app import create_operations
from servers.cli import app as command
from servers.page.door import GUESSES_S, MOST_GUESSES, SESSION_S, Door, TooManyGuesses, own_origin
from servers.page.fixes import FIXES
from servers.page.password import FILE, kept_password, make_password
from servers.server import Server
from tests.integration.agents import rounds_of
from tests.integration.roster_changes import signed_by_all
from tests.ports import free_ports

ORIGIN = "http://127.0.0.1:9443"
SITES = ("c0", "c1", "c2", "c3")
PAGES = ("/page/", "/page/now", "/page/roster", "/page/refused", "/page/studies/seen", "/page/studies/seen/now")


class Browser:
    """Asks the operator's port on the server's own event loop, and keeps its cookies."""

    def __init__(self, federation: InMemoryFederation, side: Side) -> None:
        self.app: FastAPI = federation.servers.apps[side]
        self.server: Server = self.app.state.server
        self.password = make_password(self.server.settings.data_dir)
        self._loop = federation.servers.loop
        self._transport = httpx.ASGITransport(create_operations(self.app))
        self.cookies = httpx.Cookies()

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self._wait("GET", path, more)

    def post(self, path: str, **more: Any) -> httpx.Response:
        return self._wait("POST", path, {"headers": {"origin": ORIGIN}, **more})

    def log_in(self, password: str | None = None) -> httpx.Response:
        return self.post("/page/login", data={"password": password or self.password})

    @property
    def cookie(self) -> str:
        return self.cookies.get("moiety-operator-a", path="/page") or ""

    def _wait(self, method: str, path: str, more: dict[str, Any]) -> httpx.Response:
        return asyncio.run_coroutine_threadsafe(self._ask(method, path, more), self._loop).result(60)

    async def _ask(self, method: str, path: str, more: dict[str, Any]) -> httpx.Response:
        async with httpx.AsyncClient(transport=self._transport, base_url=ORIGIN, cookies=self.cookies) as client:
            answer = await client.request(method, path, **more)
            self.cookies = httpx.Cookies(client.cookies)
            return answer


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InMemoryFederation]:
    """After two rounds of a study that goes on; one site never came."""
    policy = SitePolicy(least_isolation=0.0, least_contributors=2)
    spec = FederationSpec("page", SITES[0], light_sites(SITES, policy), seed=5, ports=free_ports())
    with InMemoryFederation(spec, tmp_path_factory.mktemp("page"), light_learner) as running:
        study = light_study(running.parties, "seen", EROSION, rounds=50)
        least = study.parameters.model_copy(update={"least_contributors": 2})
        asks = running.config(SITES[0])
        asks.write_text(f"start_when = 2\n{asks.read_text()}")
        running.start(*SITES[:3])
        running.hand_in(study.model_copy(update={"parameters": least}))
        running.until("two rounds", lambda: len(rounds_of(running, SITES[0], "seen")) >= 2, within_s=20_000)
        running.stop_agents()
        yield running


@pytest.fixture
def outside(federation: InMemoryFederation) -> Browser:
    return Browser(federation, Side.A)


@pytest.fixture
def inside(outside: Browser) -> Browser:
    assert outside.log_in().headers["location"] == "/page/"
    return outside


# --- the door ---------------------------------------------------------------------------------------------------------


def test_the_password_opens_and_its_cookie_is_the_pages_alone(outside: Browser) -> None:
    for path in PAGES:
        refused = outside.get(path)
        assert (refused.status_code, refused.headers["location"]) == (303, "/page/login")
    assert outside.log_in("x").status_code == 403
    came = outside.log_in()
    said = came.headers["set-cookie"].lower()
    assert all(part in said for part in ("httponly", "samesite=strict", "path=/page"))
    for path in PAGES:
        assert outside.get(path).status_code == 200, path
    left = outside.post("/page/logout", data={FORM_FIELD: form_token(outside.cookie)})
    assert left.headers["location"] == "/page/login"
    assert outside.get("/page/").status_code == 303


def test_a_new_password_ends_every_session(inside: Browser) -> None:
    old, inside.password = inside.password, make_password(inside.server.settings.data_dir)
    assert inside.get("/page/").status_code == 303
    assert inside.log_in(old).status_code == 403
    assert inside.log_in().status_code == 303


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:9443", "127.0.0.1.evil.example", "me@127.0.0.1", "", "["]
)
def test_a_name_that_can_lead_here_is_answered_by_nothing(inside: Browser, host: str) -> None:
    for path in (*PAGES, "/page/login", "/page/static/page.js"):
        assert inside.get(path, headers={"host": host}).status_code == 421
    assert own_origin(host) is None


@pytest.mark.parametrize("host", ["127.0.0.1:9443", "localhost:1234", "[::1]:9443", "10.2.0.7:9443"])
def test_an_address_or_localhost_is_a_way_to_the_page(host: str) -> None:
    assert own_origin(host) == f"http://{host}"


@pytest.mark.parametrize(
    "origin", [None, "null", "https://evil.example", "http://127.0.0.1:9999", "https://127.0.0.1:9443"]
)
def test_another_page_logs_nobody_in_or_out(inside: Browser, origin: str | None) -> None:
    headers = {} if origin is None else {"origin": origin}
    for path, form in (("login", {"password": inside.password}), ("logout", {FORM_FIELD: form_token(inside.cookie)})):
        assert inside.post(f"/page/{path}", data=form, headers=headers).status_code == 403
    assert inside.get("/page/").status_code == 200


def test_a_form_without_the_sessions_token_ends_no_session(inside: Browser) -> None:
    for token in ("", "x", form_token("another")):
        assert inside.post("/page/logout", data={FORM_FIELD: token}).status_code == 403
    assert inside.get("/page/").status_code == 200


def test_more_than_a_form_is_not_read(outside: Browser) -> None:
    assert outside.post("/page/login", data={"password": "x" * 20_000}).status_code == 413


def test_guesses_are_counted_and_end_for_everybody_for_a_while(tmp_path: Path) -> None:
    now = [1000.0]
    door = Door(tmp_path, lambda: now[0])
    with pytest.raises(ConfigurationError, match="page-password"):
        door.enter("x")
    password = make_password(tmp_path)
    for _ in range(MOST_GUESSES):
        assert door.enter("x") is None
    with pytest.raises(TooManyGuesses, match="try again in 60 s"):
        door.enter(password)
    now[0] += GUESSES_S
    cookie = door.enter(password)
    assert door.knows(cookie)
    now[0] += SESSION_S
    assert not door.knows(cookie)


def test_a_password_is_kept_as_a_hash_that_nobody_else_may_read(tmp_path: Path) -> None:
    password = make_password(tmp_path)
    path = tmp_path / FILE
    assert password not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    kept = kept_password(tmp_path)
    assert kept is not None
    assert kept.is_of(password)
    assert not kept.is_of(password[:-1])
    path.write_text("{}")
    with pytest.raises(ConfigurationError, match="make a new password"):
        kept_password(tmp_path)


def test_the_command_makes_one_and_says_where_the_page_is(federation: InMemoryFederation) -> None:
    config = federation.config("operator-a")
    said = CliRunner().invoke(command, ["page-password", "--config", str(config)]).stdout
    password = said.splitlines()[0].rpartition(" ")[2]
    kept = kept_password(federation.servers.apps[Side.A].state.server.settings.data_dir)
    assert kept is not None
    assert kept.is_of(password)
    assert "/page/" in said


def test_metrics_and_readiness_stay_as_they_were(outside: Browser) -> None:
    """Prometheus asks by a name and logs in nowhere."""
    for path in ("/metrics", "/healthz"):
        assert outside.get(path, headers={"host": "server:9443"}).status_code == 200


def test_every_answer_forbids_frames_other_origins_and_caches(inside: Browser) -> None:
    for path in (*PAGES, "/page/login", "/page/nowhere", "/page/static/page.css"):
        headers = inside.get(path).headers
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["cache-control"] == "no-store"


# --- what is shown ----------------------------------------------------------------------------------------------------


def test_studies_sites_and_rounds_are_shown(inside: Browser) -> None:
    now = inside.get("/page/").text
    assert '<a href="/page/studies/seen">seen</a>' in now
    assert "operator-b" in now
    assert "shares kept" in now
    study = inside.get("/page/studies/seen").text
    assert inside.server.store.studies()[0].digest in study
    for site in SITES:
        assert site in study
    seconds = re.findall(r'<td class="number">(\d+\.\d)</td>', study)
    assert len(seconds) >= 2
    assert "c0, c1, c2" in study
    assert inside.server.roster.digest() in inside.get("/page/roster").text
    assert inside.get("/page/studies/other").status_code == 404


def test_changes_of_the_roster_are_shown_with_who_signed(
    federation: InMemoryFederation, inside: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "None: the first roster holds." in inside.get("/page/roster").text
    first = inside.server.chain
    chain = first.extended_by(signed_by_all(federation, first, Wanted(remove=("c3",))))
    monkeypatch.setattr(inside.server, "chain", chain)
    text = inside.get("/page/roster").text
    assert "Change 1: a test" in text
    assert "c3 is removed: its requests are refused" in text
    assert f"Signed by {', '.join(signers(chain.rosters[0]))}." in text
    assert text.count(chain.head_digest) == 2


def test_who_is_awaited_since_when_is_named(inside: Browser) -> None:
    store = inside.server.store
    (record,) = store.studies()
    created = store.created_at_s(record.digest)
    assert created is not None
    (row,) = re.findall(
        r"<tr class=\"waits\"><th scope=\"row\">c3</th>.*?</tr>", inside.get("/page/studies/seen/now").text
    )
    assert f"to say that it is ready, since {moment(created)}" in row
    assert f"c3 since {moment(created)}" in inside.get("/page/now").text


def test_refusals_are_shown_with_what_to_do(inside: Browser) -> None:
    inside.server.metrics.refusals.labels(ErrorCode.TRANSCRIPT_MISMATCH.value).inc()
    inside.server.recent.note_refusal(ErrorCode.TRANSCRIPT_MISMATCH, "they say <b>different</b> things")
    text = inside.get("/page/refused").text
    assert FIXES[ErrorCode.TRANSCRIPT_MISMATCH] in text
    assert "they say &lt;b&gt;different&lt;/b&gt; things" in text
    assert "1 times transcript_mismatch" in inside.get("/page/now").text


def test_every_code_has_a_next_step() -> None:
    assert set(FIXES) == set(ErrorCode)


def test_a_clock_that_is_off_and_a_peer_that_is_away_are_alarms(inside: Browser) -> None:
    peer = inside.server.recent.peer
    before = peer.ahead_s
    try:
        peer.ahead_s = 40.0
        assert "this clock is 40 s ahead of the other server" in inside.get("/page/now").text
        peer.ahead_s = -7.0
        assert "let NTP set both clocks" in inside.get("/page/now").text
    finally:
        peer.ahead_s = before


# --- what it never holds ----------------------------------------------------------------------------------------------


def test_no_page_holds_what_a_share_commitment_mask_or_secret_is(
    federation: InMemoryFederation, inside: Browser
) -> None:
    """Everything in the database and the key file that is no name, state, number or time, in hex and in base64."""
    held = set(_secrets(inside.server))
    assert len(held) > 40
    for side in Side:
        browser = Browser(federation, side)
        browser.log_in()
        for path in PAGES:
            text = browser.get(path).text
            for value in held:
                assert value not in text, (path, value[:12])
            assert "numerator" not in text
            assert str(browser.server.settings.database) not in text


def _secrets(server: Server) -> Iterator[str]:
    database = sqlite3.connect(server.settings.data_dir / "server.db")
    columns = {
        "rounds": (
            "own_nonce",
            "mask_seed",
            "tag_seed",
            "peer_commitment",
            "query_digest",
            "query_file",
            "output_file",
        ),
        "contributions": ("body_digest", "file"),
        "mail": ("body_digest", "file"),
    }
    for table, names in columns.items():
        for name in names:
            for (value,) in database.execute(f"SELECT {name} FROM {table} WHERE {name} IS NOT NULL"):
                yield from _shown(value)
    for name in ("header", "receipt"):
        for (value,) in database.execute(f"SELECT {name} FROM contributions"):
            yield from re.findall(r"[0-9a-f]{128}|[0-9a-f]{64}(?=\",\"commitment)|[\w-]{86}", value.decode())
    database.close()
    yield from re.findall(r'"([^"]{30,})"', server.settings.keys.read_text())


def _shown(value: bytes | str) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    else:
        yield value.hex()
        yield base64.b64encode(value).decode().rstrip("=")
