"""A study's table: what its columns become, what no table can be, and studies without one have the bytes they had."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from client_agent.learning.study_file import parse_study_table, study_from_toml
from protocol.configuration import validated
from protocol.errors import Clause, ConfigurationError, PolicyRefusal
from protocol.messages.control import (
    ColumnRole,
    ColumnSpec,
    ColumnType,
    LayerShape,
    LossName,
    ModelSpec,
    RuleName,
    RuleSpec,
    Study,
    SummarySpec,
    TableSchema,
    TaskKind,
    TaskSpec,
)
from protocol.messages.purpose import Purpose
from protocol.messages.table import reading_statement
from protocol.policy.site_policy import SitePolicy, check_study_allowed
from protocol.summary.layout import Categories, Numeric
from tests.kit.present import present
from tests.unit.client_agent.federation import ROSTER
from tests.unit.parties import parties, study

# --- schema -----------------------------------------------------------------------------------------------------------

AGE = {"name": "age", "type": "number"}
PAIN = {"name": "pain", "type": "category", "categories": ["1", "2", "3"], "labels": ["no", "some", "some"]}
ILL = {"name": "ill", "type": "boolean", "role": "target", "categories": ["0", "1"], "labels": ["healthy", "ill"]}
PATIENT = {"name": "p", "type": "text", "role": "patient"}
SEEN = {"name": "seen", "type": "time", "role": "observed_at"}
TARGET = {"role": "target"}
TIME = {"name": "days", "type": "number", "role": "survival_time"}
EVENT = {"name": "died", "type": "boolean", "role": "event"}
SURVIVAL = """
[[schema.columns]]
name = "days"
type = "number"
role = "survival_time"
[[schema.columns]]
name = "died"
type = "boolean"
role = "event"
"""
STUDY = """
name = "first"
rounds = 3
[model]
kind = "linear"
[rule]
name = "fedavg"
[parameters]
clip_norm = 2.0
[schema]
missing_marks = ["?"]
[[schema.columns]]
name = "age"
type = "number"
missing = "indicator"
[[schema.columns]]
name = "ill"
type = "category"
role = "target"
categories = ["a", "b", "c"]
"""


def schema(*columns: dict[str, Any], **more: Any) -> TableSchema:
    return TableSchema.model_validate_json(json.dumps({"columns": columns or (AGE, PAIN, ILL), **more}))


def test_a_study_without_a_table_has_no_trace_of_one() -> None:
    plain = study(parties().roster.message.digest())
    assert b"data_schema" not in plain.canonical()
    model = plain.model.model_copy(update={"inputs": (3,), "classes": 2})
    tabled = plain.model_copy(update={"data_schema": schema(), "model": model})
    assert Study.parse(tabled.canonical()) == tabled
    assert tabled.digest() != plain.digest()


def test_what_columns_become() -> None:
    made = schema({**AGE, "missing": "indicator"}, {**PAIN, "missing": "category"}, ILL)
    assert made.feature_names == ("age", "age missing", "pain=no", "pain=some", "pain=missing")
    assert made.class_names == ("healthy", "ill")
    assert made.columns[1].class_of == (0, 1, 1)
    assert made.marks_of(made.columns[0]) == ("",)


@pytest.mark.parametrize(
    ("columns", "more", "said"),
    [
        ((AGE, AGE, ILL), {}, "column 'age' is there more than once"),
        ((AGE, {**AGE, "name": "\u212b"}, {**AGE, "name": "A\u030a"}, ILL), {}, "column 'Å' is there more than once"),
        (({**PAIN, "categories": ["1", "\u00e4", "a\u0308"]}, ILL), {}, "category 'ä' is there more than once"),
        (({**PAIN, "labels": ["\u00e4", "a\u0308", "b"]}, ILL), {}, "'pain=ä' is there more than once"),
        ((PAIN, {**AGE, "name": "pain=no"}, ILL), {}, "'pain=no' is there more than once"),
        ((AGE, PAIN), {}, "give one column or more of role 'target'"),
        ((AGE, ILL, {"name": "t", "type": "number", "role": "survival_time"}), {}, "found 1, 1 and 0"),
        ((ILL, {**ILL, "name": "dead"}), {}, "nothing to learn from"),
        ((AGE, ILL), {"scaling": "range"}, "'range' needs range of column 'age'"),
        ((AGE, ILL), {"split": {"order": "time"}}, "needs a column of role 'observed_at'"),
        ((AGE, ILL), {"split": {"test": 0.5, "validation": 0.5}}, "leave a share to train on"),
        (({**AGE, "range": [9, 1]}, ILL), {}, r"range is \[least, most\]"),
        (({**AGE, "categories": ["1"]}, ILL), {}, "a column of type 'number' has no categories"),
        (({**AGE, "missing": "category"}, ILL), {}, "missing values of a feature of type 'number'"),
        (({**AGE, "centre": 1.0}, ILL), {}, "centre and spread go together"),
        (({**PAIN, "unit": "mm"}, ILL), {}, "has no unit"),
        (({**PAIN, "labels": ["no"]}, ILL), {}, "1 labels and 3 categories"),
        (({**PAIN, "labels": ["a", "a", "a"]}, ILL), {}, "a column of one category tells nothing"),
        (({**PAIN, "categories": ["1", "1", "2"]}, ILL), {}, "category '1' is there more than once"),
        (({**PAIN, "other": "9"}, ILL), {}, "other is one of its categories"),
        ((AGE, {**ILL, "missing": "median"}), {}, "missing values of a target"),
        (({**AGE, "type": "text"}, ILL), {}, "a feature has one of the types"),
        (({**AGE, "name": "a\nge"}, ILL), {}, "is no name"),
        (({**AGE, "unit": "y\x1b[2J"}, ILL), {}, r"'y\\x1b\[2J' holds a character that is not printable"),
        ((AGE, {**SEEN, "format": "%Y\n"}, ILL), {}, "not printable"),
        ((AGE, {**ILL, "categories": ["0", "1", "2"], "labels": ["a", "b", "c"]}), {}, "two, false first, found 3"),
        ((AGE, PATIENT, {**PATIENT, "name": "q"}, ILL), {}, "2 columns have role 'patient', one can"),
        ((AGE, ILL, {**AGE, "name": "y", "role": "target"}), {}, "targets of one study have one type"),
        ((AGE, {**PAIN, **TARGET}, {**PAIN, **TARGET, "name": "q"}), {}, "or there is one of type 'category'"),
        ((AGE, ILL), {"query": "x" * 20000}, "16384"),
        ((*({**AGE, "name": f"{'x' * 190}{n}"} for n in range(700)), ILL), {}, "a schema holds 131072 bytes"),
    ],
)
def test_what_no_table_can_be(columns: tuple[dict[str, Any], ...], more: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        schema(*columns, **more)


def test_a_study_file_takes_inputs_and_names_from_its_schema() -> None:
    made = study_from_toml(STUDY, "s.toml", ROSTER, None)
    assert made.model.inputs == (2,)
    assert made.model.feature_names == ("age", "age missing")
    assert (made.model.classes, made.model.class_names) == (3, ("a", "b", "c"))
    assert made.task.kind is TaskKind.CLASSES
    assert present(made.data_schema).only(ColumnRole.PATIENT) is None


@pytest.mark.parametrize(
    ("instead", "said"),
    [
        ('kind = "linear"\ninputs = [7]\nfeature_names = []', r"makes 2 features, so model.inputs must be \[2\]"),
        ('kind = "linear"\nfeature_names = ["x", "y"]', "model.feature_names are not what the schema makes"),
        ('kind = "linear"\nclass_names = ["x", "y", "z"]', "model.class_names are not the target's"),
    ],
)
def test_a_model_that_the_table_does_not_fit_is_refused(instead: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        study_from_toml(STUDY.replace('kind = "linear"', instead), "s.toml", ROSTER, None)


@pytest.mark.parametrize(
    "query",
    [
        "-- patients of 2020\r\nSELECT age FROM t",
        "/* of; 2020 */ SELECT age FROM t; -- done\n;",
        "SELECT age FROM t WHERE note <> 'a;b' AND \"d;e\" = `f;g`",
        "SELECT E'it\\'s; so', 'it''s;', $$a;b$$, $of$c;$$d$of$ FROM t",
        "WITH u AS (SELECT replace(a, 'x', 'y') AS a FROM t) SELECT count(delete), update FROM u",
    ],
)
def test_one_statement_that_reads_is_a_query(query: str) -> None:
    assert schema(AGE, ILL, query=query).query == query
    assert reading_statement(query).rstrip() == query.partition("; -- done")[0].rstrip()


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("-- SELECT 1", "begin with SELECT or WITH"),
        ("COPY t TO 'file'", "begin with SELECT or WITH"),
        ("SELECT 1; SELECT 2", "leave out what follows the first ';'"),
        ("SELECT 1 -- one\r; DROP TABLE t", "control character"),
        ("SELECT 1 /* one /* two */ ; DROP TABLE t */", r"/\* is not closed, or stands in a comment"),
        ("SELECT 'a", "' is not closed"),
        ("SELECT a$b$ ; DROP TABLE t -- b$", "leave out what follows"),
        ("WITH u AS (SELECT 1) DELETE FROM t", "leave out DELETE FROM"),
        ('WITH u AS (UPDATE "t" SET a = 1 RETURNING a) SELECT a FROM u', "leave out UPDATE"),
        ("SELECT a INTO u FROM t", "leave out INTO"),
        ("SELECT a FROM t FOR UPDATE", "leave out FOR UPDATE"),
        ("SELECT E'a'\n'\\' || ' ; DELETE FROM t; --'", r"join them with \|\|"),
        ("SELECT $\u201c$ ' $\u201c$ ; CREATE TEMP TABLE u (a int) --'", "leave out what follows"),
        ("SELECT 1 AS \u201c$$ ; CHECKPOINT; --$$", "leave out what follows"),
    ],
)
def test_a_query_that_no_site_should_run_is_refused_when_the_study_is_written(query: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=f"schema: query: not one statement that reads: .*{said}"):
        study_from_toml(STUDY.replace("[schema]", f"[schema]\nquery = {json.dumps(query)}"), "s.toml", ROSTER, None)


@pytest.mark.parametrize(
    ("target", "tasks", "outputs"),
    [
        ((ILL,), ["classes"], 2),
        ((ILL, {**ILL, "name": "dead"}), ["multi_label"], 2),
        (({"name": "y", "type": "number", "role": "target"},), ["regression"], 1),
        (({"name": "y", "type": "integer", "role": "target"},), ["regression", "counts"], 1),
        ((TIME, EVENT), ["survival"], 1),
    ],
)
def test_targets_fit_tasks(target: tuple[dict[str, Any], ...], tasks: list[str], outputs: int) -> None:
    made = schema(AGE, *target)
    assert [task.value for task in made.tasks] == tasks
    assert made.outputs == outputs


def test_a_study_takes_its_task_from_its_schema_and_no_other() -> None:
    survival = STUDY[: STUDY.index('[[schema.columns]]\nname = "ill"')] + SURVIVAL
    made = study_from_toml(survival, "s.toml", ROSTER, None)
    assert (made.task.kind, made.model.classes, made.model.class_names) == (TaskKind.SURVIVAL, 1, ())
    with pytest.raises(ConfigurationError, match="those of task 'survival', the study's is 'regression'"):
        study_from_toml(survival + '[task]\nkind = "regression"\n', "s.toml", ROSTER, None)
    with pytest.raises(ConfigurationError, match="take a model of 3 outputs, found 4"):
        study_from_toml(STUDY.replace("[rule]", "classes = 4\nclass_names = []\n[rule]"), "s.toml", ROSTER, None)


def test_a_task_of_ones_own_takes_any_targets() -> None:
    made = study_from_toml(STUDY, "s.toml", ROSTER, None)
    own = TaskSpec(kind=TaskKind.OWN, loss=LossName.PLUGIN)
    model = made.model.model_copy(update={"kind": "plugin"})
    assert Study.model_validate({**dict(made), "model": model, "task": own}).task.kind is TaskKind.OWN


def test_errors_name_the_table_as_the_file_does() -> None:
    with pytest.raises(ConfigurationError, match=r"s.toml: schema: unknown key 'missing_mark'; did you mean"):
        parse_study_table(STUDY.replace("missing_marks", "missing_mark"), "s.toml")
    with pytest.raises(ConfigurationError, match="unknown key 'shema'; did you mean 'schema'"):
        parse_study_table(STUDY.replace("schema", "shema"), "s.toml")
    with pytest.raises(ConfigurationError, match=r"schema: key 'columns.0.type'"):
        parse_study_table(STUDY.replace('"number"', '"numeric"'), "s.toml")
    assert validated(TableSchema, schema().model_dump(), "x") == schema()


def test_a_wrong_column_of_two_is_all_that_is_said() -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_study_table(STUDY.replace('"number"', '"numeric"'), "s.toml")
    assert caught.value.detail.count("key '") == 1
    one_column = STUDY.rpartition("[[schema.columns]]")[0]
    for text in (one_column, STUDY.partition("[[schema.columns]]")[0] + "columns = []\n"):
        with pytest.raises(ConfigurationError) as caught:
            parse_study_table(text, "s.toml")
        assert caught.value.detail == "s.toml: schema: a schema needs a feature and a target, so two columns or more"


# --- summary ----------------------------------------------------------------------------------------------------------


def number(name: str, low: float = 0.0, high: float = 1.0, **more: Any) -> ColumnSpec:
    return ColumnSpec(name=name, type=ColumnType.NUMBER, range=(low, high), **more)


TARGET_COLUMN = ColumnSpec(
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


def summary_study(schema: TableSchema | None, summary: SummarySpec | None, rounds: int = 3) -> Study:
    width = 1 if schema is None else len(schema.feature_names)
    model = ModelSpec(kind="linear", inputs=(width,), layers=(LayerShape(name="w", shape=(2, width)),))
    rule = RuleSpec(name=RuleName.FEDAVG)
    return study("0" * 64, 2 * width, rule=rule, model=model, rounds=rounds, data_schema=schema, summary=summary)


SCHEMA = TableSchema(columns=(number("age", 0, 120), *IDS, TARGET_COLUMN))


def test_the_vector_follows_from_the_schema_without_ids_and_times() -> None:
    made = summary_study(SCHEMA, SummarySpec(bins=4))
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
    made = summary_study(TableSchema(columns=(number("age", 0, 120), ids, seen, TARGET_COLUMN)), SummarySpec(bins=4))
    assert [column.name for column in made.summary_layout.columns] == ["age", "stage"]


def test_a_study_may_be_a_summary_alone_and_one_without_has_the_bytes_it_had() -> None:
    alone = summary_study(SCHEMA, SummarySpec(), rounds=0)
    assert alone.last_round(Purpose.UPDATE) == 0
    assert b"summary" not in summary_study(None, None).canonical()
    assert Study.parse(alone.canonical()) == alone


@pytest.mark.parametrize(
    ("schema", "summary", "rounds", "text"),
    [
        (SCHEMA, None, 0, "a study does one or the other"),
        (None, SummarySpec(), 3, "give one, or leave \\[summary\\] out"),
        (
            TableSchema(columns=(ColumnSpec(name="age", type=ColumnType.NUMBER), TARGET_COLUMN)),
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
        summary_study(schema, summary, rounds)


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
    asking = summary_study(SCHEMA, SummarySpec(second_moments=True))
    if clause is None:
        check_study_allowed(asking, policy)
        return
    with pytest.raises(PolicyRefusal) as refused:
        check_study_allowed(asking, policy)
    assert refused.value.clause is clause
