"""A hospital's file, prepared by the study's schema, is what its agent summarises (docs/protocol.md 17)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from client_agent.cli.data import app
from client_agent.learning.study_file import parse_study_table, study_from_toml
from client_agent.study.results import encode_summary, site_columns
from protocol.arithmetic.ring import from_bytes, to_signed
from protocol.errors import ConfigurationError, UnusableUpdate
from protocol.policy.site_policy import SitePolicy
from protocol.summary.layout import Categories, Numeric
from protocol.summary.table_one import table_one
from tests.unit.client_agent.federation import ROSTER

STUDY = """
name = "table-one"
rounds = 0

[summary]
bins = 10
most_rows = 400

[schema]
missing_marks = ["?"]
split = { test = 0.1 }

[[schema.columns]]
name = "patient"
type = "text"
role = "patient"

[[schema.columns]]
name = "age"
type = "number"
range = [0, 120]
missing = "median"

[[schema.columns]]
name = "pain"
type = "category"
categories = ["none", "some", "much"]
missing = "category"

[[schema.columns]]
name = "ill"
type = "boolean"
role = "target"

[model]
kind = "linear"

[rule]
name = "fedavg"

[parameters]
clip_norm = 1.0
"""
KEY = bytes(32)


def prepared(folder: Path, text: str = STUDY) -> Path:
    rng = np.random.default_rng(1)
    ages = [("?" if rng.random() < 0.2 else f"{rng.normal(60, 12):.1f}") for _ in range(300)]
    lines = [f"p{n},{age},{('none', 'some', '?')[n % 3]},{int(n % 4 == 0)}" for n, age in enumerate(ages)]
    (folder / "study.toml").write_text(text)
    (folder / "own.csv").write_text("\n".join(["patient,age,pain,ill", *lines]) + "\n")
    data = folder / "data"
    arguments = ["prepare", str(folder / "own.csv"), "--study", str(folder / "study.toml"), "--out", str(data)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    return data


def test_a_file_becomes_a_protected_table(tmp_path: Path) -> None:
    data, study = prepared(tmp_path), study_from_toml(STUDY, "study.toml", ROSTER, None)
    assert study.summary_layout.columns == (
        Numeric("age", 0, 120),
        Categories("pain", ("none", "some", "much")),
        Categories("ill", ("false", "true")),
    )
    columns = site_columns(study, data)
    encoded = b"".join(encode_summary(study, columns, SitePolicy(), KEY).pieces)
    shared = to_signed(from_bytes(encoded, study.summary_layout.length))
    table = table_one(shared, study.summary_layout, 1)
    (age,) = table.numeric
    present = columns[0][~np.isnan(columns[0])]
    assert age.mean == pytest.approx(present.mean(), abs=age.mean_within)
    assert 0 < age.missing < 0.4 * len(columns[0])
    pain, ill = table.categories
    assert [one.count > 0 for one in pain.counts] == [True, True, False, False]
    assert pain.missing > 0
    assert ill.counts[1].count == pytest.approx(len(columns[0]) / 4, abs=15)
    asking_more = SitePolicy(least_examples=1000)
    assert not any(b"".join(encode_summary(study, columns, asking_more, KEY).pieces))


def test_a_folder_of_another_schema_or_without_rows_and_a_table_too_long_are_refused(tmp_path: Path) -> None:
    data, study = prepared(tmp_path), study_from_toml(STUDY, "study.toml", ROSTER, None)
    other = study_from_toml(STUDY.replace("[0, 120]", "[0, 100]"), "study.toml", ROSTER, None)
    with pytest.raises(ConfigurationError, match="its schema is not the one"):
        site_columns(other, data)
    short = study_from_toml(STUDY.replace("most_rows = 400", "most_rows = 100"), "study.toml", ROSTER, None)
    with pytest.raises(UnusableUpdate, match="more than 100 rows"):
        encode_summary(short, site_columns(short, data), SitePolicy(), KEY)
    (data / "rows.npz").unlink()
    with pytest.raises(ConfigurationError, match="moiety data prepare"):
        site_columns(study, data)


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("range = [0, 120]", "", "a summary clips to the schema's range"),
        ("[0, 120]", "[60, 60]", "range is \\[least, most\\]"),
        ("bins = 10", "bins = 400", "summary.bins"),
        ("[summary]\nbins = 10\nmost_rows = 400\n", "", "a study does one or the other"),
    ],
)
def test_a_study_file_says_what_is_wrong_with_its_summary(old: str, new: str, text: str) -> None:
    assert parse_study_table(STUDY, "study.toml").summary is not None
    with pytest.raises(ConfigurationError, match=text):
        study_from_toml(STUDY.replace(old, new), "study.toml", ROSTER, None)
