"""A server's status: who may ask, what is said and how it is printed, and what it never holds."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import sqlite3
import stat
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from typer.testing import CliRunner

from harness.federation.in_memory_federation import InMemoryFederation
from harness.federation.learners import EROSION, light_learner, light_sites, light_study
from harness.federation.processes import FederationSpec
from protocol.errors import ConfigurationError, ErrorCode, Unavailable, UnknownStudy
from protocol.messages.control import StudyState, sign
from protocol.messages.paths import STUDIES
from protocol.policy.site_policy import SitePolicy
from protocol.sharing import Side
from servers import cli
from servers.app import create_operations
from servers.cli import app as command
from servers.cli import status_lines
from servers.problems import FIXES
from servers.server import Server
from servers.settings import load_settings
from servers.status import (
    Readiness,
    Status,
    StudyStatus,
    make_token,
    proof,
    read_token,
    status_of,
    status_of_stopped,
)
from servers.store.records import StudyRecord
from tests.integration.agents import rounds_of
from tests.kit.in_process import opened_server
from tests.kit.present import present
from tests.ports import free_ports
from tests.unit.client_agent.federation import REQUESTER, keys, study

SITES = ("c0", "c1", "c2", "c3")
TOKEN = "status-token"


class Operator:
    """Asks the operator's port on the server's own event loop."""

    def __init__(self, federation: InMemoryFederation, side: Side) -> None:
        self.app: FastAPI = federation.servers.apps[side]
        self.server: Server = self.app.state.server
        self._loop = federation.servers.loop
        self._transport = httpx.ASGITransport(create_operations(self.app))

    def get(self, path: str, **more: Any) -> httpx.Response:
        return asyncio.run_coroutine_threadsafe(self._ask(path, more), self._loop).result(60)

    def status(self, study: str | None = None) -> httpx.Response:
        given = {"authorization": f"Bearer {proof(read_token(self.server.settings.data_dir), int(time.time()))}"}
        return self.get("/status", headers=given, params={} if study is None else {"study": study})

    def seen(self, study: str | None = None) -> Status:
        return Status.model_validate_json(self.status(study).content)

    def printed(self, study: str | None = None) -> str:
        return "\n".join(status_lines(self.seen(study), in_full=study is not None))

    async def _ask(self, path: str, more: dict[str, Any]) -> httpx.Response:
        async with httpx.AsyncClient(transport=self._transport, base_url="http://127.0.0.1:9443") as client:
            return await client.get(path, **more)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InMemoryFederation]:
    """After two rounds of a study that goes on; one site never came."""
    policy = SitePolicy(least_isolation=0.0, least_contributors=2)
    spec = FederationSpec("status", SITES[0], light_sites(SITES, policy), seed=5, ports=free_ports())
    with InMemoryFederation(spec, tmp_path_factory.mktemp("status"), light_learner) as running:
        planned = light_study(running.parties, "seen", EROSION, rounds=50)
        least = planned.parameters.model_copy(update={"least_contributors": 2})
        asks = running.config(SITES[0])
        asks.write_text(f"start_when = 2\n{asks.read_text()}")
        running.start(*SITES[:3])
        running.hand_in(planned.model_copy(update={"parameters": least}))
        running.until("two rounds", lambda: len(rounds_of(running, SITES[0], "seen")) >= 2, within_s=20_000)
        running.stop_agents()
        yield running


@pytest.fixture
def operator(federation: InMemoryFederation) -> Operator:
    return Operator(federation, Side.A)


def moment(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


# --- who may ask ------------------------------------------------------------------------------------------------------


def test_only_who_can_read_the_token_is_answered(operator: Operator) -> None:
    path = operator.server.settings.data_dir / TOKEN
    token = read_token(path.parent)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(token) == 64
    assert operator.status().status_code == 200
    now_s = int(time.time())
    right, late = proof(token, now_s), proof(token, now_s - 3600)
    wrong = (token, f"{now_s}.{'0' * 64}", late, right[:-1], "9" * 400, "²." + token)
    for given in ("", "Bearer ", *(f"Bearer {one}" for one in wrong), "Bearer \xe4"):
        refused = operator.get("/status", headers={"authorization": given.encode("latin-1")})
        assert (refused.status_code, refused.content) == (401, b"")
    assert operator.get("/status").status_code == 401
    for content, mode in (("", 0o600), (token, 0o644)):
        path.write_text(content)
        path.chmod(mode)
        try:
            refused = operator.status() if content == "" else operator.get("/status")
            assert (refused.status_code, refused.content) == (401, b"")
        finally:
            path.write_text(token)
            path.chmod(0o600)
    assert Operator.get(operator, "/status", headers={"authorization": f"Bearer {right}"}).status_code == 200


def test_another_start_keeps_the_token(federation: InMemoryFederation, operator: Operator) -> None:
    """Several processes of one server share it."""
    token = read_token(operator.server.settings.data_dir)
    Operator(federation, Side.A)
    assert read_token(operator.server.settings.data_dir) == token


def test_an_empty_token_is_made_again_and_processes_that_begin_at_once_agree(tmp_path: Path) -> None:
    (tmp_path / TOKEN).touch(0o600)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(make_token, [tmp_path] * 32))
    assert len(read_token(tmp_path)) == 64


def test_metrics_and_readiness_need_no_token(operator: Operator) -> None:
    """Prometheus asks by a name and has no token."""
    for path in ("/metrics", "/healthz"):
        assert operator.get(path, headers={"host": "server:9443"}).status_code == 200


# --- what is said -----------------------------------------------------------------------------------------------------


def test_studies_sites_and_rounds_are_shown(operator: Operator) -> None:
    said = operator.printed()
    assert "peer operator-b: heard of " in said
    assert re.search(r"kept: \d+ shares \(", said)
    assert re.search(r"^seen: \w+, 50 rounds of \d+ parameters$", said, re.MULTILINE)
    assert operator.server.chain.head_digest in said
    (seen,) = operator.seen("seen").studies
    assert seen.digest == operator.server.store.studies()[0].digest
    assert [site.name for site in seen.sites] == list(SITES)
    assert len([one for one in seen.attempts if one.seconds is not None]) >= 2
    said = operator.printed("seen")
    assert "c0 (asks): ready" in said
    assert re.search(r"round 1: released, began .* UTC, \d+\.\d s; contributed: c0, c1, c2", said)
    missing = operator.status("other")
    assert missing.status_code == 404
    assert "this server has no study 'other'" in missing.json()["detail"]


def test_who_is_awaited_since_when_is_named(operator: Operator) -> None:
    store = operator.server.store
    (record,) = store.studies()
    created = present(store.created_at_s(record.digest))
    assert f"c3 since {moment(created)}" in operator.printed()
    (row,) = re.findall(r"  c3: .*", operator.printed("seen"))
    assert f"awaited: to say that it is ready since {moment(created)}" in row


def test_refusals_are_shown_with_what_to_do(operator: Operator) -> None:
    operator.server.metrics.refusals.labels(ErrorCode.TRANSCRIPT_MISMATCH.value).inc()
    operator.server.recent.note_refusal(ErrorCode.TRANSCRIPT_MISMATCH, "they say \x1b[2J different things")
    said = operator.printed()
    assert f"  1 times transcript_mismatch: {FIXES[ErrorCode.TRANSCRIPT_MISMATCH]}" in said
    assert f"ALARM 1 times transcript_mismatch since the start\n     -> {FIXES[ErrorCode.TRANSCRIPT_MISMATCH]}" in said
    assert " different things" in said
    assert "\x1b" not in said


def test_what_strangers_wrote_is_printable_in_the_json_too(operator: Operator) -> None:
    operator.server.recent.note_refusal(ErrorCode.BAD_SIGNATURE, "a\x9b2J\u202eb" + "c" * 1000)
    newest = operator.seen().last_refused[0].detail
    assert newest.isprintable()
    assert len(newest) <= 300


@pytest.mark.parametrize("path", ["/nothing-here", "/docs/nothing"])
def test_an_address_that_does_not_exist_is_counted_and_takes_no_place_of_a_refusal(
    operator: Operator, path: str
) -> None:
    operator.server.recent.note_refusal(ErrorCode.CORRELATION_REUSED, "to be seen")
    counted = operator.server.metrics.refusals.labels(ErrorCode.UNKNOWN_RESOURCE.value)._value.get()
    for _ in range(60):
        assert operator.get(path).status_code == 404
    assert operator.server.metrics.refusals.labels(ErrorCode.UNKNOWN_RESOURCE.value)._value.get() == counted + 60
    assert operator.server.recent.refused[0].detail == "to be seen"


def test_between_two_studies_others_have_their_turn(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    (seen,) = operator.seen().studies
    turns, at_turn = [0], list[int]()

    def study(*given: object) -> StudyStatus:
        at_turn.append(turns[0])
        return seen

    async def others() -> None:
        while len(at_turn) < 20:
            turns[0] += 1
            await asyncio.sleep(0)

    record = operator.server.store.study(seen.digest)
    monkeypatch.setattr("servers.status._chosen", lambda *given: [(record, 0)] * 20)
    monkeypatch.setattr("servers.status._study", study)
    others_in_turn = asyncio.run_coroutine_threadsafe(others(), operator._loop)
    assert len(operator.seen().studies) == 20
    others_in_turn.result(60)
    assert len(set(at_turn)) == 20


def test_what_looks_through_all_contributions_does_not_hold_the_event_loop(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, int]] = []

    def watched(name: str) -> None:
        ask = getattr(operator.server.store, name)

        def noted(*given: object) -> object:
            asked.append((name, threading.get_ident()))
            return ask(*given)

        monkeypatch.setattr(operator.server.store, name, noted)

    names = ("last_contributed", "kept", "size_bytes")
    for name in names:
        watched(name)
    seen = asyncio.run(status_of(operator.app, NothingMissing(operator.app), "seen"))  # the federation's loop has none
    assert seen.studies[0].sites[1].last_round is not None
    assert {name for name, _ in asked} == set(names)
    assert threading.get_ident() not in {thread for _, thread in asked}


class NothingMissing(Readiness):
    async def look(self, within_s: float) -> None:
        return


def test_a_wrong_method_is_answered_with_the_right_ones(operator: Operator) -> None:
    async def asked(app: FastAPI, path: str) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:9443") as client:
            return await client.patch(path)

    for app, path, allowed in (
        (operator.app, STUDIES, "GET, POST"),
        (operator.app, "/healthz", "GET"),
        (create_operations(operator.app), "/status", "GET"),
        (create_operations(operator.app), "/docs", "GET, HEAD"),
    ):
        refused = asyncio.run_coroutine_threadsafe(asked(app, path), operator._loop).result(60)
        assert (refused.status_code, refused.headers["allow"]) == (405, allowed)
        assert refused.json()["code"] == ErrorCode.UNKNOWN_RESOURCE


def test_every_code_has_a_next_step() -> None:
    assert set(FIXES) == set(ErrorCode)


def test_a_clock_that_is_off_and_a_peer_that_is_away_are_alarms(operator: Operator) -> None:
    peer = operator.server.recent.peer
    before = peer.ahead_s
    try:
        peer.ahead_s = 40.0
        assert "ALARM this clock is 40 s ahead of the other server" in operator.printed()
        peer.ahead_s = -7.0
        assert "let NTP set both clocks" in operator.printed()
    finally:
        peer.ahead_s = before


# --- another program on the port --------------------------------------------------------------------------------------


def test_no_more_is_read_than_a_server_answers_and_no_time_is_beyond_printing(
    operator: Operator, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strange = operator.seen().model_copy(update={"certificate_ends_s": 1e300})
    assert "certificate: ends 1e+300 s after 1970" in "\n".join(status_lines(strange, in_full=False))
    monkeypatch.setattr("servers.cli._MOST_ANSWER_BYTES", 1000)
    settings = load_settings(config)
    settings.data_dir.mkdir(parents=True)
    make_token(settings.data_dir)
    taken = list[int]()

    class Endless(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):
                while sum(taken) < 2**30:
                    taken.append(self.wfile.write(bytes(2**16)))

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer((settings.operations_host, settings.operations), Endless) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        try:
            with pytest.raises(Unavailable, match="more than 1000 bytes"):
                cli._asked(settings, None)
        finally:
            other.shutdown()
    assert sum(taken) < 2**30


def test_without_a_server_the_database_is_read_and_looking_makes_nothing(config: Path) -> None:
    settings = load_settings(config)
    with pytest.raises(
        ConfigurationError, match=r"key 'data_dir': the folder .* does not exist: either 'moiety server"
    ):
        status_of_stopped(settings, 0.0)
    settings.data_dir.mkdir(parents=True)
    assert status_of_stopped(settings, 0.0).studies == ()
    assert not (settings.data_dir / "server.db").exists()
    said = CliRunner().invoke(command, ["status", "--config", str(config)]).stdout
    assert "-> start it with 'moiety server run'" in said
    assert "no study is at this server\n" in said
    signed = sign(study(), REQUESTER, keys(REQUESTER).signing)
    digest = signed.message.digest()
    with opened_server(config) as server:
        server.store.add_study(StudyRecord(digest, signed, StudyState.PAUSED, "the requester is \x1b[2Jaway\u202e", 1))
        server.store.add_ready(digest, "c1")
    (seen,) = status_of_stopped(settings, 0.0).studies
    assert (seen.name, seen.state, seen.ready, seen.round) == ("unit", "paused", ("c1",), None)
    with pytest.raises(UnknownStudy):
        status_of_stopped(settings, 0.0, "other")
    shown = CliRunner().invoke(command, ["status", "--config", str(config)]).stdout
    assert "unit: paused (the requester is " in shown
    assert "\x1b" not in shown
    whole = CliRunner().invoke(command, ["status", "--config", str(config), "--json"]).stdout
    assert json.loads(whole)["studies"][0]["digest"] == digest
    assert whole.isascii(), "nothing turns the direction of writing"


# --- what it never holds ----------------------------------------------------------------------------------------------


def test_no_status_holds_what_a_share_commitment_mask_or_secret_is(
    federation: InMemoryFederation, operator: Operator
) -> None:
    """Everything in the database and the key file that is no name, state, number or time, in hex and in base64."""
    held = set(_secrets(operator.server))
    assert len(held) > 40
    for side in Side:
        asks = Operator(federation, side)
        for text in (asks.status().text, asks.status("seen").text):
            for value in held:
                assert value not in text, value[:12]
            assert "numerator" not in text
            assert str(asks.server.settings.database) not in text
            assert read_token(asks.server.settings.data_dir) not in text


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
