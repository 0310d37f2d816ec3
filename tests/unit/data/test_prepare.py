"""A table becomes the folder that the agent reads: what columns become, who is tested on, what is kept beside it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from client_agent.data.prepare import Prepared, write
from client_agent.data.rows import Rows, load_rows
from client_agent.data.site_table import PLAIN, SiteColumn, SiteTable
from client_agent.data.transformation import ColumnFit, features, fit, load_transformation, transform_file
from client_agent.learning.data import load_folder
from protocol.errors import ConfigurationError
from protocol.messages.control import TableSchema, TaskKind, TaskSpec
from protocol.summary.table_one import ColumnScaling, CommonScaling
from tests.kit.present import present
from tests.unit.data.made import (
    AGE,
    CHOL,
    COLUMNS,
    GOOD,
    ILL,
    PAIN,
    SEEN,
    WHO,
    prepare,
    report,
    schema,
    transformed,
    written,
)

EVENT = {"name": "died", "type": "boolean", "role": "event"}
DAYS = {"name": "days", "type": "number", "role": "survival_time"}
AS_IT_IS: dict[str, Any] = {"scaling": "none"}


def test_what_columns_become(tmp_path: Path) -> None:
    made = prepare(schema(**AS_IT_IS), written(tmp_path, GOOD), test=written(tmp_path, GOOD, "test.csv"))
    assert made.data.names.features == ("age", "chol", "chol missing", "pain=1", "pain=2", "pain=3", "pain=missing")
    assert made.data.train.X.tolist() == [
        [50, 200, 0, 1, 0, 0, 0],
        [60, 205, 1, 0, 1, 0, 0],
        [70, 240, 0, 0, 0, 0, 1],
        [40, 210, 0, 0, 0, 1, 0],
        [45, 190, 0, 1, 0, 0, 0],
        [55, 205, 0, 0, 1, 0, 0],
    ]
    assert made.data.train.y.tolist() == [0, 1, 1, 0, 1, 0]
    assert made.data.names.classes == ("0", "1")


@pytest.mark.parametrize(
    ("target", "task", "outputs", "text", "y"),
    [
        ((ILL, {**ILL, "name": "dead"}), TaskKind.MULTI_LABEL, 2, "age,ill,dead\n5,0,1\n6,1,0\n", [[0, 1], [1, 0]]),
        (({**AGE, "name": "y", "role": "target"},), TaskKind.REGRESSION, 1, "age,y\n5,1.5\n6,2\n", [[1.5], [2]]),
        (({"name": "y", "type": "integer", "role": "target"},), TaskKind.COUNTS, 1, "age,y\n5,3\n6,2\n", [[3], [2]]),
        ((DAYS, EVENT), TaskKind.SURVIVAL, 1, "age,days,died\n5,30,1\n6,9,0\n", [[30, 1], [9, 0]]),
        ((EVENT, DAYS), TaskKind.SURVIVAL, 1, "age,days,died\n5,30,1\n6,9,0\n", [[30, 1], [9, 0]]),
    ],
)
def test_targets_are_those_that_the_task_reads(
    tmp_path: Path, target: tuple[dict[str, Any], ...], task: TaskKind, outputs: int, text: str, y: list[list[float]]
) -> None:
    path = written(tmp_path, text)
    write(tmp_path / "out", prepare(schema(AGE, *target), path, test=path))
    assert load_folder(tmp_path / "out", (1,), outputs, TaskSpec(kind=task)).train.y.tolist() == y


def test_the_folder_is_what_the_agent_reads_and_can_be_made_again(tmp_path: Path) -> None:
    made = prepare(schema(split={"test": 0.3, "validation": 0.2}), written(tmp_path, GOOD), outcomes_differ=False)
    for _ in range(2):
        write(tmp_path / "site" / "data", made)
    folder = tmp_path / "site" / "data"
    data = load_folder(folder, (7,), 2)
    assert (len(data.train), len(data.test)) == (3, 2)
    assert len(present(data.validation)) == 1
    assert load_transformation(folder / "transformation.json") == made.transformation
    assert sorted(path.name for path in (tmp_path / "site").iterdir()) == ["data"]


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    written(tmp_path, "x", "thesis.txt")
    with pytest.raises(ConfigurationError, match="name another folder"):
        write(tmp_path, prepare(schema(), written(tmp_path, GOOD), outcomes_differ=False))
    assert (tmp_path / "thesis.txt").read_text() == "x"


def test_a_linked_folder_stays_a_link_and_its_disk_has_the_rows(tmp_path: Path) -> None:
    made = prepare(schema(), written(tmp_path, GOOD), outcomes_differ=False)
    write(tmp_path / "encrypted" / "data", made)
    (tmp_path / "data").symlink_to("encrypted/data")
    (tmp_path / "encrypted" / "data" / "train.npz").write_bytes(b"old rows")
    write(tmp_path / "data", made)
    assert (tmp_path / "data").is_symlink()
    assert len(load_folder(tmp_path / "encrypted" / "data", (7,), 2).train) == len(made.data.train)


@pytest.mark.parametrize("name", ["train.npz", "model.safetensors"])
def test_a_folder_that_prepare_did_not_make_is_left_alone(tmp_path: Path, name: str) -> None:
    """Arrays of the site's own, and an exported model, which has a transformation too."""
    if name != "train.npz":
        written(tmp_path, "{}", "transformation.json")
    written(tmp_path, "mine", name)
    made = prepare(schema(), written(tmp_path, GOOD, "../table.csv"), outcomes_differ=False)
    with pytest.raises(ConfigurationError, match=f"holds {name}, which this command did not make"):
        write(tmp_path, made)
    assert (tmp_path / name).read_text() == "mine"


