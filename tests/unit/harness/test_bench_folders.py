"""``--folder`` of every benchmark is made where it is not there, or refused in words before anything is measured."""

from __future__ import annotations

import os
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from typer.testing import CliRunner

from harness.bench.cli import app
from host.placed_files import writable_folder as made
from protocol.errors import ConfigurationError


def test_it_is_made_or_refused(tmp_path: Path) -> None:
    assert made(None) is None
    assert made(tmp_path / "not" / "there") == tmp_path / "not" / "there"
    assert (tmp_path / "not" / "there").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot be written: something else is there"):
        made(tmp_path / "file")


def test_the_working_folder_is_tried_itself_and_not_the_one_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Path] = []
    honest = os.open

    def noting(path: str | Path, flags: int, mode: int = 0o777, **how: int | None) -> int:
        if flags & os.O_CREAT:
            tried.append(Path(path).parent)
        return honest(path, flags, mode, **how)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("host.placed_files.os.open", noting)
    assert made(Path()) == Path()
    assert tried == [tmp_path]


def test_every_command_with_a_folder_asks_so() -> None:
    asked = {
        command.name: get_args(kind)[1].callback
        for command in app.registered_commands
        if command.callback is not None
        for name, kind in get_type_hints(command.callback, include_extras=True).items()
        if name == "folder"
    }
    assert asked == dict.fromkeys(("round", "ckks", "idle", "load", "shards"), made)


def test_a_person_is_told_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = CliRunner().invoke(app, ["round", "--folder", str(tmp_path / "file")])
    assert "name another place" in str(done.exception)
