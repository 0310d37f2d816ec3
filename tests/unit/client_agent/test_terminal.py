"""Output of an agent in a terminal: connections, problems, rounds, sums and ends."""

from __future__ import annotations

import io
import json
from pathlib import Path

import httpx
import numpy as np
import pytest
from rich.table import Table

import client_agent.cli.agent
import client_agent.cli.watch
from client_agent.cli.agent import _print_event
from client_agent.cli.tables import WholeNames, add_row, console, table
from client_agent.cli.watch import round_line
from client_agent.net.contacts import CONTACTS, Contact, Contacts, NotedTransport, read_notes
from client_agent.page.study_state import Federated, federated, outcome_text, sums_of
from client_agent.settings import AgentSettings
from client_agent.site.connections import Greeting
from client_agent.site.events import (
    Absence,
    Absent,
    AgentEvent,
    EventKind,
    RoundEnd,
    RoundRecord,
    after_each,
    append_record,
    last_metrics,
    read_metrics,
    site_values,
)
from client_agent.site.journal import Awaited, AwaitedSite, StudyJournal, keep_awaited, read_awaited
from client_agent.site.notifications import PROBLEMS, Problem, Problems
from client_agent.study.isolation import note_sum, show_sum
from host.folder_lock import holder_of, one_process
from protocol.errors import StorageFull
from protocol.messages.control import (
    ContributedRound,
    EndCause,
    Purpose,
    StudyEndState,
    StudyView,
    WeightList,
)
from protocol.parameters import Needs
from protocol.policy.exposure import SummedRow
from protocol.sharing import Side
from tests.kit.present import present
from tests.kit.studies import round_record
from tests.unit.client_agent.announced_rounds import (
    DIGEST,
    MODEL,
    STUDY,
    announced,
    decided,
    released,
    views,
    weights,
    welcome_mail,
)
from tests.unit.client_agent.benches import Bench
from tests.unit.client_agent.federation import evidence, study_end, study_view
from tests.unit.client_agent.test_daemon import settings

# --- told -------------------------------------------------------------------------------------------------------------

NOW_S = 1_700_000_000.0
DATE = "Tue, 14 Nov 2023 22:13:19 GMT"
AWAITED = Awaited(since_s=NOW_S, sites=(AwaitedSite(site="c3", why="nothing heard \x1b[2J of it"),))


def record(number: int = 7, state: RoundEnd = RoundEnd.RELEASED, **changes: object) -> RoundRecord:
    return round_record(number, state, **({"study": "heart"} | changes))


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
    (known,) = read_notes(tmp_path / CONTACTS, Contact)
    assert (known.reached_at_s, known.failing_since_s) == (NOW_S, NOW_S + 10.0)
    assert "gone" in known.failure
    contacts.reached("operator-a", "no date")
    (mended,) = read_notes(tmp_path / CONTACTS, Contact)
    assert (mended.failing_since_s, mended.failure, mended.ahead_s) == (None, "", 0.0)
    (tmp_path / CONTACTS).write_text("{")
    assert read_notes(tmp_path / CONTACTS, Contact) == ()


def test_what_an_agent_breaks_off_as_it_stops_is_no_failure(tmp_path: Path) -> None:
    contacts = Contacts(tmp_path / CONTACTS, lambda: NOW_S)
    way = NotedTransport("operator-a", httpx.MockTransport(_refuse), contacts)
    way.close()
    with pytest.raises(httpx.ConnectError):
        way.handle_request(httpx.Request("GET", "https://a.example/"))
    assert read_notes(tmp_path / CONTACTS, Contact) == ()


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
    assert [(one.study, one.text, one.since_s) for one in read_notes(tmp_path / PROBLEMS, Problem)] == [
        ("heart", "no data", NOW_S),
        ("", "server away", NOW_S + 60),
    ]
    emit(event(EventKind.STUDY, "goes on"))
    assert len(read_notes(tmp_path / PROBLEMS, Problem)) == 2
    emit(event(EventKind.ROUND, "round 1"))
    Problems(tmp_path, lambda: now[0]).mended("")
    assert read_notes(tmp_path / PROBLEMS, Problem) == ()
    assert len(seen) == 5
    (tmp_path / PROBLEMS).write_text("nonsense")
    assert read_notes(tmp_path / PROBLEMS, Problem) == ()


