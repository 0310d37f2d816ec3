"""``moiety bench tags``: one tiny run, its file and its text."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from harness.bench.cli import app
from harness.bench.tags import TARGET_NS, TagsBenchmark


def test_a_tiny_run_says_what_tags_add(tmp_path: Path) -> None:
    file = tmp_path / "tags.json"
    said = CliRunner().invoke(app, ["tags", "--parameters", "3000", "--repeats", "3", "--json", str(file)])
    assert said.exit_code == 0, said.output
    found = TagsBenchmark.model_validate_json(file.read_text())
    assert (found.parameters, found.repeats, found.target) == (3000, 3, TARGET_NS)
    assert found.command == "moiety bench tags --parameters 3000 --repeats 3"
    assert json.loads(file.read_text())["added"].keys() == {"median", "low", "high"}
    assert "both: added" in said.output
