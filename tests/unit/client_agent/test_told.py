"""What an agent tells people in a terminal: one line when it is connected, problems while they last, who is awaited."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import httpx
import pytest

import client_agent.cli.agent
import client_agent.cli.watching
from client_agent.network.contacts import CONTACTS, Contacts, NotedTransport, read_contacts
from client_agent.settings import AgentSettings
from client_agent.site import events
from client_agent.site.awaited import Awaited, AwaitedSite, keep_awaited, read_awaited
from client_agent.site.events import (
    AgentEvent,
    EventKind,
    Metrics,
    RoundEnd,
    RoundRecord,
    last_metrics,
    read_metrics,
)
from client_agent.site.journal import StudyJournal
from client_agent.site.telling.greeting import Greeting
from client_agent.site.telling.problems import PROBLEMS, Problems, read_problems
from host.folder_lock import holder_of, one_process
from protocol.errors import StorageFull
from tests.unit.client_agent.test_daemon import settings

NOW_S = 1_700_000_000.0
DATE = "Tue, 14 Nov 2023 22:13:19 GMT"
AWAITED = Awaited(since_s=NOW_S, sites=(AwaitedSite(site="c3", why="nothing heard \x1b[2J of it"),))


def event(kind: EventKind, text: str = "", study: str = "heart") -> AgentEvent:
    return AgentEvent(kind=kind, site="c1", study=study, text=text)


@pytest.mark.parametrize(
    ("ahead_s", "studies", "said"),
    [
        (-0.24, 2, "connected to a and b, clock off by 0.2 s (give or take 1), 2 studies"),
        (3.0, 1, "connected to a and b, clock off by 3.0 s (give or take 1), 1 study"),
        (None, 0, "connected to a and b, clocks not compared, 0 studies"),
    ],
)
def test_a_good_start_is_one_line(
    ahead_s: float | None, studies: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    greeting = Greeting(("a", "b"), ahead_s, studies)
    client_agent.cli.agent._print_event(event(EventKind.CONNECTED, greeting.text, study=""))
    assert capsys.readouterr().out == f"c1: {said}\n"


def test_answers_and_failures_are_noted_with_the_clock(tmp_path: Path) -> None:
    now = [NOW_S]
    contacts = Contacts(tmp_path / CONTACTS, lambda: now[0])
    fails = httpx.MockTransport(_refuse)
    answers = httpx.MockTransport(lambda _: httpx.Response(200, headers={"date": DATE}))
    with httpx.Client(transport=NotedTransport("operator-a", answers, contacts)) as http:
        http.get("https://a.example/")
    assert contacts.of("operator-a").ahead_s == 0.0
    for at in (10.0, 20.0):
        now[0] = NOW_S + at
        with (
            httpx.Client(transport=NotedTransport("operator-a", fails, contacts)) as http,
            pytest.raises(httpx.ConnectError),
        ):
            http.get("https://a.example/")
    (known,) = read_contacts(tmp_path / CONTACTS)
    assert (known.reached_at_s, known.failing_since_s) == (NOW_S, NOW_S + 10.0)
    assert "gone" in known.failure
    contacts.reached("operator-a", "no date")
    (mended,) = read_contacts(tmp_path / CONTACTS)
    assert (mended.failing_since_s, mended.failure, mended.ahead_s) == (None, "", 0.0)
    (tmp_path / CONTACTS).write_text("{")
    assert read_contacts(tmp_path / CONTACTS) == ()


def test_what_an_agent_breaks_off_as_it_stops_is_no_failure(tmp_path: Path) -> None:
    contacts = Contacts(tmp_path / CONTACTS, lambda: NOW_S)
    way = NotedTransport("operator-a", httpx.MockTransport(_refuse), contacts)
    way.close()
    with pytest.raises(httpx.ConnectError):
        way.handle_request(httpx.Request("GET", "https://a.example/"))
    assert read_contacts(tmp_path / CONTACTS) == ()


def _refuse(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("gone", request=request)


def test_a_problem_lasts_until_a_round_ends_or_the_look_goes_well(tmp_path: Path) -> None:
    now, seen = [NOW_S], list[AgentEvent]()
    problems = Problems(tmp_path, lambda: now[0])
    emit = problems.noting(seen.append)
    emit(event(EventKind.PROBLEM, "no data"))
    now[0] += 60
    emit(event(EventKind.PROBLEM, "no data"))
    emit(event(EventKind.PROBLEM, "server away", study=""))
    assert [(one.study, one.text, one.since_s) for one in read_problems(tmp_path)] == [
        ("heart", "no data", NOW_S),
        ("", "server away", NOW_S + 60),
    ]
    emit(event(EventKind.STUDY, "goes on"))
    assert len(read_problems(tmp_path)) == 2
    emit(event(EventKind.ROUND, "round 1"))
    Problems(tmp_path, lambda: now[0]).mended("")
    assert read_problems(tmp_path) == ()
    assert len(seen) == 5
    (tmp_path / PROBLEMS).write_text("nonsense")
    assert read_problems(tmp_path) == ()


def test_whom_a_study_waits_for_is_followed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own: AgentSettings = settings(tmp_path, "c1")
    watching = client_agent.cli.watching
    assert watching._awaited(own, "heart") is None
    journal = StudyJournal(own.state_dir, "heart")
    keep_awaited(journal, AWAITED)
    found = watching._awaited(own, "heart")
    assert found == AWAITED
    watching._print_awaited("heart", found, False)
    said = capsys.readouterr().out
    assert said.startswith("study heart: since 2023-11-14 22:13 UTC waiting for c3 (nothing heard ")
    assert "\x1b" not in said
    watching._print_awaited("heart", found, True)
    assert json.loads(capsys.readouterr().out)["awaited"][0]["site"] == "c3"
    keep_awaited(journal, None)
    keep_awaited(journal, None)
    assert read_awaited(journal) is None
    watching._print_awaited("heart", None, True)
    assert json.loads(capsys.readouterr().out) == {"study": "heart", "since_s": None, "awaited": []}


def test_who_holds_a_folder_is_said_while_it_does(tmp_path: Path) -> None:
    assert holder_of(tmp_path) is None
    with one_process(tmp_path, "state_dir", "the agent of 'c1'"):
        assert (holder_of(tmp_path) or "").startswith("the agent of 'c1', process ")
    assert holder_of(tmp_path) is None


def test_the_last_record_is_read_without_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that is longer than what is read at first, and one behind which a crash left half a line."""
    monkeypatch.setattr(events, "_TAIL_BYTES", 64)
    path = tmp_path / "metrics.jsonl"
    assert last_metrics(path) is None
    path.write_text('{"half')
    assert last_metrics(path) is None
    path.unlink()
    metrics = Metrics(path)
    for number in range(1, 4):
        end = RoundEnd.RELEASED
        metrics.append(
            RoundRecord(time_s=0, study="heart", site="c1", round=number, state=end, model_version=1, reason="x" * 500)
        )
        assert last_metrics(path) == read_metrics(path)[-1]
    with path.open("a") as file:
        file.write('{"time_s": 0, "stu')
    found = last_metrics(path)
    assert found is not None
    assert found.round == 3


