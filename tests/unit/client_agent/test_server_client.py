"""Signed requests and sessions: retries, errors mapped back to the tree."""

from __future__ import annotations

import hashlib
import itertools
import json
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from unittest.mock import Mock

import httpx
import pytest
import stamina

from client_agent.net import server_client
from client_agent.net.envelopes import Body, HeldSession, SessionKeeper
from client_agent.net.exchange import asked_pause_s, problem_to_error
from client_agent.net.server_client import RetryPolicy, ServerClient
from host.clock import SystemClock
from host.randomness import SystemRandomness
from protocol import errors
from protocol.channel.encoding import KEPT
from protocol.channel.session import MOST_BACK, SessionGrant, SessionOffer, granted
from protocol.channel.signing import DigestField, digest_value
from protocol.errors import ErrorCode, MalformedMessage, MoietyError, RefusedMessage, Unavailable
from protocol.messages import paths
from protocol.messages.control import (
    MAX_CONTROL_BYTES,
    HeldUpload,
    Receipt,
    Signed,
    Study,
    StudyView,
    countersign,
    sign,
)
from protocol.sharing import Side
from tests.kit.present import present
from tests.unit.client_agent.enveloped import NOW, Handler, Opened, closed, enveloped, opened
from tests.unit.client_agent.federation import DIGEST, ROSTER, keys, operator_keys, study, study_view

# --- server client ----------------------------------------------------------------------------------------------------


def client(handler: Handler, attempts: int = 3) -> ServerClient:
    retry = RetryPolicy(attempts=attempts, first_wait_s=0.0, longest_wait_s=0.001)
    transport = httpx.MockTransport(enveloped(handler))
    return ServerClient(Side.A, ROSTER.operator_a, keys("c1"), transport, retry=retry, clock=lambda: float(NOW))


@pytest.fixture(autouse=True)
def _quiet() -> None:
    stamina.instrumentation.set_on_retry_hooks(())


def view() -> StudyView:
    return study_view(cursor=7)


def viewed(asked: Opened) -> httpx.Response:
    """The study's view, in an answer to this request."""
    return closed(asked, operator_keys(Side.A), httpx.Response(200, content=view().canonical()))


def raw(transport: Handler, attempts: int = 3) -> ServerClient:
    """A client whose transport sees what is sent as it is."""
    made = client(lambda request: httpx.Response(500), attempts)
    made._way._transport = httpx.MockTransport(transport)
    return made


def test_every_request_is_signed_and_in_an_envelope() -> None:
    """All go to one address; neither names nor what is asked are readable in them."""
    seen: list[Opened] = []
    server = operator_keys(Side.A)

    def answer(request: httpx.Request) -> httpx.Response:
        asked = opened(request, server)
        seen.append(asked)
        assert not any(name in request.read() for name in (b"unit", b"view", b"studies"))
        assert f'keyid="{keys("c1").key_id}"' in request.headers["signature-input"]
        if asked.request.method == "POST":
            own = Signed[Study].parse(asked.request.read())
            return closed(
                asked, server, httpx.Response(201, content=countersign(own, server.name, server.signing).canonical())
            )
        assert str(asked.request.url).endswith("/v1/studies/unit/view?after=3&wait_s=20")
        return viewed(asked)

    sites = raw(answer)
    made = sites.create_study(sign(study(), "r0", keys("r0").signing))
    assert [s.signer for s in made.signatures] == ["r0", ROSTER.operator_a.name]
    assert sites.view("unit", 3, 20.0) == view()
    assert len({entry.verified.nonce for entry in seen}) == 2
    assert {entry.caller.name for entry in seen} == {"c1"}
    for entry in seen:
        assert entry.enclosed.body_digest == hashlib.sha256(entry.request.read()).hexdigest()
    sites.close()


