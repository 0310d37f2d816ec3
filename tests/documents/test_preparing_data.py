"""docs/preparing_data.md as it stands there: a file of rows of nobody, and a database of patients of nobody."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documents.lines import ROOT
from tests.documents.terminal import Terminal, shell
from tests.documents.walk import Walk
from tests.unit.data.made import cleveland_text

EXAMPLES = {"docs/examples": str(ROOT / "docs" / "examples")}


@pytest.fixture
def moiety(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MOIETY_DATABASE_URL", raising=False)
    return Terminal(capsys)


def test_the_page_from_a_table_to_a_folder(moiety: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walk = Walk(["docs/preparing_data.md"])
    Path("processed.cleveland.data").write_text(cleveland_text(), encoding="utf-8")
    moiety(*walk.words("moiety data schema"), status=0)
    assert "[[schema.columns]]" in Path("schema.toml").read_text()
    moiety(*walk.words("moiety data prepare --dry-run processed", EXAMPLES), status=0)
    moiety(*walk.words("moiety data prepare processed", EXAMPLES), status=0)
    made = {path.name for path in Path("data").iterdir()}
    assert made >= {"train.npz", "test.npz", "transformation.json", "rows.npz"}

    line = walk.line("python docs/examples/make_omop.py", EXAMPLES)
    assert shell(line, tmp_path).returncode == 0
    place, line = walk.line("MOIETY_DATABASE_URL=", {**EXAMPLES, "--out data": "--out patients"}).split(" ", 1)
    with monkeypatch.context() as told:
        told.setenv(*place.split("=", 1))
        moiety(*line.split()[1:], status=0)
    assert Path("patients/train.npz").is_file()

    address = {"postgresql+psycopg://reader:PASSWORD@db.hospital/omop": "sqlite:///omop.sqlite"}
    assert shell(walk.line("printf", address), tmp_path).returncode == 0
    moiety(*walk.words("moiety data prepare --dry-run --study", EXAMPLES), status=0)
    moiety(*walk.words("moiety data prepare --study", {**EXAMPLES, "--out data": "--out same"}), status=0)
    assert Path("same/train.npz").read_bytes() == Path("patients/train.npz").read_bytes()
    assert walk.left() == []