@pytest.mark.parametrize("half", ['{"time_s": 0, "stu', '{"time_s": 0, "weights": [{"site": "c1", "numerator": 3}'])
def test_a_full_disk_and_half_a_line_spoil_no_other_record(tmp_path: Path, half: str) -> None:
    path = tmp_path / "metrics.jsonl"
    metrics, end = Metrics(path), RoundEnd.RELEASED
    one, two, three = (
        RoundRecord(time_s=0, study="heart", site="c1", round=n, state=end, model_version=1) for n in (1, 2, 3)
    )
    metrics.append(one)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 40, before[1]))  # half a line has room
    try:
        with pytest.raises(StorageFull, match="free space"):
            metrics.append(two)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    metrics.append(two)
    with path.open("a") as file:
        file.write(half)
    metrics.append(three)
    assert read_metrics(path) == (one, two, three)


def test_a_full_disk_keeps_no_request_and_no_event_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise StorageFull("no space left")  # as ``write_durably`` says it

    for module in ("network.contacts", "site.telling.problems", "site.telling.notices"):
        monkeypatch.setattr(f"client_agent.{module}.write_durably", full)
    contacts = Contacts(tmp_path / CONTACTS, lambda: NOW_S)
    answers = httpx.MockTransport(lambda _: httpx.Response(200, headers={"date": DATE}))
    with httpx.Client(transport=NotedTransport("operator-a", answers, contacts)) as http:
        assert http.get("https://a.example/").status_code == 200
    seen = list[AgentEvent]()
    Problems(tmp_path, lambda: NOW_S).noting(seen.append)(event(EventKind.PROBLEM, "the disk is full"))
    assert [one.text for one in seen] == ["the disk is full"]