@pytest.mark.parametrize(("length", "enclosed_bytes"), [(2**20, 2**20), (1000 * 2**14, 2**12)])
def test_queries_for_a_thousand_sites_follow_an_envelope_as_long_as_a_server_takes(
    length: int, enclosed_bytes: int
) -> None:
    """16 kB a site: in an envelope those for 300 were more than any server takes of a site."""
    seen: list[tuple[int, int, str]] = []
    server = operator_keys(Side.A)
    data = bytes(range(256)) * (length // 256)

    def answer(request: httpx.Request) -> httpx.Response:
        asked = opened(request, server)
        body = asked.request.read()
        seen.append((asked.enclosed.enclosed_bytes, len(body), hashlib.sha256(body).hexdigest()))
        return closed(asked, server, httpx.Response(204))

    raw(answer).send_queries("unit", 1, 1, Body.sealed(data))
    assert seen == [(enclosed_bytes, length, hashlib.sha256(data).hexdigest())]
    assert enclosed_bytes <= MAX_CONTROL_BYTES


def test_a_server_that_is_away_is_asked_again_with_a_fresh_nonce() -> None:
    nonces: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked = opened(request, operator_keys(Side.A))
        nonces.append(asked.verified.nonce)
        if len(nonces) == 1:
            raise httpx.ConnectError("down")
        if len(nonces) == 2:
            return httpx.Response(503, content=b"busy")
        return viewed(asked)

    assert raw(answer).view("unit").cursor == 7
    assert len(set(nonces)) == 3


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("0", 0.0),
        ("7", 7.0),
        ("999999999999", 60.0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        (format_datetime(datetime.fromtimestamp(NOW + 20, UTC), usegmt=True), 20.0),
        ("soon", None),
        ("-5", None),
        (None, None),
    ],
)
def test_whoever_asks_for_a_pause_gets_it_within_reason(header: str | None, seconds: float | None) -> None:
    assert asked_pause_s(header, float(NOW)) == seconds


def test_a_retry_after_is_waited_for_and_without_one_waits_grow_and_differ() -> None:
    """Waits are read from the library's hooks; nobody waits here."""
    waits: list[float] = []
    stamina.instrumentation.set_on_retry_hooks([lambda details: waits.append(details.wait_for)])
    answers = iter([httpx.Response(503, headers={"Retry-After": "0"}), httpx.Response(429), httpx.Response(502)])

    def answer(request: httpx.Request) -> httpx.Response:
        return next(answers, None) or viewed(opened(request, operator_keys(Side.A)))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("time.sleep", lambda seconds: None)
        sites = raw(answer, attempts=4)
        sites._retry = RetryPolicy(attempts=4, first_wait_s=0.5, longest_wait_s=3.0)
        assert sites.view("unit").cursor == 7
    assert waits[0] == 0.0
    assert 0.5 < waits[1] <= 3.0
    assert 1.0 < waits[2] <= 3.0
    assert len({waits[1] % 0.5, waits[2] % 0.5}) == 2  # jitter


@pytest.mark.parametrize("status", [502, 503, 504, 507])
def test_it_gives_up_after_its_attempts(status: int) -> None:
    answer = Mock(return_value=httpx.Response(status))
    with pytest.raises(Unavailable, match=f"answered {status}"):
        client(answer, attempts=4).view("unit")
    assert answer.call_count == 4


@pytest.mark.parametrize(
    ("status", "code", "refusal"), [(403, "not_listed", errors.NotListed), (413, "too_large", errors.TooLarge)]
)
def test_a_refusal_that_the_server_signed_is_not_repeated(status: int, code: str, refusal: type[MoietyError]) -> None:
    """Also where it says what the client says itself of an answer of which nobody signed the length."""
    problem = {"code": code, "detail": "this is why"}
    answer = Mock(return_value=httpx.Response(status, content=json.dumps(problem).encode()))
    with pytest.raises(refusal, match="this is why"):
        client(answer).view("unit")
    assert answer.call_count == 1


def test_a_file_is_streamed_up_and_an_answer_streamed_down(tmp_path: Path) -> None:
    content = bytes(range(256)) * 4000
    path = tmp_path / "share"
    path.write_bytes(content)
    stored: list[bytes] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "PUT":
            stored.append(request.read())
            return httpx.Response(200)
        assert str(request.url).endswith("/mail/checkpoint-0/every-site?sender=r0")
        digest = digest_value(DigestField.CONTENT, hashlib.sha256(content).digest())
        return httpx.Response(200, headers={"content-digest": digest}, content=stored[0])

    server = client(answer)
    server.put_mail("unit", "checkpoint-0", "every-site", Body.file(path, hashlib.sha256(content).digest()))
    server.fetch_mail("unit", "checkpoint-0", "every-site", "r0", tmp_path / "down", len(content))
    assert stored == [content]
    assert (tmp_path / "down").read_bytes() == content
    assert not (tmp_path / "down.part").exists()


def test_an_answer_that_breaks_off_is_fetched_again() -> None:
    calls: list[int] = []

    class Torn(httpx.SyncByteStream):
        def __iter__(self):
            yield b"half"
            raise httpx.ReadError("cut")

    def answer(request: httpx.Request) -> httpx.Response:
        calls.append(1)
        digest = {"content-digest": digest_value(DigestField.CONTENT, hashlib.sha256(b"whole").digest())}
        if len(calls) == 1:
            return httpx.Response(200, headers=digest, stream=Torn())
        return httpx.Response(200, headers=digest, content=b"whole")

    taken: list[bytes] = []

    def take(pieces: Iterator[bytes]) -> int:
        taken.clear()
        taken.extend(pieces)
        return len(taken)

    assert client(answer).fetch_output("unit", 1, take, 5) == 1
    assert taken == [b"whole"]
    assert len(calls) == 2


