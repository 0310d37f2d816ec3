"""Answers and letters that once ended an agent for good: it says what is wrong, waits, and goes on once that is mended.

Agents run in this process, against servers made of a few lines.

No attack: whoever can send these can as well send nothing. What matters is that the agent goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path

import httpx
import numpy as np
import pytest

import client_agent.daemon
from client_agent.daemon import Agent
from client_agent.net.exchange import WrongClock, pause_after, wrong_clock
from client_agent.net.server_client import ServerClient
from client_agent.net.watch import StudyWatch
from client_agent.requester.admission import _hear_refusal
from client_agent.requester.round import RequesterRound
from client_agent.requester.run import Requester
from client_agent.site.connections import Site
from client_agent.site.events import AgentEvent, EventKind
from protocol.errors import (
    BadSignature,
    ConfigurationError,
    MalformedMessage,
    NotListed,
    TooLarge,
    Unavailable,
    UnknownResource,
    WrongRound,
)
from protocol.messages.control import MAX_CONTROL_BYTES, Decline, Signed, Study, StudyIndex, StudyView
from protocol.messages.letter import NOTICE_SEALED_BYTES, parse_topic
from protocol.sharing import Side
from tests.unit.client_agent.benches import (
    SITE,
    WITHIN_S,
    RequesterBench,
    contributor_bench,
    planned,
    requester_bench,
    until,
)
from tests.unit.client_agent.federation import PARAMETERS, REQUESTER, ROSTER, keys, study
from tests.unit.client_agent.test_daemon import FakeServer, agent, serve, signed_at, sites
from tests.unit.client_agent.test_refusals import view

assert sites  # a fixture of that module
MODEL = np.zeros(PARAMETERS.dimension, dtype=np.float32)


class Moody(FakeServer):
    """Answers with what stands first in ``moods`` until that is taken away."""

    def __init__(self, of: Signed[Study], *moods: Exception) -> None:
        super().__init__(of)
        self.moods = list(moods)
        self.asked = 0

    def studies(self, known: StudyIndex | None = None, wait_s: float = 0.0) -> StudyIndex:
        self._answer()
        return super().studies(known, wait_s)

    def study(self, name: str) -> Signed[Study]:
        self._answer()
        return super().study(name)

    def _answer(self) -> None:
        self.asked += 1
        if self.moods:
            raise self.moods[0]


BAD_ANSWERS = [
    MalformedMessage(f"study_list: {MAX_CONTROL_BYTES + 1} bytes, at most {MAX_CONTROL_BYTES} are allowed"),
    TooLarge("server 'operator-a' answered with more than its bytes"),
    BadSignature("the request was signed 4000 s ago"),
    WrongClock("this machine's clock is 4000 s behind"),
    ConfigurationError("studies/unit/site.json: not a state file of this version"),
]


@pytest.mark.parametrize("wrong", BAD_ANSWERS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("side", list(Side))
def test_an_answer_while_it_looks_for_studies(
    wrong: Exception, side: Side, sites: dict[str, Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list of server A, or the study of server B: said once, looked at again, and taken up when it is right."""
    monkeypatch.setattr(client_agent.daemon, "_LOOK_AGAIN_S", 0.0)
    of, events = study(), list[AgentEvent]()
    servers = {each: Moody(signed_at(each, of), *([wrong] if each is side else [])) for each in Side}
    serve(sites["c1"], servers[Side.A], servers[Side.B])
    made = agent(sites["c1"], events)
    running = threading.Thread(target=made.run)
    running.start()
    try:
        until(lambda: servers[side].asked > 3)
        assert running.is_alive()
        assert made.started == ()
        said = tuple(events)
        assert {event.kind for event in said} == {EventKind.PROBLEM}
        about = [event.study for event in said]
        assert len(about) == len(set(about)), "once, not at every look"
        assert set(about) <= ({""} if side is Side.A else {"", of.name})  # B is greeted, and asked for the study
        assert all(str(wrong) in event.text for event in said)
        servers[side].moods.clear()
        until(lambda: made.started == ("unit",))
    finally:
        made._stop.set()
        running.join(WITHIN_S)


class Failing:
    """A participant that fails a few times."""

    def __init__(self, errors: list[Exception], done: threading.Event) -> None:
        self._errors, self._done = errors, done
        self.watch = StudyWatch("unit", {}, threading.Event())

    def run(self) -> None:
        if self._errors:
            raise self._errors.pop(0)
        self._done.set()