def test_rows_are_kept_as_they_were_read_without_ids(tmp_path: Path) -> None:
    made_by = schema(*COLUMNS, WHO)
    path = written(tmp_path, "age,chol,pain,ill,who\n50,?,1,0,otto\n60,200,,1,eva\n")
    write(
        tmp_path / "out",
        prepare(
            made_by,
            path,
            test=written(tmp_path, path.read_text().replace("otto", "ada").replace("eva", "ida"), "t.csv"),
        ),
    )
    columns = load_rows(tmp_path / "out", made_by)
    assert list(columns) == ["age", "chol", "pain", "ill"]
    assert columns["chol"].tolist() == pytest.approx([np.nan, 200], nan_ok=True)
    assert columns["pain"].tolist() == [0, -1]
    assert all(b"otto" not in file.read_bytes() for file in (tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    ("more", "common", "column"),
    [
        ({"scaling": "standard"}, None, [-1, 1]),
        ({"scaling": "range"}, None, [50 / 120, 60 / 120]),
        (
            {"scaling": "common"},
            CommonScaling(study="s", round=1, columns=(ColumnScaling(name="age", mean=40, sd=5),)),
            [2, 4],
        ),
        ({"scaling": "common"}, CommonScaling(study="s", round=1, columns=()), [50, 60]),
        ({"scaling": "none"}, None, [50, 60]),
    ],
)
def test_scales(tmp_path: Path, more: dict[str, str], common: CommonScaling | None, column: list[float]) -> None:
    path = written(tmp_path, "age,ill\n50,0\n60,1\n")
    made = prepare(schema(AGE, ILL, **more), path, test=path, common=common)
    assert made.data.train.X[:, 0].tolist() == pytest.approx(column)
    assert made.transformation.scaling_digest == (None if common is None else common.digest)


def test_a_common_scale_in_the_schema(tmp_path: Path) -> None:
    path = written(tmp_path, "age,ill\n50,0\n60,1\n")
    made = prepare(schema({**AGE, "centre": 40.0, "spread": 10.0}, ILL, scaling="common"), path, test=path)
    assert made.data.train.X[:, 0].tolist() == [1, 2]
    with pytest.raises(ConfigurationError, match="needs its centre and spread in the schema, or the file of a summary"):
        prepare(schema(AGE, ILL, scaling="common"), path, test=path)
    with pytest.raises(ConfigurationError, match="a common scale goes with 'common'"):
        prepare(schema(AGE, ILL), path, test=path, common=CommonScaling(study="s", round=1, columns=()))


def test_the_last_patients_are_tested_on(tmp_path: Path) -> None:
    made_by = schema(AGE, ILL, WHO, SEEN, split={"order": "time", "test": 0.34}, **AS_IT_IS)
    rows = ["1,0,a,2020-01-01", "2,1,a,2023-01-01T08:00:00", "3,0,b,2021-05-05", "4,1,c,2022-01-01", "5,1,b,2020-02-02"]
    made = prepare(made_by, written(tmp_path, "\n".join(["age,ill,who,seen", *rows]) + "\n"))
    assert made.data.test.X[:, 0].tolist() == [1, 2]
    assert made.data.train.X[:, 0].tolist() == [3, 4, 5]


def test_what_does_not_fit_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"(?s)does not fit the study's schema:\n.*'pain': undeclared"):
        prepare(schema(), written(tmp_path, GOOD.replace(",3,", ",9,")))
    with pytest.raises(ConfigurationError, match="too few"):
        prepare(schema(), written(tmp_path, "age,chol,pain,ill\n50,1,1,0\n"), outcomes_differ=False)
    halves = written(tmp_path, "age,ill\n50,0\n51,0\n", "a.csv"), written(tmp_path, "age,ill\n50,1\n", "b.csv")
    with pytest.raises(ConfigurationError, match=r"(?s)the training part of .*one class only"):
        prepare(schema(AGE, ILL), halves[0], test=halves[1])
    path = written(tmp_path, "age,chol,pain,ill\n50,1,1,0\n51,1e39,1,1\n")
    with pytest.raises(ConfigurationError, match="feature 'chol' holds numbers beyond float32"):
        prepare(schema(AGE, {**CHOL, "range": [0, 1e40]}, PAIN, ILL, **AS_IT_IS), path, test=path)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"age": "50", "chol": "1", "pain": "SECRET"}, r"column 'pain': undeclared category in 1 rows \(1\)"),
        ({"age": None, "chol": "1", "pain": "1"}, r"column 'age': missing value in 1 rows"),
        ({"age": "50", "chol": "1"}, r"column 'pain': missing column"),
        ({"age": "500", "chol": "1", "pain": "1"}, r"column 'age': out of range"),
    ],
)
def test_no_prediction_for_a_row_that_does_not_fit(tmp_path: Path, row: dict[str, str], said: str) -> None:
    made = prepare(schema(), written(tmp_path, GOOD), outcomes_differ=False)
    fitting = {"age": 50, "chol": None, "pain": "1"}
    assert transformed(pa.Table.from_pylist([fitting] * 2), made.transformation).shape == (2, 7)
    with pytest.raises(ConfigurationError, match=f"no prediction for these rows: {said}") as caught:
        transformed(pa.Table.from_pylist([row]), made.transformation)
    assert "SECRET" not in caught.value.detail


