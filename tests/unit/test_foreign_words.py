"""Words of another party are shown to a person: they move no cursor, forge no line, and end no program.

Each test puts the same words into one place where they are shown or logged: escape sequences, a bell, a mark that turns
the reading direction, a line break, markup that rich takes for a wrong tag. The attack is
``words-that-write-on-a-terminal``; here is every place.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import structlog

import client_agent.cli.agent
import client_agent.cli.tables
import client_agent.cli.watch
from client_agent.cli.roster import show
from client_agent.cli.study_work import show_rankings
from client_agent.learning.ridge import JudgedOn
from client_agent.net.exchange import problem_to_error
from client_agent.net.server_client import RetryPolicy, ServerClient
from client_agent.requester.admission import await_contributors
from client_agent.requester.round import RequesterRound
from client_agent.site.events import AgentEvent, EventKind
from client_agent.site.letters import StudyRefusal
from client_agent.study.results import RANKING_FILE, Ranking, UnrankedSite
from harness.demo.report import _chart
from host import log as server_log
from host.command_line import end_with
from protocol.errors import ErrorCode, MalformedMessage, Unavailable
from protocol.messages.control import Decline, LayerShape, StudyState, StudyView, sign
from protocol.messages.letter import seal_letter
from protocol.roster.keyfile import dump_roster
from protocol.sharing import Side
from protocol.text import MOST_CHARACTERS, printable, printable_lines, printable_values
from servers.problems import error_from
from tests.kit.present import present
from tests.unit.client_agent.benches import SITE, RequesterBench, planned, requester_bench
from tests.unit.client_agent.federation import PARAMETERS, PARTIES, REQUESTER, ROSTER, ended_as, keys, study
from tests.unit.client_agent.test_refusals import hand_views, view
from tests.unit.client_agent.test_rewards import record

# --- foreign words ----------------------------------------------------------------------------------------------------

WORDS = "no\x1b]0;owned\x07\x1b[2J \u202eevil\u2066 [/] [red]x[/red]\ncontributor c2: released"
DIGEST = study().digest()


def harmless(shown: str) -> bool:
    """Nothing but printable characters and line feeds; the words themselves are there, with their brackets."""
    return "\n" not in shown.strip("\n") and shown.replace("\n", "").isprintable() and "[/]" in shown


def harmless_table(shown: str) -> bool:
    return shown.replace("\n", "").isprintable() and "[/]" in shown and "[red]" in shown


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[RequesterBench]:
    with requester_bench(tmp_path, study(), np.zeros(PARAMETERS.dimension, dtype=np.float32)) as made:
        yield made


def test_a_reason_to_decline(bench: RequesterBench) -> None:
    decline = Decline(study_digest=DIGEST, round=1, site=SITE, code=ErrorCode.POLICY_REFUSAL, reason=WORDS)
    signed, to = sign(decline, SITE, keys(SITE).signing), bench.requester.requester_party
    bench.servers[Side.A].mail[f"decline-1/{REQUESTER}"] = seal_letter(signed, "decline", DIGEST, SITE, to, 1)
    turn = RequesterRound(bench.requester, planned(bench.requester))
    turn._read_declines(view(f"decline-1/{SITE}"))
    assert all(map(harmless, bench.texts(EventKind.DECLINED)))
    assert [harmless(refused.reason) for refused in turn._declines.values()] == [True]


def test_a_reason_to_refuse_a_study(bench: RequesterBench) -> None:
    refusal = StudyRefusal(study_digest=DIGEST, site=SITE, code=ErrorCode.POLICY_REFUSAL, reason=WORDS)
    signed, to = sign(refusal, SITE, keys(SITE).signing), bench.requester.requester_party
    bench.servers[Side.A].mail[f"refusal/{REQUESTER}"] = seal_letter(signed, "refusal", DIGEST, SITE, to, 0)
    hand_views(bench, view(f"refusal/{SITE}"))
    await_contributors(bench.requester)
    assert harmless(bench.requester.progress.why)


def test_a_servers_problem(capsys: pytest.CaptureFixture[str]) -> None:
    """Its detail is in the agent's event, and in the peer's log."""
    body = json.dumps({"code": "malformed_message", "detail": WORDS}).encode()
    transport = httpx.MockTransport(lambda request: httpx.Response(400, content=body))
    once = RetryPolicy(attempts=1)
    with pytest.raises(Unavailable) as unsigned:  # nobody signed it: it is quoted, and not believed
        ServerClient(Side.A, ROSTER.operator_a, keys(SITE), transport, retry=once).studies()
    for error in (unsigned.value, problem_to_error(400, body, "operator-a"), error_from(body, 400)):
        assert harmless(error.detail)
        event = AgentEvent(kind=EventKind.PROBLEM, site=SITE, study="unit", text=error.detail)
        client_agent.cli.agent._print_event(event)
        assert harmless(capsys.readouterr().out)


def test_an_event_of_any_kind(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever place forgot to ask: neither form of an event's line passes the words on."""
    event = AgentEvent(kind=EventKind.FINISHED, site=SITE, study="unit", text=WORDS.replace("\n", " "))
    rounds = AgentEvent(kind=EventKind.ROUND, site=SITE, study="unit", round=1, record=record(1, reason=WORDS))
    for show_event in (client_agent.cli.agent._print_event, client_agent.cli.agent._print_json):
        for one in (event, rounds):
            show_event(one)
            assert harmless(capsys.readouterr().out)


def test_the_reason_of_a_studys_end(capsys: pytest.CaptureFixture[str]) -> None:
    end = present(ended_as(StudyState.CANCELLED, DIGEST))
    worded = end.model_copy(update={"message": end.message.model_copy(update={"reason": WORDS})})
    shown = StudyView(study="unit", study_digest=DIGEST, end=worded, cursor=1, ready=(), mail=())
    for as_json in (False, True):
        client_agent.cli.watch._print_state(shown, as_json)
        assert harmless(capsys.readouterr().out)


