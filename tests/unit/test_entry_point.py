"""The entry point: lazy subcommands, errors without tracebacks."""

from __future__ import annotations

import json

import pytest
import typer

import moiety
from protocol.errors import BadSignature, ConfigurationError


def failing(error: Exception) -> moiety.Subcommand:
    def fail(json_output: bool = typer.Option(False, "--json")) -> None:
        raise error

    globals()["_fail"] = fail
    return moiety.Subcommand(__name__, "_fail", "fails", group=False)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def call(error: Exception, *arguments: str) -> tuple[object, str, str]:
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


def test_interrupted(run) -> None:
    assert run(KeyboardInterrupt())[0] == 130


def test_help_lists_every_subcommand(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        moiety.main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in moiety.SUBCOMMANDS)


def test_unknown_subcommand(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        moiety.main(["sever"])
    assert ended.value.code == 2
    assert "No such command" in capsys.readouterr().err
