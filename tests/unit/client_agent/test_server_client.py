"""Signed requests, retries, and errors mapped back to the tree."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path

import httpx
import pytest
import stamina

from client_agent.network.body import Body
from client_agent.network.clock import asked_pause_s
from client_agent.network.exchange import Way, problem_to_error
from client_agent.network.server_client import WAITS_S, RetryPolicy, ServerClient
from protocol import errors
from protocol.channel.signing import DigestField, digest_value
from protocol.errors import ErrorCode, MoietyError, RefusedMessage, Unavailable
from protocol.messages.control import MAX_CONTROL_BYTES, Signed, Study, StudyView, countersign, sign
from protocol.sharing import Side
from tests.unit.client_agent.enveloped import NOW, Handler, Opened, closed, enveloped, opened
from tests.unit.client_agent.federation import DIGEST, ROSTER, keys, operator_keys, study


def client(handler: Handler, attempts: int = 3) -> ServerClient:
    retry = RetryPolicy(attempts=attempts, first_wait_s=0.0, longest_wait_s=0.001)
    transport = httpx.MockTransport(enveloped(handler))
    return ServerClient(Side.A, ROSTER.operator_a, keys("c1"), transport, retry=retry, clock=lambda: float(NOW))


@pytest.fixture(autouse=True)
def _quiet() -> None:
    stamina.instrumentation.set_on_retry_hooks(())


def view() -> StudyView:
    return StudyView(study="unit", study_digest=DIGEST, cursor=7, ready=(), mail=())


def raw(transport: Handler, attempts: int = 3) -> ServerClient:
    """A client whose transport sees what is sent as it is."""
    made = client(lambda request: httpx.Response(500), attempts)
    made._http = Way(httpx.MockTransport(transport), WAITS_S)
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
        return closed(asked, server, httpx.Response(200, content=view().canonical()))

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
    server = operator_keys(Side.A)

    def answer(request: httpx.Request) -> httpx.Response:
        asked = opened(request, server)
        nonces.append(asked.verified.nonce)
        if len(nonces) == 1:
            raise httpx.ConnectError("down")
        if len(nonces) == 2:
            return httpx.Response(503, content=b"busy")
        return closed(asked, server, httpx.Response(200, content=view().canonical()))

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
    """By what the library says that it will wait; nobody waits here."""
    waits: list[float] = []
    stamina.instrumentation.set_on_retry_hooks([lambda details: waits.append(details.wait_for)])
    answers = iter([httpx.Response(503, headers={"Retry-After": "0"}), httpx.Response(429), httpx.Response(502)])
    server = operator_keys(Side.A)

    def answer(request: httpx.Request) -> httpx.Response:
        return next(answers, None) or closed(
            opened(request, server), server, httpx.Response(200, content=view().canonical())
        )

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
    calls: list[int] = []

    def answer(request: httpx.Request) -> httpx.Response:
        calls.append(status)
        return httpx.Response(status)

    with pytest.raises(Unavailable, match=f"answered {status}"):
        client(answer, attempts=4).view("unit")
    assert len(calls) == 4


@pytest.mark.parametrize(
    ("status", "code", "refusal"),
    [(403, "not_listed", errors.NotListed), (413, "too_large", errors.TooLarge)],
)
def test_a_refusal_that_the_server_signed_is_not_repeated(status: int, code: str, refusal: type[MoietyError]) -> None:
    """Also where it says what the client says itself of an answer of which nobody signed the length."""
    calls: list[int] = []

    def answer(request: httpx.Request) -> httpx.Response:
        calls.append(1)
        problem = {"code": code, "detail": "this is why"}
        return httpx.Response(status, content=json.dumps(problem).encode())

    with pytest.raises(refusal, match="this is why"):
        client(answer).view("unit")
    assert len(calls) == 1


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


def test_no_server_refuses_by_a_sites_policy() -> None:
    body = json.dumps({"code": ErrorCode.POLICY_REFUSAL.value, "detail": "may_open: no"}).encode()
    assert type(problem_to_error(409, body, "a")) is RefusedMessage


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