@pytest.mark.parametrize("problem", ["", WORDS])
def test_a_ranking(problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "studies" / "hearts"
    place.mkdir(parents=True)
    absent = UnrankedSite(site=SITE, reason=WORDS)
    ranking = Ranking(study="hearts", requester=REQUESTER, round=1, problem=problem, unranked=(absent,))
    if not problem:
        ranking = ranking.model_copy(update={"own_loss": 0.5, "judged_on": JudgedOn.VALIDATION})
    (place / RANKING_FILE).write_text(ranking.model_dump_json())
    for as_json in (False, True):
        show_rankings(tmp_path, None, json_output=as_json)
        assert harmless_table(capsys.readouterr().out)


def test_rounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names are checked where they come in; a metrics file of another hand is shown all the same."""
    records = (record(1, took_part=("r0", WORDS), failed_check=(WORDS,)),)
    client_agent.cli.watch._print_table(records)
    assert "[/]" in capsys.readouterr().out


def test_a_roster_shown_before_it_is_signed(tmp_path: Path) -> None:
    """An operator's address is a host and a port; what would write on a terminal is in no roster."""
    operator = ROSTER.operator_a.model_copy(update={"url": "https://[b]\x1b"})
    signed = PARTIES.roster.model_copy(update={"message": ROSTER.model_copy(update={"operator_a": operator})})
    path = tmp_path / "roster.toml"
    path.write_text(dump_roster(signed))
    with pytest.raises(MalformedMessage, match="a server's address is https://HOST") as refused:
        show(path)
    assert "\x1b" not in refused.value.detail


def test_a_layers_name() -> None:
    """Errors at every site quote it; so it is one or the study is none."""
    for name in (WORDS, "", "x" * 201):
        with pytest.raises(MalformedMessage, match=r"1 to 200 printable characters"):
            LayerShape.parse(json.dumps({"name": name, "shape": [1]}).encode())


def test_logs_of_both_programs(capsys: pytest.CaptureFixture[str]) -> None:
    for configure in (server_log.configure, client_agent.cli.watch.log_to_stderr):
        configure()
        try:
            structlog.get_logger("x").warning("refused", detail=WORDS, route="/v1/" + "x" * 10**6)
        finally:
            structlog.reset_defaults()
        (line,) = capsys.readouterr().err.splitlines()
        assert line.isascii()
        assert "\\u001b" not in line
        assert "\\u202e" not in line
        assert len(line) < 20_000
        assert json.loads(line)["detail"].startswith("no\ufffd]0;owned")


def test_an_error_that_a_command_ends_with(capsys: pytest.CaptureFixture[str]) -> None:
    def refused() -> None:
        raise MalformedMessage(WORDS)

    with pytest.raises(SystemExit):
        end_with(refused)
    shown = capsys.readouterr().err
    assert "\x1b]0" not in shown
    assert "\x07" not in shown


def test_labels_of_a_plot_and_cells_of_the_report() -> None:
    """matplotlib reads dollars as formulas and refuses wrong ones; a page reads angle brackets."""
    svg = _chart({r"$\frac{$ <script>alert(1)</script>": (0.5, 0.25)}, "accuracy")
    assert "<script" not in svg
    assert "&lt;script" in svg


# --- printable --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("Spital Zürich, 3.5 % – 'ok' 𝔽", "Spital Zürich, 3.5 % – 'ok' 𝔽"),
        ("\x1b[31mred\x1b[0m", "\ufffd[31mred\ufffd[0m"),
        ("\x1b]0;title\x07", "\ufffd]0;title\ufffd"),
        ("\x9b2J", "\ufffd2J"),
        ("one\ntwo\r\nthree\tfour", "one two  three four"),
        ("in\u202eorder\u2066 of\u200f\u061c", "in\ufffdorder\ufffd of\ufffd\ufffd"),
        ("zero\u200bwidth\ufeff", "zero\ufffdwidth\ufffd"),
        ("tags\U000e0041", "tags\ufffd"),
        ("line\u2028 and\u2029 page\x0c", "line  and  page "),
        ("\ud800 alone", "\ufffd alone"),
        ("private \ue000", "private \ufffd"),
        ("a\u00a0b\u3000c", "a b c"),
    ],
)
def test_what_a_terminal_would_act_on_is_replaced(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(shown) == shown


def test_every_character_there_is() -> None:
    shown = printable("".join(map(chr, range(sys.maxunicode + 1))), sys.maxunicode + 1)
    assert shown.isprintable()
    assert len(shown) == sys.maxunicode + 1


def test_the_length_is_bounded() -> None:
    assert printable("x" * MOST_CHARACTERS) == "x" * MOST_CHARACTERS
    cut = printable("x" * 10**7)
    assert len(cut) == MOST_CHARACTERS
    assert cut.endswith("x ...")
    assert printable("abcdefgh", 6) == "ab ..."


def test_this_programs_own_lines_stay() -> None:
    assert printable_lines("columns:\n  - age\x1b[1m\n  + weight") == "columns:\n  - age\ufffd[1m\n  + weight"
    assert len(printable_lines("x\n" * 10**6)) <= 2**16


def test_texts_among_values() -> None:
    assert printable_values({"detail": "a\x07", "round": 3, "listed": None}) == {
        "detail": "a\ufffd",
        "round": 3,
        "listed": None,
    }


def test_every_error_shows_printable_words_only() -> None:
    """Errors quote what was found: the one place where all of it passes."""
    error = MalformedMessage("found '\x1b[2J\u202e'")
    assert error.detail == str(error) == "found '\ufffd[2J\ufffd'"
