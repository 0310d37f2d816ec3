"""Documents and code say the same: sections that the code cites exist, diagrams and tables are the code's own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from protocol.messages.control import StudyState
from protocol.rounds.states import FINAL_STATES, STUDY_TRANSITIONS, TRANSITIONS
from tests.kit.present import present

ROOT = Path(__file__).parents[2]
PACKAGES = ("protocol", "host", "servers", "client_agent", "harness", "tests")
PYTHON_FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def protocol_sections() -> set[str]:
    text = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
    return set(re.findall(r"^## (\d+)\. ", text, flags=re.MULTILINE))


def test_the_protocol_has_its_sections() -> None:
    assert protocol_sections() >= {str(n) for n in (*range(1, 12), 13)}


def test_every_cited_section_exists() -> None:
    sections = protocol_sections()
    cited = 0
    for path in PYTHON_FILES:
        text = path.read_text(encoding="utf-8")
        for group in re.findall(r"docs/protocol\.md (\d+(?:(?:, | to | and )\d+)*)", text):
            for number in re.findall(r"\d+", group):
                cited += 1
                assert number in sections, f"{path.relative_to(ROOT)} cites section {number}"
    assert cited > 50


@pytest.mark.parametrize(
    ("marker", "first", "table", "ends"),
    [
        ("transitions", "announced", TRANSITIONS, FINAL_STATES),
        ("study transitions", "open", STUDY_TRANSITIONS, {state for state in StudyState if state.ended}),
    ],
)
def test_the_state_diagram_in_the_document_is_the_table_in_the_code(
    marker: str, first: str, table: dict[tuple[str, str], str], ends: set[str]
) -> None:
    text = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
    drawn = present(re.search(rf"<!-- {marker} -->\n```mermaid\n(.*?)\n```", text, flags=re.DOTALL))
    lines = ["stateDiagram-v2", f"    [*] --> {first}"]
    lines += [f"    {old} --> {new}: {event}" for (old, event), new in table.items()]
    assert drawn[1].splitlines() == lines + [f"    {state} --> [*]" for state in sorted(ends)]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\((?!https?://|#)([^)#\s]+)", document.read_text(encoding="utf-8")):
        assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_every_module_says_what_it_is_for() -> None:
    bare = [
        str(path.relative_to(ROOT))
        for path in PYTHON_FILES
        if path.name != "__init__.py"
        and path.relative_to(ROOT).parts[0] != "tests"
        and not path.read_text(encoding="utf-8").startswith(('"""', 'r"""'))
    ]
    assert bare == []
