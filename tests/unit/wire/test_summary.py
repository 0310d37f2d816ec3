"""What a study can ask of the sites' tables: never less protection than usual (docs/protocol.md 17)."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.errors import Clause, PolicyRefusal
from protocol.messages.control import (
    ColumnRole,
    ColumnSpec,
    ColumnType,
    LayerShape,
    ModelSpec,
    RuleName,
    RuleSpec,
    Study,
    SummarySpec,
    TableSchema,
    TrainingSpec,
)
from protocol.messages.purpose import Purpose
from protocol.parameters import StudyParameters
from protocol.policy.site_policy import SitePolicy, check_study_allowed
from protocol.summary.layout import Categories, Numeric


def number(name: str, low: float = 0.0, high: float = 1.0, **more: Any) -> ColumnSpec:
    return ColumnSpec(name=name, type=ColumnType.NUMBER, range=(low, high), **more)


TARGET = ColumnSpec(
    name="stage",
    type=ColumnType.CATEGORY,
    role=ColumnRole.TARGET,
    categories=("1", "2", "9"),
    labels=("early", "late", "late"),
    other="9",
)
IDS = (
    ColumnSpec(name="id", type=ColumnType.TEXT, role=ColumnRole.PATIENT),
    ColumnSpec(name="seen", type=ColumnType.TIME, role=ColumnRole.OBSERVED_AT),
)


def study(schema: TableSchema | None, summary: SummarySpec | None, rounds: int = 3) -> Study:
    width = 1 if schema is None else len(schema.feature_names)
    return Study(
        name="s",
        roster_digest="0" * 64,
        parameters=StudyParameters(dimension=2 * width, clip_norm=1.0, least_contributors=3),
        rule=RuleSpec(name=RuleName.FEDAVG),
        model=ModelSpec(kind="linear", inputs=(width,), layers=(LayerShape(name="w", shape=(2, width)),)),
        training=TrainingSpec(),
        rounds=rounds,
        data_schema=schema,
        summary=summary,
    )


SCHEMA = TableSchema(columns=(number("age", 0, 120), *IDS, TARGET))


def test_the_vector_follows_from_the_schema_without_ids_and_times() -> None:
    made = study(SCHEMA, SummarySpec(bins=4))
    assert made.summary_layout.columns == (
        Numeric("age", 0, 120),
        Categories("stage", ("early", "late"), "late"),
    )
    parameters = made.parameters_in(Purpose.SUMMARY)
    assert (parameters.dimension, parameters.encoded_norm, parameters.weight_grid) == (8 + 4, 2**21, 1)
    assert [made.last_round(purpose) for purpose in (Purpose.SUMMARY, Purpose.COUNTS, Purpose.UPDATE)] == [3, 0, 6]


def test_ids_and_times_that_are_whole_numbers_are_not_summarised_either() -> None:
    ids = ColumnSpec(name="id", type=ColumnType.INTEGER, role=ColumnRole.PATIENT, range=(1000, 1020))
    seen = ColumnSpec(name="seen", type=ColumnType.INTEGER, role=ColumnRole.OBSERVED_AT, range=(2000, 2020))
    made = study(TableSchema(columns=(number("age", 0, 120), ids, seen, TARGET)), SummarySpec(bins=4))
    assert [column.name for column in made.summary_layout.columns] == ["age", "stage"]


def test_a_study_may_be_a_summary_alone_and_one_without_has_the_bytes_it_had() -> None:
    alone = study(SCHEMA, SummarySpec(), rounds=0)
    assert alone.last_round(Purpose.UPDATE) == 0
    assert b"summary" not in study(None, None).canonical()
    assert Study.parse(alone.canonical()) == alone


@pytest.mark.parametrize(
    ("schema", "summary", "rounds", "text"),
    [
        (SCHEMA, None, 0, "a study does one or the other"),
        (None, SummarySpec(), 3, "give one, or leave \\[summary\\] out"),
        (
            TableSchema(columns=(ColumnSpec(name="age", type=ColumnType.NUMBER), TARGET)),
            SummarySpec(),
            3,
            "column 'age': a summary clips to the schema's range",
        ),
        (SCHEMA, SummarySpec(most_rows=10**8), 3, "more than a summary holds"),
    ],
)
def test_a_summary_that_cannot_be_is_refused(
    schema: TableSchema | None, summary: SummarySpec | None, rounds: int, text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        study(schema, summary, rounds)


@pytest.mark.parametrize(
    "asked", [{"bins": 21}, {"bins": 400}, {"least_examples": 9}, {"rounded_to": 1}, {"most_rows": 0}, {"ranges": []}]
)
def test_nobody_asks_for_less_protection_than_usual(asked: dict[str, Any]) -> None:
    """A schema with hundreds of bins on one value, a threshold of one patient, exact counts."""
    with pytest.raises(ValueError, match="SummarySpec"):
        SummarySpec(**asked)


def test_a_site_takes_part_in_no_summary_unless_it_says_so() -> None:
    policy = SitePolicy()
    assert (policy.may_summarise, policy.may_share_second_moments, policy.least_examples) == (False, False, 10)
    with pytest.raises(ValueError, match="least_examples"):
        SitePolicy(least_examples=5)


@pytest.mark.parametrize(
    ("policy", "clause"),
    [
        (SitePolicy(), Clause.MAY_SUMMARISE),
        (SitePolicy(may_summarise=True), Clause.SECOND_MOMENTS),
        (SitePolicy(may_summarise=True, may_share_second_moments=True), None),
    ],
)
def test_a_policy_that_says_no_refuses_the_study(policy: SitePolicy, clause: Clause | None) -> None:
    asking = study(SCHEMA, SummarySpec(second_moments=True))
    if clause is None:
        check_study_allowed(asking, policy)
        return
    with pytest.raises(PolicyRefusal) as refused:
        check_study_allowed(asking, policy)
    assert refused.value.clause is clause
