"""Docstrings of product and tests begin with a verb or a noun, so that nobody has to read them twice."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("protocol", "host", "servers", "client_agent", "harness", "tests")
CLAUSES = frozenset(("What", "Who", "Whose", "Which", "Whether", "Where", "How", "Of", "By", "From", "For"))
SUSPECT = re.compile(rf"""["']\\?\s*(?:{"|".join(sorted(CLAUSES))})\b""")
"""A string that begins so; only such a file is parsed."""
Documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def begins_as_a_clause(text: str) -> bool:
    return text.split(maxsplit=1)[0].rstrip(",.:;") in CLAUSES


def test_a_clause_is_told_from_a_noun() -> None:
    assert begins_as_a_clause("Whether it holds.")
    assert not begins_as_a_clause("Whatever comes is kept.")


def documentation(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Docstrings, and the strings that stand behind constants and attributes, by line."""
    for node in ast.walk(tree):
        if isinstance(node, Documented) and (text := ast.get_docstring(node)):
            yield node.body[0].lineno, text
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            for before, behind in pairwise(node.body):
                if isinstance(before, ast.Assign | ast.AnnAssign) and (said := _string(behind)):
                    yield behind.lineno, said


def _string(node: ast.stmt) -> str | None:
    constant = node.value if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) else None
    return constant.value if constant is not None and isinstance(constant.value, str) else None


@pytest.mark.parametrize("package", PACKAGES)
def test_no_docstring_begins_as_a_clause(package: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line} {text.split()[0]}"
        for path in sorted((ROOT / package).rglob("*.py"))
        if SUSPECT.search(source := path.read_text(encoding="utf-8"))
        for line, text in documentation(ast.parse(source))
        if begins_as_a_clause(text)
    ]
    assert not found, "begin with a verb or a noun: " + "; ".join(found)
