"""A file that changed is run as it is, also where its time and length are those of the bytecode kept beside it."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from host.extensions import FreshSource


def value_of(path: Path) -> int:
    loader = FreshSource("fresh", str(path))
    specification = importlib.util.spec_from_file_location("fresh", path, loader=loader)
    assert specification is not None
    module = importlib.util.module_from_spec(specification)
    loader.exec_module(module)
    found: int = module.VALUE
    return found


def test_a_change_within_a_second_to_the_same_length_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = tmp_path / "fresh.py"
    for value in (1, 2):
        path.write_text(f"VALUE = {value}\n")
        os.utime(path, (1_800_000_000, 1_800_000_000))
        assert value_of(path) == value
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_no_python_says_where(tmp_path: Path) -> None:
    path = tmp_path / "fresh.py"
    path.write_text("VALUE = ")
    with pytest.raises(SyntaxError, match=r"fresh\.py, line 1"):
        value_of(path)
