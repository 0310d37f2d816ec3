"""Tables that are made up: one of the form of the Cleveland file, and small ones of a few columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from client_agent.data.findings import Findings
from client_agent.data.prepare import Prepared, Report, Tables, check, prepared
from client_agent.data.rows import Rows, read_rows
from client_agent.data.site_table import PLAIN, SiteTable
from client_agent.data.source import Table, open_table
from client_agent.data.transformation import Transformation, transform_table
from client_agent.learning.study_file import parse_study_table
from protocol.messages.control import TableSchema
from protocol.summary.table_one import CommonScaling
from tests.kit.present import present

ROOT = Path(__file__).parents[3]
CLEVELAND = ROOT / "docs" / "examples" / "cleveland.toml"

AGE = {"name": "age", "type": "number", "unit": "years", "range": [0, 120]}
CHOL = {"name": "chol", "type": "number", "unit": "mg/dl", "missing": "indicator"}
PAIN = {"name": "pain", "type": "category", "categories": ["1", "2", "3"], "missing": "category"}
ILL = {"name": "ill", "type": "boolean", "role": "target", "categories": ["0", "1"]}
WHO = {"name": "who", "type": "text", "role": "patient"}
SEEN = {"name": "seen", "type": "time", "role": "observed_at"}
COLUMNS = (AGE, CHOL, PAIN, ILL)
GOOD = "age,chol,pain,ill\n50,200,1,0\n60,?,2,1\n70,240,,1\n40,210,3,0\n45,190,1,1\n55,205,2,0\n"


def schema(*columns: dict[str, Any], **more: Any) -> TableSchema:
    table = {"columns": columns or COLUMNS, "missing_marks": ["?"], **more}
    return TableSchema.model_validate_json(json.dumps(table))


def written(folder: Path, text: str | bytes, name: str = "table.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


Source: TypeAlias = Path | pa.Table
"""A file's path, or a table in memory."""


def opened(source: Source, of: TableSchema, site: SiteTable, findings: Findings) -> Table:
    if isinstance(source, Path):
        return open_table(source, site, findings, header=of.header)
    return Table("made up", tuple(source.column_names), source.num_columns, source.to_batches())


def _tables(
    of: TableSchema,
    source: Source,
    site: SiteTable = PLAIN,
    test: Source | None = None,
    outcomes_differ: bool = True,
) -> Tables:
    findings = Findings()
    apart = None if test is None else opened(test, of, site, findings)
    return Tables(opened(source, of, site, findings), site, findings, apart, outcomes_differ)


def report(of: TableSchema, *tables: Any, **more: Any) -> Report:
    """Found in tables, given as to ``_tables``."""
    return check(of, _tables(of, *tables, **more))


def prepare(of: TableSchema, *tables: Any, common: CommonScaling | None = None, **more: Any) -> Prepared:
    return prepared(of, _tables(of, *tables, **more), common)


def read(of: TableSchema, source: Source, site: SiteTable = PLAIN) -> tuple[Rows, Findings]:
    """The rows of a table, and what was found in it."""
    findings = Findings()
    return read_rows(of, opened(source, of, site, findings), site, findings), findings


def transformed(source: Source, made: Transformation) -> np.ndarray:
    """The features of new rows."""
    findings = Findings()
    return transform_table(opened(source, made.table, PLAIN, findings), made, PLAIN, findings)


def cleveland_schema() -> TableSchema:
    return present(parse_study_table(CLEVELAND.read_text(encoding="utf-8"), str(CLEVELAND)).data_schema)


def cleveland_text(rows: int = 120, seed: int = 0) -> str:
    """Rows of the form of processed.cleveland.data, of nobody: codes as 1.0, a few "?" in the last columns but one."""
    random = np.random.default_rng(seed)
    codes: dict[int, tuple[int, ...]] = {1: (0, 1), 2: (1, 2, 3, 4), 5: (0, 1), 6: (0, 2), 8: (0, 1)}
    codes |= {10: (1, 2, 3), 11: (0, 1, 2, 3), 12: (3, 6, 7)}
    lines = []
    for _ in range(rows):
        numbers: dict[int, Any] = {0: random.integers(29, 78), 3: random.integers(94, 200)}
        numbers |= {4: random.integers(126, 400), 7: random.integers(71, 203), 9: random.uniform(0, 6)}
        row = [f"{random.choice(codes[at]) if at in codes else numbers[at]:.1f}" for at in range(13)]
        row = ["?" if place in (11, 12) and random.random() < 0.05 else text for place, text in enumerate(row)]
        lines.append(",".join([*row, str(random.choice((0, 0, 1, 2, 3, 4)))]))
    return "\n".join(lines) + "\n"