def test_sides_do_not_depend_on_the_order_of_rows(tmp_path: Path) -> None:
    made_by: TableSchema = schema(AGE, ILL, WHO, **AS_IT_IS)
    rows = [f"{20 + n},{n % 2},p{n // 2}" for n in range(40)]
    tested = []
    for order in (rows, rows[::-1]):
        made = prepare(made_by, written(tmp_path, "\n".join(["age,ill,who", *order]) + "\n"))
        tested.append(set(made.data.test.X[:, 0].tolist()))
    assert tested[0] == tested[1]
    assert len(tested[0]) == 8


def fitted(values: Sequence[float]) -> tuple[ColumnFit, Prepared]:
    """The column "chol" made of these values in the training part."""
    of_file = schema({**CHOL, "missing": "refuse"}, ILL)
    pairs = [(value, n % 2) for n, value in enumerate(values)]
    table = pa.table({"chol": [repr(value) for value, _ in pairs], "ill": [str(ill) for _, ill in pairs]})
    made = prepare(of_file, table, outcomes_differ=False)
    return made.transformation.fitted[0], made


@pytest.mark.parametrize("value", [98.6, 0.1 + 0.2, -37.7, 1e15 + 1, 1e200, -1e308, 1e-300, 5e-324, 0.0])
@pytest.mark.parametrize("rows", [5, 60, 1001])
def test_a_column_of_one_value_becomes_0(value: float, rows: int) -> None:
    """Its standard deviation by rounding made a new patient's feature 3.5e13."""
    found, made = fitted([value] * rows)
    assert (found.centre, found.spread) == (value, 1.0)
    assert not made.data.train.X.any()
    if abs(value) < 1e30:
        new = transformed(pa.table({"chol": [repr(value + 0.5)]}), made.transformation)
        assert abs(new[0, 0]) <= 1


def test_values_that_rounding_alone_parts_are_one() -> None:
    found, made = fitted([98.6, math.nextafter(98.6, 99), math.nextafter(98.6, 98)] * 20)
    assert found.spread == 1
    assert np.abs(made.data.train.X).max() < 1e-12
    for values in ([1e15, 1e15 + 9] * 20, [98.6, 98.6000001] * 20, [0, 1] * 20, [1e-100, 3e-100] * 20):
        spread = float(np.std(values))
        assert fitted(values)[0].spread == pytest.approx(spread, rel=0.2)


@pytest.mark.parametrize(
    ("values", "more"),
    [
        ([1e200, 3e200] * 20, {}),
        ([1.7e308, -1.7e308] * 20, {}),
        ([1e-300, 3e-300] * 20, {}),
        ([1e308, 1.7e308] * 20, {"scaling": "none", "missing": "median"}),
        ([1.0, 2.0] * 20, {"scaling": "range", "range": [-1.7e308, 1.7e308]}),
    ],
)
def test_numbers_beyond_a_standard_deviation_are_refused(values: list[float], more: dict[str, Any]) -> None:
    scaling = more.pop("scaling", "standard")
    table = pa.table({"chol": [repr(one) for one in values], "ill": ["0", "1"] * 20})
    with pytest.raises(ConfigurationError, match="column 'chol': its numbers are too large, or too close to 0"):
        prepare(schema({"name": "chol", "type": "number", **more}, ILL, scaling=scaling), table)


