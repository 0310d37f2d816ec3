"""The threat model promises only what a test would notice: every row and promise names the test that would fail."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "threat_model.md").read_text(encoding="utf-8")
CITED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", TEXT)))
NOTHING_PROMISED = "Nothing is promised"


@cache
def functions(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def promises() -> list[str]:
    """Table rows that say what an attacker gets, and bullets of the sections that promise something."""
    found = []
    for section in re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        rows = [line for line in body.splitlines() if line.startswith("| ") and not line.startswith("| attacker")]
        if "attacker gets" in title or "CKKS" in title:
            found += rows
        if title.startswith("What is promised"):
            kept = body.partition("What it does not promise")[0]
            found += [line for line in kept.splitlines() if line.startswith("- ")]
    return found


def test_the_threat_model_cites_tests() -> None:
    assert len(CITED) > 20
    assert len(promises()) > 15


@pytest.mark.parametrize(("path", "name"), CITED, ids=str)
def test_every_test_that_the_threat_model_names_exists(path: str, name: str) -> None:
    assert (ROOT / path).is_file(), f"docs/threat_model.md names {path}"
    if name:
        assert name in functions(ROOT / path), f"docs/threat_model.md names {path}::{name}"


@pytest.mark.parametrize("promise", promises(), ids=lambda line: line[:40])
def test_every_promise_names_the_test_that_would_fail(promise: str) -> None:
    assert re.search(r"`tests/[\w/]+\.py", promise) or NOTHING_PROMISED in promise, promise
