"""The slow reference imports nothing of the project, directly or through what it imports."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "tests" / "reference"
VECTORS = ROOT / "tests" / "vectors"
ALLOWED = {"__future__", "cryptography", "dataclasses", "fractions", "hashlib", "hmac", "math", "struct", "tests"}
ALLOWED_BUILDING = ALLOWED | {"json", "pathlib", "typing"}
SOURCES = sorted(REFERENCE.rglob("*.py"))
BUILDERS = [VECTORS / "generate.py", VECTORS / "material.py", *sorted(VECTORS.glob("build_*.py"))]
NAMED = {"tests.reference", "tests.vectors"}


def imported(tree: ast.AST) -> Iterator[str]:
    """Every module named by an import, in full; a relative import or a computed one counts as unreadable."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "a relative import" if node.level or node.module is None else node.module
        elif isinstance(node, ast.Name) and node.id in ("__import__", "eval", "exec", "importlib"):
            yield f"a computed import through {node.id}"


def forbidden(source: str, allowed: set[str], own: set[str]) -> list[str]:
    """The imports of ``source`` that are neither in ``allowed`` nor, under tests, in one of ``own``."""
    found = []
    for module in imported(ast.parse(source)):
        top, package = module.split(".")[0], ".".join(module.split(".")[:2])
        if top not in allowed or (top == "tests" and package not in own):
            found.append(module)
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_the_reference_imports_only_the_standard_library_and_aes(path):
    assert forbidden(path.read_text(), ALLOWED, {"tests.reference"}) == []


@pytest.mark.parametrize("path", BUILDERS, ids=lambda path: path.name)
def test_the_vectors_are_built_from_the_reference_alone(path):
    assert forbidden(path.read_text(), ALLOWED_BUILDING, NAMED) == []


@pytest.mark.parametrize(
    "line",
    [
        "import protocol",
        "import protocol.release as r",
        "from protocol.mpc import sketch",
        "import numpy as np",
        "from tests.unit import parties",
        "from tests import unit",
        "from . import ring",
        "from ..unit import parties",
        "x = __import__('protocol')",
        "def f():\n    from servers import app",
    ],
)
def test_a_forbidden_import_is_found(line):
    assert forbidden(line, ALLOWED, {"tests.reference"})


def test_nothing_of_the_project_is_loaded_with_the_reference():
    modules = ", ".join(f"tests.reference.{path.stem}" for path in SOURCES if path.stem != "__init__")
    code = (
        f"import sys, {modules}\n"
        "tops = {name.split('.')[0] for name in sys.modules}\n"
        "ours = {'protocol', 'host', 'servers', 'client_agent', 'harness'}\n"
        "print(sorted(tops & (ours | {'numpy', 'numba', 'pydantic', 'nacl'})))"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
