"""Two answers about a column never differ by a few patients: each answers one question (docs/protocol.md 17)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_agent.site.remembered_cohorts import CohortMemory
from protocol.errors import Clause, PolicyRefusal
from protocol.policy.cohorts import Cohort, check_questions
from protocol.policy.site_policy import SitePolicy
from protocol.summary.layout import Categories, Layout, Numeric
from protocol.summary.protection import (
    FIRST_LINE,
    PLACES,
    Codes,
    Numbers,
    OwnColumn,
    Protection,
    Question,
    counts_question,
    shared_vector,
    summary_questions,
)
from tests.unit.summary.tables import AGE, FLAG, LAYOUT, STAGE, protection, table

NAMES = ("age", "flag", "stage")


def asked(
    layout: Layout = LAYOUT,
    columns: tuple[Numbers | Codes, ...] = (),
    by: Protection | None = None,
    names: tuple[str, ...] = NAMES,
    named_in: str = FIRST_LINE,
) -> tuple[Question, ...]:
    own = [OwnColumn(name, named_in) for name in names]
    return summary_questions(layout, own, columns or table(0), by or protection())


def round_of(number: int, questions: tuple[Question, ...]) -> Cohort:
    return Cohort(
        study_digest=f"{number:064}", round=1, listed=tuple("abc"), least=3, questions=questions, requester="r"
    )


def require_refused(first: tuple[Question, ...], second: tuple[Question, ...]) -> str:
    with pytest.raises(PolicyRefusal) as refused:
        check_questions(round_of(2, second), [round_of(1, first)], 1)
    assert refused.value.clause is Clause.QUESTION
    return refused.value.detail


def test_two_ranges_that_count_the_patients_beyond_them_are_not_both_answered(tmp_path: Path) -> None:
    """The sums' difference is the ranges' difference times the number of patients beyond them, but for the rounding."""
    ages = np.concatenate([np.linspace(20, 89, 9800), np.full(200, 99.0)])
    by = protection()
    layouts = [Layout((Numeric("age", 0.0, high),), most_rows=10_000) for high in (98.0, 96.0)]
    shared = [shared_vector(layout, (ages,), by) for layout in layouts]
    values, units = int(shared[0][0]) * 5, [vector[2] / layouts[0].resolution for vector in shared]
    sums = [(unit + values) * layout.columns[0].half for unit, layout in zip(units, layouts, strict=True)]  # type: ignore[union-attr]
    rounding = 2.5 * (49.0 + 48.0) / 2
    assert (sums[0] - sums[1]) / 2 == pytest.approx(200 * values / 10_000, abs=rounding), "the attack counts 200"
    memory = CohortMemory(tmp_path, lambda: by.key)
    first, second = (round_of(n, asked(layout, (ages,), by, ("age",))) for n, layout in enumerate(layouts))
    memory.agree(first, 0, SitePolicy())
    memory.agree(first.model_copy(update={"study_digest": "9" * 64}), 0, SitePolicy())
    again = CohortMemory(tmp_path, lambda: by.key)
    with pytest.raises(PolicyRefusal, match=r"asked are range = \[0.0, 96.0\], the other time range = \[0.0, 98.0\]"):
        again.agree(second, 0, SitePolicy())
    again.agree(second, 0, SitePolicy(most_questions=2))


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"columns": (Numeric("age", 0.0, 99.5), FLAG, STAGE)}, id="range"),
        pytest.param({"bins": 11}, id="bins"),
        pytest.param({"rounded_to": 6}, id="rounding"),
        pytest.param({"most_rows": 10**6}, id="resolution"),
        pytest.param({"second_moments": True}, id="second moments"),
        pytest.param({"columns": (AGE, FLAG, Categories("stage", ("I", "II", "III"), "I"))}, id="other"),
        pytest.param({"columns": (AGE, FLAG, Categories("stage", ("I", "II or III", "IV"), "IV"))}, id="merged"),
        pytest.param({"columns": (AGE, FLAG, Numeric("stage", 0.0, 2.0))}, id="a number now"),
    ],
)
def test_another_question_is_refused(changed: dict[str, Any]) -> None:
    layout = replace(LAYOUT, **changed)
    require_refused(asked(), asked(layout, by=replace(protection(), rounded_to=layout.rounded_to)))


def test_another_threshold_is_another_question() -> None:
    require_refused(asked(), asked(by=protection(least=11)))


@pytest.mark.parametrize("less", [np.s_[:-1], np.s_[1:]])
def test_other_rows_are_refused(less: slice) -> None:
    """A patient more or fewer: by another split, rows dropped, another query, other marks of missing, new data."""
    fewer = tuple(values[less] for values in table(0))
    assert "the same was asked of other rows or values" in require_refused(asked(), asked(columns=fewer))


@pytest.mark.parametrize(
    "converted",
    [lambda age: age, lambda age: age * 12, lambda age: 200 - age, np.log],
    ids=["copy", "unit", "turned", "log"],
)
def test_a_copy_under_another_name_or_in_another_unit_is_the_same_column(
    converted: Callable[[Numbers], Numbers],
) -> None:
    """In a later summary, and twice in one."""
    age, _, _ = table(0)
    copy, again = Numeric("alter", 0.0, 1300.0), converted(age)
    first = asked(Layout((AGE,)), (age,), names=("age",))
    later = asked(Layout((copy,)), (again,), names=("alter",))
    assert "as column 'age'" in require_refused(first, later)
    require_refused((), asked(Layout((AGE, copy)), (age, again), names=("age", "alter")))


def test_what_a_study_calls_a_column_does_not_matter() -> None:
    renamed = (Numeric("a", 0.0, 101.0), FLAG, STAGE)
    told = require_refused(asked(), asked(replace(LAYOUT, columns=renamed), columns=table(1)))
    assert "column 'a'" in told


def test_the_same_question_and_other_columns_are_answered() -> None:
    """Others' names, and columns beside it that leave the sums' units as they are, change no answer."""
    age, flag, stage = table(0)
    known = [round_of(1, asked(Layout((AGE, STAGE)), (age, stage), names=("age", "stage")))]
    check_questions(round_of(2, asked(Layout((AGE, STAGE)), (age, stage), names=("age", "stage"))), known, 1)
    weight = np.random.default_rng(5).normal(70, 9, len(age))
    check_questions(
        round_of(3, asked(Layout((Numeric("weight", 0, 200), FLAG)), (weight, flag), names=("weight", "flag"))),
        known,
        1,
    )
    empty = np.full(120, np.nan)
    layout = Layout((Numeric("p", 0.0, 1.0), Numeric("q", 0.0, 2.0)))
    check_questions(round_of(4, asked(layout, (empty, empty), names=("p", "q"))), known, 1)


def test_class_counts_are_counted_once_as_they_are() -> None:
    def counted(counts: tuple[int, ...], column: str = "ill") -> tuple[Question, ...]:
        return (counts_question(OwnColumn(column, FIRST_LINE), "ill", counts, bytes(32)),)

    known = [round_of(1, counted((60, 40)))]
    check_questions(round_of(2, counted((60, 40))), known, 1)
    check_questions(round_of(2, counted((60, 40, 0))), known, 1)
    check_questions(round_of(2, counted((59, 40), "readmitted")), known, 1)
    for other in (counted((59, 40)), counted((40, 60))):
        require_refused(known[0].questions, other)
        check_questions(round_of(2, other), known, 2)


def flag_asked(name: str, named_in: str, rows: int = 100) -> tuple[Question, ...]:
    """A column that is not known again by its order."""
    return asked(Layout((FLAG,)), (table(0)[1][:rows],), names=(name,), named_in=named_in)


@pytest.mark.parametrize(
    ("before", "now", "same"),
    [
        (("age [years]", FIRST_LINE), ("age [years]", FIRST_LINE), True),
        (("age [years]", FIRST_LINE), ("sex", FIRST_LINE), False),
        (("age [years]", FIRST_LINE), ("age [months]", FIRST_LINE), False),
        (("column 1", PLACES), ("column 1", PLACES), True),
        (("column 1", PLACES), ("column 2", PLACES), False),
        (("column 1", PLACES), ("age", FIRST_LINE), True),
        (("age", "query a"), ("age", "query a"), True),
        (("age", "query a"), ("sex", "query a"), False),
        (("age", "query a"), ("sex", "query b"), True),
        (("age", "query a"), ("sex", FIRST_LINE), True),
        (("age", ""), ("age [years]", FIRST_LINE), True),
        (("age (years)", ""), ("age", ""), True),
        (("age", ""), ("sex [0: w]", FIRST_LINE), False),
        (("age", ""), ("column 2", PLACES), True),
        (("age", ""), ("sex", "query a"), True),
        (("column 1", ""), ("sex", FIRST_LINE), True),
        (("column 1", ""), ("column 2", PLACES), True),
    ],
)
def test_names_that_different_things_gave_may_be_of_one_column(
    before: tuple[str, str], now: tuple[str, str], same: bool
) -> None:
    """Those of a study, as an older release kept them and as a query gives them, say little about a site's columns."""
    counts = [
        (counts_question(OwnColumn(*one), "ill", (60, 40 - at), bytes(32)),) for at, one in enumerate((before, now))
    ]
    for first, second in ((flag_asked(*before), flag_asked(*now, rows=99)), counts):
        for one, other in ((first, second), (second, first)):
            if same:
                require_refused(one, other)
            else:
                check_questions(round_of(2, other), [round_of(1, one)], 1)
    check_questions(round_of(2, counts[1]), [round_of(1, flag_asked(*before))], 1)


def test_class_counts_without_a_schema_may_be_of_any_column() -> None:
    unknown, known = (
        (counts_question(OwnColumn(*own), "class", counts, bytes(32)),)
        for own, counts in ((("", ""), (60, 40)), (("ill", FIRST_LINE), (60, 39)))
    )
    require_refused(unknown, known)
    require_refused(known, unknown)
    check_questions(round_of(2, unknown), [round_of(1, unknown)], 1)


def test_what_an_older_release_wrote_down_is_read() -> None:
    older = flag_asked("age", "")[0].model_dump(exclude={"named_in"})
    assert Question.model_validate(older).named_in == ""
