"""A table becomes the folder that the agent reads: what columns become, who is tested on, what is kept beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from client_agent.data.prepare import write
from client_agent.data.rows import load_rows
from client_agent.data.transformation import load_transformation, transform_rows
from client_agent.learning.data import load_folder
from protocol.errors import ConfigurationError
from protocol.summary.scaling import ColumnScaling, CommonScaling
from protocol.wire.messages import TableSchema, TaskKind, TaskSpec
from tests.unit.data.made import AGE, CHOL, COLUMNS, GOOD, ILL, PAIN, SEEN, WHO, prepare, schema, written

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
    assert data.validation is not None
    assert len(data.validation) == 1
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
    assert transform_rows(pa.Table.from_pylist([fitting] * 2), made.transformation).shape == (2, 7)
    with pytest.raises(ConfigurationError, match=f"no prediction for these rows: {said}") as caught:
        transform_rows(pa.Table.from_pylist([row]), made.transformation)
    assert "SECRET" not in caught.value.detail


def test_patients_of_both_files_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "age,ill,who\n50,0,a\n51,1,b\n")
    with pytest.raises(ConfigurationError, match="2 patients have rows in both files"):
        prepare(schema(AGE, ILL, WHO), path, test=path)


def test_sides_do_not_depend_on_the_order_of_rows(tmp_path: Path) -> None:
    made_by: TableSchema = schema(AGE, ILL, WHO, **AS_IT_IS)
    rows = [f"{20 + n},{n % 2},p{n // 2}" for n in range(40)]
    tested = []
    for order in (rows, rows[::-1]):
        made = prepare(made_by, written(tmp_path, "\n".join(["age,ill,who", *order]) + "\n"))
        tested.append(set(made.data.test.X[:, 0].tolist()))
    assert tested[0] == tested[1]
    assert len(tested[0]) == 8
