"""No import circle in the product; imports for type checking count, and those inside functions."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("protocol", "host", "servers", "client_agent", "harness")


def modules() -> dict[str, Path]:
    files = [ROOT / "moiety.py", *(file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))]
    return {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in files}


def imported(tree: ast.Module, known: set[str]) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in known else node.module)
    return found & known


def circle(graph: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_module_imports_itself_through_others() -> None:
    files = modules()
    assert {"moiety", "harness.api"} < set(files)
    known = set(files)
    graph = {name: imported(ast.parse(file.read_text("utf-8")), known) - {name} for name, file in files.items()}
    assert circle(graph) == []


def test_a_circle_is_found_also_where_only_types_are_checked() -> None:
    first = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from package.second import Name\n"
    second = "def late():\n    from package import first\n"
    known = {"package.first", "package.second"}
    graph = {"package.first": imported(ast.parse(first), known), "package.second": imported(ast.parse(second), known)}
    assert set(circle(graph)) == known
