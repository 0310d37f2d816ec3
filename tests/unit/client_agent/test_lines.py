"""A round in one line: every purpose and every end has its words."""

from __future__ import annotations

import io

import pytest
from rich.table import Table

from client_agent.cli.agent import _print_event
from client_agent.cli.lines import round_line
from client_agent.cli.tables import WholeNames, add_row, console, table
from client_agent.site.events import (
    Absence,
    Absent,
    AgentEvent,
    EventKind,
    RoundEnd,
    RoundRecord,
    after_each,
    site_values,
)
from protocol.messages.control import Purpose


@pytest.mark.parametrize("purpose", list(Purpose))
def test_a_round_of_every_purpose_has_a_line(purpose: Purpose) -> None:
    record = RoundRecord(
        time_s=0.0, study="heart", site="c1", round=7, state=RoundEnd.CLOSED, purpose=purpose, model_version=1
    )
    line = round_line(record, None)
    assert line.startswith("round 7 closed")
    assert (" (" in line) is (purpose is not Purpose.UPDATE)


def test_a_round_without_others_shows_no_weights_and_who_is_missing() -> None:
    weights = site_values([("c1", 1.0), ("c2", 0.5)])
    absent = (
        Absence(site="c2", why=Absent.DECLINED, text="isolation: too close"),
        Absence(site="c3", why=Absent.NOT_READY),
    )
    record = RoundRecord(
        time_s=0, study="heart", site="c0", round=7, state=RoundEnd.ALONE, model_version=1, alphas=weights
    )
    assert "c1" not in round_line(record, None)
    released = record.model_copy(update={"state": RoundEnd.RELEASED, "took_part": ("c0", "c1"), "absences": absent})
    assert round_line(released, None).endswith(
        ", took part: c0 c1, without: c2 (declined: isolation: too close), c3 (not ready), weights: c1=1.000 c2=0.500"
    )


def test_a_measurement_is_told_from_a_sum() -> None:
    record = RoundRecord(
        time_s=0.0, study="heart", site="c1", round=7, state=RoundEnd.CLOSED, purpose=Purpose.MEASURE, model_version=1
    )
    assert round_line(record, None) == "round 7 closed (measured, nothing summed): 0.00 s, 0 kB"


def test_a_reason_that_the_line_before_gave_is_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    """Of a study that goes on alone it stood in every line, and so did what a site said that declines."""
    long, other = "the policies of the sites that are left allow no list: " + "x" * 200, "too few"
    first = RoundRecord(
        time_s=0, study="heart", site="c0", round=7, state=RoundEnd.SKIPPED, reason=long, model_version=1,
        absences=(Absence(site="c2", why=Absent.DECLINED, text=long), Absence(site="c3", why=Absent.NOT_READY)),
    )  # fmt: skip
    records = (first, first, first.model_copy(update={"reason": other, "absences": first.absences[1:]}), first)
    lines = [round_line(record, before) for before, record in after_each(records)]
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
