"""Any table: new rows go through what the data went through, no patient is on both sides, tests scale nothing."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from client_agent.data.prepare import Prepared, Side, patient_ids, sides
from client_agent.data.rows import Rows
from client_agent.data.transformation import Transformation
from tests.unit.data.made import AGE, CHOL, ILL, PAIN, WHO, prepare, read, schema, transformed

from .drawn import EXACTLY_AGAIN

SCHEMAS = [
    schema(AGE, CHOL, PAIN, ILL, WHO, scaling=scaling, split={"test": 0.3, "seed": seed})
    for scaling in ("standard", "none")
    for seed in (0, 1)
]
ROW = st.fixed_dictionaries(
    {
        "age": st.floats(0, 120).map(str),
        "chol": st.none() | st.sampled_from(["?", ""]) | st.floats(-1e6, 1e6).map(str),
        "pain": st.sampled_from(["1", "2", "3", "3.0", "?", None]),
        "ill": st.sampled_from(["0", "1", "1.0"]),
        "who": st.sampled_from("abcdefgh"),
    }
)
EIGHT = [{"age": "50", "chol": "200", "pain": "1", "ill": "01"[n % 2], "who": "abcdefgh"[n]} for n in range(8)]
ROWS = st.lists(ROW, max_size=30).map(lambda rows: EIGHT + rows)


def made_of(which: int, rows: list[dict[str, str | None]]) -> Prepared:
    return prepare(SCHEMAS[which], pa.Table.from_pylist(rows), outcomes_differ=False)


@EXACTLY_AGAIN
@given(which=st.integers(0, len(SCHEMAS) - 1), rows=ROWS)
def test_new_rows_go_through_the_same(which: int, rows: list[dict[str, str | None]]) -> None:
    made = made_of(which, rows)
    kept = Transformation.model_validate_json(made.transformation.model_dump_json())
    features = [{name: row[name] for name in ("age", "chol", "pain")} for row in rows]
    again = transformed(pa.Table.from_pylist(features), kept)
    side = sides(SCHEMAS[which], rows_read(which, rows))
    assert again[side == Side.TRAIN].tobytes() == made.data.train.X.tobytes()
    assert again[side == Side.TEST].tobytes() == made.data.test.X.tobytes()


@EXACTLY_AGAIN
@given(which=st.integers(0, len(SCHEMAS) - 1), rows=ROWS)
def test_no_patient_is_on_both_sides(which: int, rows: list[dict[str, str | None]]) -> None:
    read = rows_read(which, rows)
    side, ids = sides(SCHEMAS[which], read), patient_ids(SCHEMAS[which], read)
    assert ids is not None
    assert set(side.tolist()) == {Side.TRAIN, Side.TEST}
    assert not set(ids[side == Side.TRAIN]) & set(ids[side == Side.TEST])


@EXACTLY_AGAIN
@given(which=st.integers(0, len(SCHEMAS) - 1), rows=ROWS, ages=st.lists(st.floats(0, 120), min_size=40, max_size=40))
def test_rows_that_are_tested_on_scale_nothing(
    which: int, rows: list[dict[str, str | None]], ages: list[float]
) -> None:
    tested = sides(SCHEMAS[which], rows_read(which, rows)) == Side.TEST
    changed = [
        {**row, "age": str(age), "chol": str(age * 3)} if test else row
        for row, age, test in zip(rows, ages, tested, strict=False)
    ]
    before, after = made_of(which, rows), made_of(which, changed)
    assert before.transformation == after.transformation
    assert np.array_equal(before.data.train.X, after.data.train.X)


def rows_read(which: int, rows: list[dict[str, str | None]]) -> Rows:
    return read(SCHEMAS[which], pa.Table.from_pylist(rows))[0]