def test_after_closing_nothing_is_sent() -> None:
    server = client(lambda request: httpx.Response(200, content=view().canonical()))
    server.close()
    with pytest.raises(Unavailable, match="is closed"):
        server.view("unit")


OF_ANOTHER = {
    *(ErrorCode.POLICY_REFUSAL, ErrorCode.CONFIGURATION, ErrorCode.UNUSABLE_UPDATE, ErrorCode.LOCAL_OPTIMUM),
    *(ErrorCode.PROTOCOL_VIOLATION, ErrorCode.CONSISTENCY_CHECK_FAILED, ErrorCode.CORRELATION_REUSED),
    *(ErrorCode.TRANSCRIPT_MISMATCH, ErrorCode.AGGREGATE_OUT_OF_BOUNDS, ErrorCode.SUM_FORGED, ErrorCode.SUM_ALTERED),
    *(ErrorCode.MODEL_DIVERGED, ErrorCode.SHARE_ALTERED),
}
"""Faults of this site, and ends of a study: nobody signs a problem, so it can stand for neither."""


@pytest.mark.parametrize("code", [code for code in ErrorCode if code not in OF_ANOTHER])
def test_a_refusal_and_a_reason_to_wait_come_back_as_their_class(code: ErrorCode) -> None:
    error = problem_to_error(400, json.dumps({"code": code.value, "detail": "why"}).encode(), "a")
    assert error.code is code
    assert type(error) not in (MoietyError, RefusedMessage)
    assert error.detail == "server 'a' answered 400: why"


@pytest.mark.parametrize("code", sorted(OF_ANOTHER))
def test_no_problem_ends_a_study_or_a_sites_part_in_it(code: ErrorCode) -> None:
    """A requester that takes 'local_optimum' from a proxy would complete its study; 'configuration' ends an agent."""
    assert type(problem_to_error(409, json.dumps({"code": code.value}).encode(), "a")) is RefusedMessage


def test_a_problem_nested_beyond_all_bounds_is_one_without_explanation() -> None:
    error = problem_to_error(400, b"[" * 16000, "a")
    assert type(error) is RefusedMessage
    assert error.detail == "server 'a' answered 400: no explanation"


@pytest.mark.parametrize("content", [b"", b"[]", b'{"code": 5}', b"<html>", b'{"code": "internal", "detail": "x"}'])
def test_an_unreadable_problem(content: bytes) -> None:
    assert type(problem_to_error(400, content, "a")) is RefusedMessage
    assert type(problem_to_error(500, content, "a")) is Unavailable
    assert type(problem_to_error(503, content, "a")) is Unavailable


# --- sessions ---------------------------------------------------------------------------------------------------------

CALLER, SERVER = "a" * 32, "b" * 32
LIVES_S = 3600


class Asked:
    """A server that grants, and a keeper on a clock of their own."""

    def __init__(self) -> None:
        self.now = 1e9
        self.offers: list[SessionOffer] = []
        self.keeper = SessionKeeper(CALLER, SystemRandomness(), lambda: self.now)

    def grants(self, offer: SessionOffer) -> SessionGrant:
        self.offers.append(offer)
        name = len(self.offers).to_bytes(16, "big")
        return granted(offer, b"g" * 32, name, LIVES_S, caller=CALLER, server=SERVER)[0]

    def session(self, ask: Callable[[SessionOffer], SessionGrant] | None = None) -> HeldSession | None:
        return self.keeper.session(SERVER, ask or self.grants)


def test_one_session_serves_many_requests_each_with_a_counter_of_its_own() -> None:
    asked = Asked()
    first = present(asked.session())
    assert asked.session() is first
    assert [first.next_counter() for _ in range(3)] == [0, 1, 2]
    assert len(asked.offers) == 1


def test_it_is_renewed_before_its_end_with_a_new_secret_and_key() -> None:
    asked = Asked()
    first = asked.session()
    asked.now += LIVES_S - 299
    second = asked.session()
    assert second is not first
    assert asked.offers[0].secret != asked.offers[1].secret
    assert asked.offers[0].key != asked.offers[1].key


def test_where_it_is_over_another_one_is_opened() -> None:
    asked = Asked()
    first = present(asked.session())
    asked.now += 61
    first.over = True
    second = present(asked.session())
    assert second.name != first.name


def test_where_sessions_do_not_last_they_are_left_alone_for_a_while() -> None:
    """Behind an address of several servers, or a proxy that says so, envelopes are as good."""
    asked = Asked()
    first = present(asked.session())
    first.over = True
    assert asked.session() is None
    asked.now += 599
    assert asked.session() is None
    asked.now += 2
    assert asked.session() is not None