def test_whom_a_study_waits_for_is_followed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own: AgentSettings = settings(tmp_path, "c1")
    watching = client_agent.cli.watch
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


def test_the_last_record_is_the_last_whole_line(tmp_path: Path) -> None:
    """Also where a crash left half a line behind it."""
    path = tmp_path / "metrics.jsonl"
    assert last_metrics(path) is None
    path.write_text('{"half')
    assert last_metrics(path) is None
    path.unlink()
    for number in range(1, 4):
        append_record(path, record(number, reason="x" * 500))
        assert last_metrics(path) == read_metrics(path)[-1]
    with path.open("a") as file:
        file.write('{"time_s": 0, "stu')
    found = present(last_metrics(path))
    assert found.round == 3


def test_a_full_disk_keeps_no_request_and_no_event_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise StorageFull("no space left")  # as ``write_durably`` says it

    monkeypatch.setattr("client_agent.net.contacts.write_durably", full)
    contacts = Contacts(tmp_path / CONTACTS, lambda: NOW_S)
    answers = httpx.MockTransport(lambda _: httpx.Response(200, headers={"date": DATE}))
    with httpx.Client(transport=NotedTransport("operator-a", answers, contacts)) as http:
        assert http.get("https://a.example/").status_code == 200
    seen = list[AgentEvent]()
    Problems(tmp_path, lambda: NOW_S).noting(seen.append)(event(EventKind.PROBLEM, "the disk is full"))
    assert [one.text for one in seen] == ["the disk is full"]


# --- lines ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("purpose", list(Purpose))
def test_a_round_of_every_purpose_has_a_line(purpose: Purpose) -> None:
    line = round_line(record(state=RoundEnd.CLOSED, purpose=purpose), None)
    assert line.startswith("round 7 closed")
    assert (" (" in line) is (purpose is not Purpose.UPDATE)


def test_a_round_without_others_shows_no_weights_and_who_is_missing() -> None:
    weights = site_values([("c1", 1.0), ("c2", 0.5)])
    absent = (
        Absence(site="c2", why=Absent.DECLINED, text="isolation: too close"),
        Absence(site="c3", why=Absent.NOT_READY),
    )
    assert "c1" not in round_line(record(state=RoundEnd.ALONE, alphas=weights), None)
    assert round_line(record(alphas=weights, took_part=("c0", "c1"), absences=absent), None).endswith(
        ", took part: c0 c1, without: c2 (declined: isolation: too close), c3 (not ready), weights: c1=1.000 c2=0.500"
    )


def test_a_measurement_is_told_from_a_sum() -> None:
    measured = record(state=RoundEnd.CLOSED, purpose=Purpose.MEASURE)
    assert round_line(measured, None) == "round 7 closed (measured, nothing summed): 0.00 s, 0 kB"


def test_a_reason_that_the_line_before_gave_is_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    """The reason stood in every line of a study that goes on alone, and so did the words of a site that declines."""
    long, other = "the policies of the sites that are left allow no list: " + "x" * 200, "too few"
    absent = (Absence(site="c2", why=Absent.DECLINED, text=long), Absence(site="c3", why=Absent.NOT_READY))
    first = record(state=RoundEnd.SKIPPED, reason=long, absences=absent)
    records = (first, first, first.model_copy(update={"reason": other, "absences": first.absences[1:]}), first)
    lines = [round_line(one, before) for before, one in after_each(records)]
    assert [line.count(long) for line in lines] == [2, 0, 0, 2]
    assert lines[1] == "round 7 skipped (as before): 0.00 s, 0 kB, without: c2 (declined, as before), c3 (not ready)"
    assert lines[2] == "round 7 skipped (too few): 0.00 s, 0 kB, without: c3 (not ready)"
    last: dict[str, RoundRecord] = {}
    for _ in range(2):
        _print_event(AgentEvent(kind=EventKind.ROUND, site="c0", study="heart", round=7, record=first), last)
    assert [line.count(long) for line in capsys.readouterr().out.splitlines()] == [2, 0]


NAMES = [f"hospital-{number}-of-the-university-clinics" for number in range(3)]


