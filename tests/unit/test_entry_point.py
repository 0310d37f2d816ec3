"""The entry point: lazy subcommands, errors without tracebacks."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
import typer
from pydantic import ValidationError

import moiety
from harness.reference.pages import commands
from host.command_line import end_with, unexpected
from protocol.errors import BadSignature, ConfigurationError
from protocol.messages.control import RuleSpec
from protocol.text import comparable

ROOT = Path(__file__).parents[2]


def failing(error: BaseException) -> moiety.Subcommand:
    def fail(json_output: bool = typer.Option(False, "--json")) -> None:
        raise error

    globals()["_fail"] = fail
    return moiety.Subcommand(__name__, "_fail", "fails", "Developer", group=False)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def call(error: BaseException, *arguments: str) -> tuple[object, str, str]:
        monkeypatch.setitem(moiety.SUBCOMMANDS, "fail", failing(error))
        with pytest.raises(SystemExit) as ended:
            moiety.main(["fail", *arguments])
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    return call


def test_a_refusal_is_one_line_and_exit_code_2(run) -> None:
    code, out, err = run(ConfigurationError("key 'port': found 'x'"))
    assert (code, out) == (2, "")
    assert err == "error (configuration): key 'port': found 'x'\n"


def test_a_refusal_as_json(run) -> None:
    code, out, err = run(BadSignature("expired"), "--json")
    assert (code, err) == (2, "")
    assert json.loads(out) == {"error": "bad_signature", "detail": "expired"}


@pytest.mark.parametrize(("package", "extra"), [("torch", "agent"), ("fastapi", "server"), ("matplotlib", "harness")])
def test_a_missing_package_names_its_extra(run, package: str, extra: str) -> None:
    code, _, err = run(ModuleNotFoundError(f"No module named '{package}.x'", name=f"{package}.x"))
    assert code == 2
    assert f"'moiety fail' needs the Python package '{package}'" in err
    assert f"pip install 'moiety[{extra}]'" in err


def test_a_missing_module_of_our_own_is_a_bug_and_shows() -> None:
    with pytest.raises(ModuleNotFoundError):
        moiety._naming_the_extra(lambda: __import__("protocol.nowhere"), "x")


def test_an_unexpected_error_is_one_line_without_its_text_which_a_private_file_has(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code, out, err = run(ValueError("patient 17, HIV"))
    assert (code, out, err.count("\n")) == (70, "", 1)
    assert err.startswith("error (unexpected): ValueError in test_entry_point.py:")
    assert "HIV" not in err
    (kept,) = tmp_path.iterdir()
    assert str(kept) in err
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert "patient 17, HIV" in kept.read_text()
    code, _, err = run(BaseExceptionGroup("patient 17", [asyncio.CancelledError("HIV")]))
    assert (code, err.count("\n"), "HIV" in err) == (70, 1, False)
    said = json.loads(run(KeyError("HIV"), "--json")[1])
    assert said["error"] == "unexpected"
    assert "HIV" not in said["detail"]


def test_an_unexpected_error_is_said_also_where_its_traceback_cannot_be_kept(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    code, _, err = run(RuntimeError("HIV"))
    assert code == 70
    assert "its traceback could not be kept (No such file or directory)" in err
    assert "HIV" not in err


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "error (storage_full): no space left: free space on its d"),
        (OSError(errno.EFBIG, "x", "a/b.csv"), "error (storage_full): no space left for a/b.csv: free space on its d"),
        (OSError(errno.EROFS, "Read-only", "a"), "error (configuration): a cannot be used: Read-only: is it the right"),
        (FileNotFoundError(errno.ENOENT, "x", "a", None, "b"), "b cannot be used: there is no such file: is the path"),
        (PermissionError(errno.EACCES, "x", b"c"), "error (configuration): c cannot be used: user "),
    ],
)
def test_what_the_machine_refuses_is_a_known_error_with_its_path(run, error: OSError, said: str) -> None:
    code, _, err = run(error)
    assert (code, err.count("\n")) == (2, 1)
    assert said in err


def test_an_error_that_reaches_nobody_is_one_line_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def fail() -> None:
        raise ValueError("HIV")

    def command() -> None:
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()
        try:
            fail()
        except ValueError as error:
            told = (ValueError, error, error.__traceback__)
            record = logging.LogRecord("x", logging.ERROR, "", 1, "never retrieved: ValueError('HIV')", (), told)
        assert logging.lastResort is not None
        logging.lastResort.handle(record)
        logging.lastResort.handle(logging.LogRecord("x", logging.ERROR, "", 1, "plain words", (), None))

    with pytest.raises(SystemExit) as ended:
        end_with(command)
    assert ended.value.code == 0
    said = capsys.readouterr().err
    assert said.count("error (unexpected): ValueError in test_entry_point.py:") == 2
    assert "HIV" not in said
    assert "Traceback" not in said
    assert "plain words\n" in said


def test_the_same_fault_keeps_one_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def again() -> str:
        try:
            raise ArithmeticError
        except ArithmeticError as error:
            return unexpected(error)

    assert {again() for _ in range(5)} == {again()}
    assert len(list(tmp_path.iterdir())) == 1


def test_the_line_that_called_a_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of Moiety, or a plug-in; of a library alone its own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ValidationError) as of_pydantic:
        RuleSpec.model_validate({"name": 3})
    with pytest.raises(json.JSONDecodeError) as of_json:
        json.loads("{")
    with pytest.raises(AttributeError) as of_moiety:
        comparable(None)  # type: ignore[arg-type]
    found = [unexpected(caught.value) for caught in (of_pydantic, of_json, of_moiety)]
    assert [said.split(":")[0].split()[-1] for said in found] == [*2 * ["test_entry_point.py"], "text.py"]


@pytest.mark.parametrize(("into", "code"), [("/dev/full", 2), ("closed pipe", 1), ("nothing", 0)])
def test_an_output_that_takes_nothing(tmp_path: Path, into: str, code: int) -> None:
    """Real processes: what Python itself says when it ends counts as well."""
    ours, theirs = os.pipe()
    os.close(ours)
    command = [sys.executable, "-m", "moiety", "--version"]
    if into == "nothing":
        command = ["/bin/sh", "-c", 'exec "$@" >&-', "sh", *command]
    with open("/dev/full" if into == "/dev/full" else os.devnull, "wb") as file:
        done = subprocess.run(
            command, stdout=theirs if into == "closed pipe" else file, stderr=subprocess.PIPE, cwd=ROOT, check=False
        )
    os.close(theirs)
    said = done.stderr.decode()
    assert (done.returncode, "Traceback" in said) == (code, False), said
    assert said.count("\n") == (1 if into == "/dev/full" else 0)
    assert into != "/dev/full" or "no space left" in said.lower()


def test_interrupted(run) -> None:
    assert run(KeyboardInterrupt())[0] == 130


def test_help_lists_every_subcommand(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        moiety.main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert all(f"{name.split()[0]} " in shown for name in moiety.SUBCOMMANDS)
    headings = [line.strip(":") for line in shown.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert headings == ["Options", *moiety.PANELS]


@pytest.mark.parametrize("old", moiety.MOVED)
def test_an_old_name_is_refused_with_the_new_one(old: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        moiety.main([*old.split(), "--help"])
    assert ended.value.code == 2
    assert f"there is no 'moiety {old}' any more: use 'moiety {moiety.MOVED[old]}" in capsys.readouterr().err


def test_an_old_name_is_no_command_and_its_new_one_is() -> None:
    known = {command.words.removeprefix("moiety ") for command in commands()} | set(moiety.SUBCOMMANDS)
    assert not known & set(moiety.MOVED)
    assert {
        new.removesuffix(" tags").removesuffix(" ring").partition(" --")[0] for new in moiety.MOVED.values()
    } <= known


def test_unknown_subcommand(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        moiety.main(["sever"])
    assert ended.value.code == 2
    assert "No such command" in capsys.readouterr().err