def test_a_server_of_before_is_asked_in_envelopes() -> None:
    asked, refuses = Asked(), Mock(side_effect=MalformedMessage("no such address"))
    assert asked.session(refuses) is None
    assert asked.session(refuses) is None
    assert refuses.call_count == 1


def test_a_grant_for_another_offer_is_none() -> None:
    asked = Asked()
    asked.session()
    old = asked.grants(asked.offers[0])
    asked.now += LIVES_S
    assert asked.session(lambda offer: old) is None


def test_a_server_out_of_reach_is_the_requests_trouble_and_the_next_one_tries_again() -> None:
    asked = Asked()

    with pytest.raises(Unavailable, match="away"):
        asked.session(Mock(side_effect=Unavailable("away")))
    assert asked.session() is not None


def test_another_server_of_a_changed_roster_is_another_session() -> None:
    asked = Asked()
    first = asked.session()

    def grants(offer: SessionOffer) -> SessionGrant:
        return granted(offer, b"g" * 32, bytes(16), LIVES_S, caller=CALLER, server="c" * 32)[0]

    assert asked.keeper.session("c" * 32, grants) is not first


@pytest.mark.parametrize("comes", [True, False], ids=["in time", "too late"])
def test_while_one_thread_opens_a_session_another_waits_on_its_own_clock_and_then_does_without(comes: bool) -> None:
    """Waiting on this machine's clock would hold up agents that run on another one."""
    asked, found = Asked(), list[HeldSession | None]()
    others = [threading.Thread(target=lambda: found.append(asked.session()))]

    class Waiting(SystemClock):
        def wait_for(self, changed: threading.Condition, holds: Callable[[], bool], at_most_s: float) -> bool:
            if not holds():
                waited.append(at_most_s)
                waits.set()
                if comes:
                    changed.wait_for(holds, 60)
            return holds()

    waits, waited = threading.Event(), list[float]()
    asked.keeper = SessionKeeper(CALLER, SystemRandomness(), lambda: asked.now, Waiting())

    def opening(offer: SessionOffer) -> SessionGrant:
        others[0].start()
        assert waits.wait(60)
        if not comes:
            others[0].join(60)
        return asked.grants(offer)

    opened = asked.session(opening)
    others[0].join(60)
    assert found == [opened if comes else None]
    assert (waited, len(asked.offers)) == ([5.0], 1)


def test_the_last_answer_from_an_address_is_held_and_named_by_how_far_back_it_lies() -> None:
    held = present(Asked().session())
    assert held.earlier("/view", 0) == (0, b"")
    held.keep("/view", 3, b"v" * 300)
    held.keep("/view", 5, b"w" * 300)
    held.keep("/short", 6, b"s")
    assert held.earlier("/view", 9) == (4, b"w" * 300)
    assert held.earlier("/view", 5) == (0, b"")
    assert held.earlier("/view", 5 + MOST_BACK + 1) == (0, b"")
    assert held.earlier("/short", 9) == (0, b"")
    for number in range(KEPT):
        held.keep(f"/{number}", 10 + number, b"x" * 300)
    assert held.earlier("/view", 20) == (0, b"")
    assert [held.earlier(f"/{number}", 20)[0] for number in range(KEPT)] == [10, 9, 8, 7]


def test_a_large_contribution_comes_to_one_of_two_processes_behind_a_proxy_that_takes_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither process knows what the other one has."""
    monkeypatch.setattr(server_client, "LARGE_BYTES", 0)
    (tmp_path / "sealed").write_bytes(bytes(5 * 1024))
    body = Body.file(tmp_path / "sealed", hashlib.sha256(bytes(5 * 1024)).digest())
    has, turns, operator = [0, 0], itertools.cycle((0, 1)), operator_keys(Side.A)
    about = Receipt(study_digest=DIGEST, round=1, attempt=1, site="c1", side=Side.A, body_digest=body.digest.hex())
    receipt = sign(about, operator.name, operator.signing)

    def handler(request: httpx.Request) -> httpx.Response:
        turn = next(turns)
        if request.url.path.endswith(paths.WHOLE):
            whole = has[turn] == body.length
            return httpx.Response(200, content=receipt.canonical()) if whole else httpx.Response(503)
        if request.method == "PUT" and int(request.url.params["offset"]) == has[turn]:
            has[turn] += len(request.content)
        held = HeldUpload(body_digest=body.digest.hex(), held_bytes=has[turn], part_bytes=2048)
        return httpx.Response(200, content=held.canonical())

    assert client(handler).contribute("unit", 1, 1, body) == receipt
    assert sorted(has) == [0, body.length]