def test_a_common_spread_that_rounding_made_is_1() -> None:
    made_by = {"scaling": "common"}
    column = {"name": "chol", "type": "number", "centre": 98.60000000000001, "spread": 1.4210854715202004e-14}
    rows = Rows((np.array([98.6, 99.1]), np.array([0, 1])))
    known = ColumnScaling(name="chol", mean=98.60000000000001, sd=1.4210854715202004e-14)
    for of_file, common in (
        (schema(column, ILL, **made_by), None),
        (
            schema({"name": "chol", "type": "number"}, ILL, **made_by),
            CommonScaling(study="s", round=1, columns=(known,)),
        ),
    ):
        made = fit(of_file, rows, common)
        assert np.abs(features(made, rows)).max() < 1


@pytest.mark.parametrize(
    "columns",
    [
        ({"name": "y", "type": "number", "role": "target"},),
        ({"name": "y", "type": "number", "role": "survival_time"}, {**ILL, "role": "event"}),
    ],
)
def test_targets_beyond_float32_are_refused(columns: tuple[dict[str, Any], ...]) -> None:
    """They became infinite, and every loss with them."""
    table = pa.table({"age": ["50", "51"] * 5, "y": ["1e39", "2"] * 5, "ill": ["0", "1"] * 5})
    with pytest.raises(ConfigurationError, match="target 'y' holds numbers beyond float32"):
        prepare(schema(AGE, *columns), table)


def test_a_conversion_that_overflows_is_found(tmp_path: Path) -> None:
    site = SiteTable(columns={"chol": SiteColumn(unit="x", factor=1e300)})
    (finding,) = report(schema(), written(tmp_path, GOOD.replace("200", "1e200")), site).findings
    assert "column 'chol': NaN or infinity in 1 rows (1): in the schema's unit" in finding.text


def test_new_rows_are_read_as_the_sites_table_was(tmp_path: Path) -> None:
    """Without the site's file they were read plainly: 5,2 mmol/l as no number, and 5.2 as mg/dl."""
    text = "age;chol;pain;ill\n" + "\n".join(f"{40 + n},5;{5 + n / 10:.1f};1,0;{n % 2}" for n in range(10)).replace(
        ".", ","
    )
    site = SiteTable(
        separator=";", decimal=",", columns={"chol": SiteColumn(unit="mmol/l", factor=38.67, missing_marks=("k.A.",))}
    )
    made = prepare(schema(), written(tmp_path, text), site)
    write(tmp_path / "out", made)
    kept = load_transformation(tmp_path / "out" / "transformation.json")
    assert kept == made.transformation
    new = written(tmp_path, text + "\n60,5;k.A.;2,0;1\n", "new.csv")
    again = transform_file(new, kept)
    assert {row.tobytes() for row in made.data.test.X} < {row.tobytes() for row in again}
    assert again[-1].tolist()[2] == 1
    plain = written(tmp_path, "age,chol,pain\n50.5,200,1\n", "plain.csv")
    assert transform_file(plain, kept, PLAIN).shape == (1, 7)
    with pytest.raises(ConfigurationError):
        transform_file(plain, kept)
    renamed = written(tmp_path, "alter;chol;pain\n50,5;200;1\n", "renamed.csv")
    with pytest.raises(ConfigurationError, match=r"no column 'age'.*; read as the exporting .*: --site FILE says how"):
        transform_file(renamed, kept)
    with pytest.raises(ConfigurationError) as told:
        transform_file(renamed, kept, site)
    assert "exporting site" not in told.value.detail


def test_a_plain_tables_transformation_keeps_its_bytes(tmp_path: Path) -> None:
    made = prepare(schema(), written(tmp_path, GOOD), outcomes_differ=False)
    assert "site" not in json.loads(made.transformation.model_dump_json())


def test_a_spread_that_an_older_release_fitted_by_rounding_predicts_nothing(tmp_path: Path) -> None:
    made = prepare(schema(), written(tmp_path, GOOD), outcomes_differ=False).transformation
    old = made.fitted[0].model_copy(update={"centre": 98.60000000000001, "spread": 1.4210854715202004e-14})
    kept = made.model_copy(update={"fitted": (old, *made.fitted[1:])})
    new = pa.Table.from_pylist([{"age": 99.1, "chol": 1, "pain": "1"}])
    with pytest.raises(ConfigurationError, match=r"column 'age' has one value .* prepare the data again"):
        transformed(new, kept)