def shown_names() -> Table:
    shown = table("round", "took part", "without", "scores", "seconds")
    add_row(shown, "1", f"{NAMES[0]}, {NAMES[1]}", f"{NAMES[2]} (not ready)", "accuracy 0.8333, auroc 0.9123", "0.55")
    return shown


def test_names_are_whole_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    """On a line of their own, whatever width a pipe is said to have."""
    console().print(shown_names())
    (line,) = (one for one in capsys.readouterr().out.splitlines() if NAMES[0] in one)
    assert all(name in line for name in NAMES)
    assert "0.55" in line


def test_a_narrow_terminal_has_fewer_columns_and_whole_names() -> None:
    for width, left_out in ((140, []), (105, ["seconds"]), (70, ["without", "scores", "seconds"])):
        out = io.StringIO()
        WholeNames(width=width, file=out, force_terminal=True, color_system=None).print(shown_names())
        text = out.getvalue()
        assert max(map(len, text.splitlines())) <= width
        assert f"{NAMES[0]}," in text
        assert NAMES[1] in text
        assert (NAMES[2] in text) is ("without" not in left_out)
        assert [name for name in ("without", "scores", "seconds") if f"┃ {name} " not in text] == left_out
        assert ("no room for: " + ", ".join(left_out) in " ".join(text.split())) is bool(left_out)


# --- outcome ----------------------------------------------------------------------------------------------------------

_CAUSES = {
    StudyEndState.COMPLETED: EndCause.ALL_ROUNDS_DONE,
    StudyEndState.LOCAL_ONLY: EndCause.ISOLATION,
    StudyEndState.FAILED: EndCause.STUDY_REFUSED,
    StudyEndState.CANCELLED: EndCause.CANCELLED,
}


def ended(state: StudyEndState, cause: EndCause | None = None) -> StudyView:
    return study_view("0" * 64, end=study_end("0" * 64, state, cause or _CAUSES[state]))


def rounds(*ends: RoundEnd, purpose: Purpose = Purpose.UPDATE) -> tuple[RoundRecord, ...]:
    return tuple(round_record(number, end, purpose=purpose) for number, end in enumerate(ends, start=1))


SUMMED, ALONE = RoundEnd.RELEASED, RoundEnd.ALONE
LOCAL, FAILED = ended(StudyEndState.LOCAL_ONLY), ended(StudyEndState.FAILED)
NEEDED_NOBODY = ended(StudyEndState.LOCAL_ONLY, EndCause.NO_CONTRIBUTOR_NEEDED)
ON_ITS_OWN = "after 2 sums; from round 3 on the model was trained on this site's own data alone"


@pytest.mark.parametrize(
    ("view", "records", "how", "text"),
    [
        (ended(StudyEndState.COMPLETED), rounds(SUMMED), Federated.WHOLLY, ""),
        (
            ended(StudyEndState.COMPLETED),
            rounds(RoundEnd.SKIPPED),
            Federated.NOT,
            "NOT FEDERATED: study unit is comple",
        ),
        (ended(StudyEndState.CANCELLED), (), Federated.NOT, ""),
        (NEEDED_NOBODY, rounds(ALONE), Federated.NOT, ""),
        (LOCAL, rounds(ALONE), Federated.NOT, "and no sum was made; the model is of this site's own data alone"),
        (LOCAL, rounds(SUMMED, SUMMED, ALONE), Federated.PARTLY, ON_ITS_OWN),
        (FAILED, (), Federated.NOT, "there is no model of the sites together"),
        (FAILED, rounds(SUMMED), Federated.PARTLY, "study unit is failed (as asked), after 1 sums"),
    ],
)
def test_an_end_is_called_what_it_is(
    view: StudyView, records: tuple[RoundRecord, ...], how: Federated, text: str
) -> None:
    assert federated(view, records) is how
    said = outcome_text(view, records, at_requester=True)
    assert text in said
    assert bool(said) is bool(text)


def test_a_contributor_is_told_of_its_own_part_alone() -> None:
    said = outcome_text(ended(StudyEndState.COMPLETED), rounds(RoundEnd.DECLINED), at_requester=False)
    assert said.startswith("NOT IN ANY SUM: ")


