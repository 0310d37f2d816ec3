"""Tables that are made up: one of the form of the Cleveland file, and small ones of a few columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from client_agent.data.findings import Findings
from client_agent.data.prepare import Prepared, Report, Tables, check, prepared
from client_agent.data.site_table import PLAIN, SiteTable
from client_agent.data.source import open_table
from client_agent.learning.study_file import parse_study_table
from protocol.messages.control import TableSchema
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


def _tables(made: TableSchema, path: Path, site: SiteTable, test: Path | None, outcomes_differ: bool) -> Tables:
    findings = Findings()
    apart = None if test is None else open_table(test, site, findings, header=made.header)
    return Tables(open_table(path, site, findings, header=made.header), site, findings, apart, outcomes_differ)


def report(
    made: TableSchema, path: Path, site: SiteTable = PLAIN, test: Path | None = None, outcomes_differ: bool = True
) -> Report:
    return check(made, _tables(made, path, site, test, outcomes_differ))


def prepare(
    made: TableSchema,
    path: Path,
    site: SiteTable = PLAIN,
    test: Path | None = None,
    outcomes_differ: bool = True,
    **more: Any,
) -> Prepared:
    return prepared(made, _tables(made, path, site, test, outcomes_differ), **more)


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