def test_a_study_that_failed_is_tried_again_from_its_journal(
    sites: dict[str, Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_agent.daemon, "_FIRST_PAUSE_S", 0.01)
    events, done = list[AgentEvent](), threading.Event()
    errors: list[Exception] = [NotListed("no"), BadSignature("401"), KeyError("x")]
    made = Agent(sites["c1"], threading.Event(), events.append)
    made._start(signed_at(Side.A, study()), lambda: Failing(errors, done))  # type: ignore[arg-type,return-value]
    assert done.wait(WITHIN_S)
    texts = [event.text for event in events]
    assert texts == [
        "not_listed: no; tried again in 0.01 s",
        "bad_signature: 401; tried again in 0.02 s",
        "unexpected KeyError: see the log; the journal is kept; tried again in 0.04 s",
    ]


def test_what_a_person_must_mend_here_ends_a_study_until_the_agent_starts_again(sites: dict[str, Site]) -> None:
    events, done = list[AgentEvent](), threading.Event()
    made = Agent(sites["c1"], threading.Event(), events.append)
    errors: list[Exception] = [ConfigurationError("key 'data': no such folder")]
    made._start(signed_at(Side.A, study()), lambda: Failing(errors, done))  # type: ignore[arg-type,return-value]
    made._running["unit"].join(WITHIN_S)
    assert not done.is_set()
    assert [event.text for event in events] == ["configuration: key 'data': no such folder"]


# --- clocks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ahead_s", "text"), [(300, "300 s ahead of"), (7, "7 s ahead of"), (-61, "61 s behind"), (-9e5, "900000 s behind")]
)
def test_a_clock_that_is_off(ahead_s: float, text: str) -> None:
    """The agent names the clock that is off, by the server's own time, and does not retry in a hurry."""
    server_s, sent = 1_800_000_000, []

    def refused(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        date = format_datetime(datetime.fromtimestamp(server_s, UTC), usegmt=True)
        return httpx.Response(401, headers={"date": date}, json={"code": "bad_signature", "detail": "no"})

    operator, clock = ROSTER.operator_a, lambda: server_s + ahead_s
    client = ServerClient(Side.A, operator, keys(SITE), httpx.MockTransport(refused), clock=clock)
    with pytest.raises(WrongClock, match=f"{text} that of server 'operator-a'.*set the one that is wrong"):
        client.studies()
    assert len(sent) == 1
    assert pause_after(WrongClock("x"), 0.5) > pause_after(Unavailable("x"), 0.5) == 0.5


DATE = format_datetime(datetime.fromtimestamp(1_800_000_000, UTC), usegmt=True)


@pytest.mark.parametrize("ahead_s", [-58, 0, 4])
@pytest.mark.parametrize("date", [DATE, None, "", "yesterday", "Tue, 99 Foo 2026 99:99:99 GMT", "x" * 10**6])
def test_a_server_that_says_no_time_or_the_same_is_not_blamed(date: str | None, ahead_s: int) -> None:
    assert wrong_clock(date, 1_800_000_000 + ahead_s, "a") is None


# --- views ------------------------------------------------------------------------------------------------------------


def test_a_view_that_cannot_be_read_is_said_and_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("client_agent.net.watch._PROBLEM_PAUSE_S", 0.0)
    moods: list[Exception] = [MalformedMessage("study_view: too long")] * 3 + [RuntimeError("x"), UnknownResource("y")]

    class Server:
        def view(self, *_: object) -> StudyView:
            if moods:
                raise moods.pop(0)
            return view()

    stop, said = threading.Event(), list[str]()
    server = Server()
    watch = StudyWatch("unit", dict.fromkeys(Side, server), stop, lambda _, text: said.append(text))  # type: ignore[arg-type]
    watch.start()
    try:
        until(lambda: watch.both() is not None)
    finally:
        stop.set()
        watch.join(WITHIN_S)
    assert set(said) <= {"study_view: too long", "y"}
    assert "study_view: too long" in said


@pytest.mark.parametrize("only_news", [False, True])
def test_a_poll_without_a_change_wakes_nobody(only_news: bool) -> None:
    """A contributor asks for news beside the view it has, the requester for every change."""
    first, second = (view().model_copy(update={"cursor": cursor}) for cursor in (7, 8))
    stop, polls = threading.Event(), list[str]()

    class Server:
        def view(self, _: str, cursor: int | None = None, __: float = 0) -> StudyView:
            polls.append(f"view after {cursor}")
            return first if len(polls) < 4 else second

        def news(self, _: str, known: StudyView, __: float) -> StudyView | None:
            polls.append(f"news after {known.cursor}")
            return None if len(polls) < 4 else second

    watch = StudyWatch("unit", {Side.A: Server()}, stop, only_news=only_news)  # type: ignore[dict-item]
    polling = threading.Thread(target=watch._poll, args=(Side.A,))
    polling.start()
    try:
        until(lambda: watch.view(Side.A) == second)
    finally:
        stop.set()
        polling.join(WITHIN_S)
    asked = "news" if only_news else "view"
    assert polls[:4] == ["view after None", *[f"{asked} after 7"] * 3]


# --- letters ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[RequesterBench]:
    with requester_bench(tmp_path, study(), MODEL) as made:
        yield made


def again(bench: RequesterBench) -> Requester:
    """The requester after a restart."""
    was = bench.requester
    return Requester(was.context, was.signed_study, was.journal)


@pytest.mark.parametrize("letter", [bytes(300 * 2**20), bytes(NOTICE_SEALED_BYTES)], ids=["300 MB", "sealed to nobody"])
def test_a_bad_refusal_is_read_once(letter: bytes, bench: RequesterBench) -> None:
    """One site ended the requester's agent with it, and again after every restart."""
    bench.servers[Side.A].mail[f"refusal/{REQUESTER}"] = letter
    for _ in range(2):
        assert not _hear_refusal(bench.requester, view(f"refusal/{SITE}"))
    assert not _hear_refusal(again(bench), view(f"refusal/{SITE}"))
    assert bench.servers[Side.A].read == [f"refusal/{SITE}"]
    (named,) = bench.texts(EventKind.PROBLEM)
    assert named.startswith(f"the letter refusal/{SITE} cannot be read: ")


def test_a_bad_decline_is_read_once(bench: RequesterBench) -> None:
    bench.servers[Side.A].mail[f"decline-1/{REQUESTER}"] = bytes(NOTICE_SEALED_BYTES)
    plan, seen = planned(bench.requester), view(f"decline-1/{SITE}", "decline-1/stranger", "decline-2/c2")
    for restarted in (False, True):
        turn = RequesterRound(again(bench) if restarted else bench.requester, plan)
        turn._read_declines(seen)
        turn._read_declines(seen)
        assert [refused.site for refused in turn._declines.values()] == [SITE]
    assert bench.servers[Side.A].read == [f"decline-1/{SITE}"]
    (named,) = bench.texts(EventKind.PROBLEM)
    assert named.startswith(f"the letter decline-1/{SITE} cannot be read: ")


def test_letters_put_aside_are_forgotten_with_their_round(bench: RequesterBench) -> None:
    for topic, site in (
        ("refusal", "c1"),
        ("hindered", "c1"),
        ("refusal", "c2"),
        ("decline-1", "c1"),
        ("decline-2", "c1"),
    ):
        bench.servers[Side.A].mail[f"{topic}/{REQUESTER}"] = bytes(NOTICE_SEALED_BYTES)
        assert bench.requester.heard(parse_topic(topic), site, Signed[Decline]) is None
    assert bench.requester.progress.unreadable == ("refusal/c1", "hindered/c1", "refusal/c2", "decline-2/c1")


# --- a site that wants to take part -----------------------------------------------------------------------------------


def test_a_site_says_that_it_is_ready_until_it_is_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal that passes, of a proxy or a server without its database, kept the site out of the study for good."""
    monkeypatch.setattr("client_agent.contributor.run._IDLE_S", 0.0)
    monkeypatch.setattr("client_agent.contributor.run.RETRY_S", 0.0)
    answers: dict[Side, list[Exception]] = {
        Side.A: [BadSignature("401"), NotListed("no"), Unavailable("down")],
        Side.B: [WrongRound("ended")],
    }
    heard: list[Side] = []
    with contributor_bench(tmp_path, study(), MODEL) as bench:
        for side, server in bench.servers.items():

            def ready(*_: object, side: Side = side) -> None:
                if answers[side]:
                    raise answers[side].pop(0)
                heard.append(side)

            server.ready = ready  # type: ignore[attr-defined]
        bench.contributor._say_ready()
        assert heard == [Side.A]
        assert len(bench.texts(EventKind.PROBLEM)) == 4