def test_class_counts_are_no_training_and_a_summary_alone_is_what_was_asked() -> None:
    counts, alone = rounds(RoundEnd.RELEASED, purpose=Purpose.COUNTS), rounds(RoundEnd.ALONE)
    assert sums_of((*counts, *alone)) == 0
    assert sums_of(rounds(RoundEnd.RELEASED, purpose=Purpose.SUMMARY)) == 1


# --- told sums --------------------------------------------------------------------------------------------------------

OTHERS = ("c2", "c3")


def rows(bench: Bench) -> list[SummedRow]:
    return [known.row for known in bench.contributor.context.sums.known()]


def accounted(bench: Bench, number: int) -> bool:
    return bench.contributor.context.sums.accounted((DIGEST, number))


def only_sum(number: int = 1):
    """Two were listed, and two are needed: no other sum was ever announced."""
    listed: WeightList = weights((32, 32, 32), number)
    listed = listed.model_copy(update={"weights": tuple(one for one in listed.weights if one.site in OTHERS)})
    return evidence(announced(listed, listed=OTHERS, least_contributors=2), listed, (*OTHERS, "r0"))


def test_the_only_sum_that_both_servers_announced_accounts_for_its_round(bench: Bench) -> None:
    note_sum(bench.contributor, only_sum())
    (row,) = rows(bench)
    assert len(row.released or ()) == 2
    assert accounted(bench, 1)


def test_one_of_several_sums_counts_on_the_requesters_word_and_accounts_for_nothing(bench: Bench) -> None:
    """Any two of three would have done, and a release set has the requester's signature alone."""
    past = released(1, 0)
    note_sum(bench.contributor, past)
    (row,) = rows(bench)
    assert len(row.released or ()) == 2
    assert not accounted(bench, 1)
    note_sum(bench.contributor, past)
    assert not accounted(bench, 1)
    show_sum(bench.contributor, past)
    assert accounted(bench, 1), "both servers showed it"
    assert len(rows(bench)) == 1


def test_a_listed_site_without_a_weight_leaves_something_open(bench: Bench) -> None:
    """Its update may be in the sum, and no row could say so."""
    listed = only_sum().weight_list
    past = evidence(announced(listed, least_contributors=2), listed, (*OTHERS, "r0"))
    note_sum(bench.contributor, past)
    assert not accounted(bench, 1)


def test_class_counts_account_for_their_round_and_are_no_sum_of_updates(bench: Bench) -> None:
    past = released(1, 0, purpose=Purpose.COUNTS, opens=Needs.NOTHING)
    note_sum(bench.contributor, past)
    assert rows(bench) == []
    assert accounted(bench, 1)


def test_an_announcement_of_a_round_without_updates_is_enough(bench: Bench) -> None:
    """Also where this site is not listed; one server's word is not."""
    counts = announced(weights(), purpose=Purpose.COUNTS, opens=Needs.NOTHING, listed=OTHERS, least_contributors=2)
    assert not decided(bench, weights(), views(counts)).listed
    assert accounted(bench, 1)
    update = announced(weights(round_number=2), listed=OTHERS, least_contributors=2)
    assert not decided(bench, weights(round_number=2), views(update)).listed
    assert not accounted(bench, 2)


def test_the_release_that_led_to_a_welcomed_model_counts(bench: Bench) -> None:
    view = welcome_mail(bench, 1, previous=released(1, 0))
    bench.contributor.take_welcome(view)
    assert bench.contributor.state.model_version == 1
    assert len(rows(bench)) == 1


def test_but_it_fills_no_memory_that_lost_its_own_sums(bench: Bench) -> None:
    """The servers have receipts of this site for the round; the model is taken, and the loss stays visible."""
    bench.servers[Side.B].receipts = (
        ContributedRound(study=STUDY.name, study_digest=DIGEST, round=1, attempt=1, body_digest=DIGEST),
    )
    bench.contributor.take_welcome(welcome_mail(bench, 1, previous=released(1, 0)))
    assert bench.contributor.state.model_version == 1
    assert bench.contributor.context.sums.rounds() == set()
    assert np.array_equal(bench.contributor.require_model(), MODEL * 2)
