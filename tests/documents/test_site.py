"""The documents' site: built without a warning, loading nothing from elsewhere, its reference complete."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest

from harness.reference.hooks import relinked, tabled
from harness.reference.pages import GENERATED, commands, errors_page, usual_causes
from protocol.errors import ErrorCode
from tests.documents.lines import ROOT

CONFIGURATION = "harness/reference/mkdocs.yml"


def test_links_lead_to_pages_and_what_has_none_is_named() -> None:
    pages = frozenset({"index.md", "joining.md", "results/README.md", "adr/0001-a.md"})
    beside = {"README.md": "index.md"}

    def led(text: str, origin: str, page: str) -> str:
        return relinked(text, PurePosixPath(origin), page, pages, beside)

    assert led("[a](docs/joining.md#x)", "README.md", "index.md") == "[a](joining.md#x)"
    assert led("[a](docs/results)", "README.md", "index.md") == "[a](results/README.md)"
    assert led("[a](../README.md)", "docs/joining.md", "joining.md") == "[a](index.md)"
    assert led("[a](../joining.md)", "docs/adr/0001-a.md", "adr/0001-a.md") == "[a](../joining.md)"
    assert led("[code](../protocol)", "docs/joining.md", "joining.md") == "code (`protocol`)"
    assert led("[a](https://example.org/x.md)", "README.md", "index.md") == "[a](https://example.org/x.md)"


DIAGRAM = """before
```mermaid
stateDiagram-v2
    [*] --> open
    open --> open: asked
    open --> over: over
    shut --> over: over
    over --> open: <again>
    over --> [*]
```
after
"""


def test_a_diagram_is_a_table_of_every_transition() -> None:
    before, head, rule, *rows, after = tabled(DIAGRAM).splitlines()
    assert (before, head, rule, after) == ("before", "| state | what happens | next |", "| --- | --- | --- |", "after")
    assert rows == [
        "| start |  | open |",
        "| open | asked | open |",
        "| open | over | over |",
        "| shut | over | over |",
        "| over | <again> | open |",
        "| over |  | end |",
    ]


@pytest.mark.parametrize("wrong", ["flowchart LR", "stateDiagram-v2\nopen -> over"])
def test_a_diagram_that_is_not_understood_stops_the_site(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"only stateDiagram-v2 is understood|is not understood"):
        tabled(f"```mermaid\n{wrong}\n```\n")


def test_every_code_has_its_cause_and_every_command_its_words() -> None:
    text = errors_page()
    assert [code for code in ErrorCode if f"| `{code.value}` |" not in text] == []
    causes = usual_causes((ROOT / "docs" / "operating.md").read_text(encoding="utf-8"))
    assert [code for code in ErrorCode if code.value not in causes] == []
    assert [one.words for one in commands() if not one.about] == []
    assert len(list(commands())) > 60


@pytest.mark.parametrize("page", list(GENERATED))
def test_reference_is_made(page: str) -> None:
    made = GENERATED[page]()
    assert made.startswith("# ")
    assert made.count("\n| ") > 10


@pytest.mark.uncounted
def test_the_site_is_built_without_a_warning_and_loads_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(ROOT / CONFIGURATION), "-d", str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    pages = list(tmp_path.rglob("*.html"))
    protocol = (tmp_path / "protocol.html").read_text(encoding="utf-8")
    assert (
        protocol.count("<th>what happens</th>") == (ROOT / "docs" / "protocol.md").read_text().count("```mermaid") > 1
    )
    assert "stateDiagram" not in "".join(page.read_text(encoding="utf-8") for page in pages)
    assert len(pages) > 80
    loading = re.compile(r'<(?:script|img|link)[^>]+(?:src|href)="(https?://[^"]+)"')
    loaded = {found for page in pages for found in loading.findall(page.read_text(encoding="utf-8"))}
    assert loaded == set()
