"""The comparison of two commits sees every change of what code does, and no move."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.frozen.moves import compare, main

ERRORS = """"Errors."

class Wrong(Exception):
    "See protocol.errors, or protocol/errors.py."
"""
SETTLED = """"What was settled."

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from protocol import errors, halves

if TYPE_CHECKING:
    from pathlib import Path

LIMIT = 3
"What is too much."
TABLE: dict[str, str] = {"run": "servers.settled"}


def settle(x, path: Path | None = None):
    from protocol.errors import Wrong

    if x > LIMIT:
        raise Wrong(x)
    return math.floor(halves.cut(x))


def refuse(settled):
    raise errors.Wrong(settled.reason)
"""
RESULT = """"A result."

import math
from pathlib import Path

from protocol.cutting import cut as halved
from protocol.wrong import Wrong
from servers import limits

TABLE: dict[str, str] = {"run": "servers.result"}


def refuse(settled):
    raise Wrong(settled.reason)


def settle(x, path: Path | None = None):
    if x > limits.LIMIT:
        raise Wrong(x)
    return math.floor(halved(x))
"""
HALVES, THIRDS = "def cut(x):\n    return x // 2\n", "def cut(x):\n    return x // 3\n"
OLD = {
    "protocol/__init__.py": "",
    "protocol/errors.py": ERRORS,
    "protocol/halves.py": HALVES,
    "protocol/thirds.py": THIRDS,
    "servers/__init__.py": "",
    "servers/settled.py": SETTLED,
}
MOVED = {
    "protocol/__init__.py": "",
    "protocol/wrong.py": ERRORS.replace("errors", "wrong").replace("Errors", "What can be wrong"),
    "protocol/cutting/__init__.py": "from protocol.cutting.halves import cut\n\n__all__ = ['cut']\n",
    "protocol/cutting/halves.py": HALVES,
    "protocol/cutting/thirds.py": THIRDS,
    "servers/__init__.py": "",
    "servers/limits.py": 'LIMIT = 3\n"What is too much."\n',
    "servers/result.py": RESULT,
}


def differences(new: dict[str, str]) -> tuple[str, ...]:
    return compare(OLD, new).differences


def test_a_tree_is_like_itself() -> None:
    assert differences(OLD) == ()


def test_moved_renamed_and_otherwise_imported_code_is_the_same() -> None:
    assert differences(MOVED) == ()
    assert compare(OLD, MOVED).files == {
        ("protocol/errors.py", "protocol/wrong.py"): 1,
        ("protocol/halves.py", "protocol/cutting/halves.py"): 1,
        ("protocol/thirds.py", "protocol/cutting/thirds.py"): 1,
        ("servers/settled.py", "servers/limits.py"): 1,
        ("servers/settled.py", "servers/result.py"): 3,
    }


@pytest.mark.parametrize(
    ("file", "was", "becomes", "seen"),
    [
        ("servers/result.py", "x > limits", "x >= limits", "changed  settle"),
        ("servers/result.py", "path: Path | None = None", "path: Path", "changed  settle"),
        ("servers/result.py", "cutting import cut", "cutting.thirds import cut", "changed  settle"),
        ("servers/result.py", "import math", "import numpy as math", "changed  settle"),
        ("servers/result.py", '"run"', '"go"', "changed  TABLE"),
        ("servers/limits.py", "3", "4", "changed  LIMIT"),
        ("servers/limits.py", "too much", "too little", "changed  LIMIT"),
        ("servers/limits.py", "LIMIT = 3", "LIMIT = 3\nprint(LIMIT)", "new      print(LIMIT)"),
        ("protocol/wrong.py", "Exception", "ValueError", "changed  Wrong"),
        ("protocol/wrong.py", "See", "Read", "changed  Wrong"),
        ("protocol/cutting/thirds.py", "def cut", "def slice", "gone     cut"),
        ("protocol/cutting/thirds.py", "return x", "return 1 + x", "changed  cut"),
    ],
)
def test_every_change_of_what_code_does_is_seen(file: str, was: str, becomes: str, seen: str) -> None:
    assert was in MOVED[file]
    found = differences({**MOVED, file: MOVED[file].replace(was, becomes, 1)})
    assert [line for line in found if line.startswith(seen)], found


def test_of_two_that_are_alike_one_is_missed() -> None:
    twins = {**OLD, "servers/halves.py": OLD["protocol/halves.py"]}
    assert compare(twins, OLD).differences == ("gone     cut  servers/halves.py",)
    assert compare(OLD, twins).differences == ("new      cut  servers/halves.py",)


def git(folder: Path, *arguments: str) -> None:
    as_somebody = ["-c", "user.name=x", "-c", "user.email=x@example", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *as_somebody, *arguments], cwd=folder, check=True, capture_output=True)


def commit(folder: Path, files: dict[str, str], name: str) -> None:
    for path in folder.glob("*/"):
        if path.name != ".git":
            shutil.rmtree(path)
    for file, text in files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text, encoding="utf-8")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", name)
    git(folder, "tag", name)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_two_commits_are_compared_and_the_places_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    git(tmp_path, "init", "--quiet")
    commit(tmp_path, {**OLD, "tests/test_it.py": "A = 1\n"}, "old")
    commit(tmp_path, {**MOVED, "tests/test_it.py": "A = 2\n"}, "moved")
    assert main(["old", "moved"], tmp_path) == 0
    shown = capsys.readouterr().out
    assert "servers/settled.py -> servers/result.py" in shown
    assert "7 definitions alike, 0 differences" in shown
    commit(tmp_path, {**MOVED, "servers/limits.py": "LIMIT = 4\n"}, "changed")
    assert main(["moved"], tmp_path) == 1
    assert "changed  LIMIT  servers/limits.py\n" in capsys.readouterr().out
    assert main([], tmp_path) == 2
