"""Every command, each of its paths in turn wrong in every way: one line of error, never a traceback.

Commands and options are read from the command line itself, so a new command is in here by itself.
"""

from __future__ import annotations

import inspect
import io
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

import pytest
from typer.main import get_command

import moiety
from client_agent.model.export import export
from harness.reference.pages import Command, commands
from protocol.sharing import Side
from tests.kit.processes import prepare_servers
from tests.unit.client_agent.test_product import held
from tests.unit.data.made import GOOD

STUDY: Final = """
name = "trial"
rounds = 1
[model]
kind = "linear"
[parameters]
clip_norm = 1.0
[rule]
name = "fedavg"
[schema]
missing_marks = ["?"]
columns = [
  {name = "age", type = "number", unit = "years"},
  {name = "chol", type = "number", missing = "indicator"},
  {name = "pain", type = "category", categories = ["1", "2", "3"], missing = "category"},
  {name = "ill", type = "boolean", role = "target", categories = ["0", "1"]},
]
"""
BUILD: Final = moiety.build
OUTPUTS: Final = frozenset({"out", "folder", "scaling", "cache"})
MEASURES: Final = frozenset({"attack", "demo", "lab bench", "lab faults"})
"""Subcommands that work for minutes where nothing is wrong."""
LATE: Final = frozenset({("moiety lab bench peers", "cache")})
"""Options of theirs that are looked at after the work that goes without."""
LASTS: Final = frozenset({"moiety agent page"})
"""Commands that run until they are interrupted where nothing is wrong."""
ALWAYS: Final = (("file", Path | None), ("data", str))
ALWAYS_OF: Final = (("moiety data prepare", "out"),)
PLAIN: Final = STUDY.partition("[schema]")[0]
READ_ONLY: Final = Path("/sys/moiety/file")
GARBAGE: Final = b"\xef\xbb\xbf\xff\xfe\x00\x80" * 30


@dataclass(frozen=True)
class Folders:
    """Good files by the name of the option that takes them, and where bad ones are made."""

    good: dict[str, Path]
    bad: Path

    def wrong(self) -> dict[str, Path]:
        """Paths that are wrong, each in its own way."""
        shutil.rmtree(self.bad, ignore_errors=True)
        (self.bad / "folder" / "thing").mkdir(parents=True)
        (self.bad / "file").write_text("a,b\n")
        (self.bad / "bytes.toml").write_bytes(GARBAGE)
        (self.bad / "bytes.toml").chmod(0o600)
        (self.bad / "link").symlink_to("nowhere")
        (self.bad / "loop").symlink_to("loop")
        return {
            "missing": self.bad / "missing" / "file.csv",
            "in a file": self.bad / "file" / "file.csv",
            **{path.name: path for path in self.bad.iterdir()},
            "read-only": READ_ONLY,
        }


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    folder = tmp_path_factory.mktemp("good")
    federation = prepare_servers(folder / "federation", ("requester", "c1", "c2", "c3"))
    table, study, ready = folder / "table.csv", folder / "study.toml", folder / "ready.csv"
    (folder / "plain.toml").write_text(PLAIN)
    table.write_text(GOOD)
    study.write_text(STUDY)
    ready.write_text("age,pain,pulse\n1,2,3\n")
    export(held(), folder, folder / "model", is_requester=True)
    roster = federation.folder / "roster.toml"
    good = {
        "config": federation.config("requester"),
        "server config": federation.servers[Side.A].config,
        **dict.fromkeys(("roster", "roster_file", "proposal_file"), roster),
        "key": federation.folder / "c1" / "keys.toml",
        **dict.fromkeys(("file", "test"), table),
        "study_file": folder / "plain.toml",
        **{"input_file": ready, "model": folder / "model", "data": federation.folder / "c1" / "data"},
        "": study,
    }
    return Folders(good, tmp_path_factory.mktemp("bad") / "bad")


def paths_of(command: Command) -> list[str]:
    """The parameters that take a path."""
    return [name for name, hint in get_type_hints(command.run).items() if "Path" in str(hint)]


def words_of(command: Command, given: dict[str, Path], good: dict[str, Path], out: Path) -> list[str]:
    """Everything that the command needs, with good files but for those that are given."""
    hints = get_type_hints(command.run, include_extras=True)
    words = command.words.split()[1:]
    for name, parameter in inspect.signature(command.run).parameters.items():
        kind, told = (*get_args(hints[name]), None)[:2]
        needed = (
            parameter.default is inspect.Parameter.empty
            or name in given
            or (name, kind) in ALWAYS
            or (command.words, name) in ALWAYS_OF
        )
        if kind is bool or not needed:
            continue
        if type(told).__name__ == "OptionInfo":
            named = (getattr(told, "default", None), *(told.param_decls or ()))
            words.append(next((str(one) for one in named if str(one).startswith("--")), f"--{name.replace('_', '-')}"))
        words.append(str(given[name]) if name in given else _value(command, name, kind, good, out))
    return words


def _value(command: Command, name: str, kind: Any, good: dict[str, Path], out: Path) -> str:
    if name in paths_of(command):
        whose = "server " if command.words.startswith("moiety server") else ""
        return str(out if name in OUTPUTS else good.get(f"{whose}{name}", good.get(name, good[""])))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return str(next(iter(kind)).value)
    if get_origin(kind) is Literal:
        return str(get_args(kind)[0])
    known = {"data": "heart_disease", "url": "https://a.example", "delta": "1e-5", "targets": "breast_cancer"}
    return known.get(name, "1" if kind in (int, float) else "trial")


@contextmanager
def undone() -> Iterator[None]:
    """Undo what a command sets for its whole process."""
    umask, handlers = os.umask(0o022), {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        os.umask(umask)
        for number, handler in handlers.items():
            signal.signal(number, handler)


@cache
def command_line(chosen: str | None) -> Callable[..., object]:
    """Build it once, as a process does: that takes longer than most commands that are refused."""
    return get_command(BUILD(chosen))


@pytest.fixture
def ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[Sequence[str]], tuple[object, str]]:
    """Run the command line here. Returns: its status, and what it printed"""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(moiety, "build", command_line)

    def run(words: Sequence[str]) -> tuple[object, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO())
        with undone(), pytest.raises(SystemExit) as left:
            moiety.main(words)
        return left.value.code, "".join(capsys.readouterr())

    return run


@pytest.fixture
def ends(ended: Callable[[Sequence[str]], tuple[object, str]]) -> Callable[..., str]:
    """It ends with a known status and no traceback. Returns: what was wrong with that"""

    def run(words: Sequence[str]) -> str:
        code, said = ended(words)
        return f"moiety {' '.join(words)}: {code}: {said}" if "Traceback" in said or code not in (0, 1, 2, 3) else ""

    return run


@pytest.mark.parametrize("subcommand", moiety.SUBCOMMANDS)
def test_no_path_ends_a_command_in_a_traceback(
    folders: Folders, subcommand: str, tmp_path: Path, ends: Callable[..., str]
) -> None:
    found = []
    for command in commands(subcommand):
        for name in paths_of(command):
            for how in folders.wrong():
                if name == "config" and how in ("in a file", "file", "link"):  # read in one way everywhere
                    continue
                if (command.words, name) in LATE or (
                    subcommand in MEASURES and name in OUTPUTS and how not in ("link", "read-only")
                ):
                    continue
                shutil.rmtree(tmp_path / "out", ignore_errors=True)
                (tmp_path / "out").mkdir()
                words = words_of(command, {name: folders.wrong()[how]}, folders.good, tmp_path / "out" / "new")
                found.append(ends(words))
    assert not [one for one in found if one]


@contextmanager
def full_disk() -> Iterator[None]:
    """No file takes a byte."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("subcommand", [one for one in moiety.SUBCOMMANDS if one not in MEASURES])
def test_no_full_disk_ends_a_command_in_a_traceback(
    folders: Folders, subcommand: str, tmp_path: Path, ends: Callable[..., str]
) -> None:
    found = []
    for command in commands(subcommand):
        if command.words not in LASTS:
            words = words_of(command, {}, folders.good, tmp_path / command.words.replace(" ", "-"))
            with full_disk():
                found.append(ends(words))
    assert not [one for one in found if one]


@pytest.mark.parametrize("part", ["everything", "state"])
@pytest.mark.parametrize("subcommand", ["server", "doctor"])
def test_no_broken_folder_ends_a_command_in_a_traceback(
    folders: Folders, subcommand: str, part: str, tmp_path: Path, ends: Callable[..., str]
) -> None:
    """Settings that are right, in a folder in which whatever else they name is no text, no database and no key."""
    settings = folders.good["server config"]
    found = []
    for command in commands(subcommand):
        copy = tmp_path / command.words.replace(" ", "-")
        shutil.copytree(settings.parents[1], copy)
        (copy / "operator-a" / "data").mkdir(mode=0o700, exist_ok=True)
        for path in [*copy.rglob("*"), copy / "operator-a" / "data" / "server.db"]:
            if not path.is_dir() and path.name != settings.name and (part == "everything" or path.suffix == ".db"):
                path.write_bytes(GARBAGE)
        config = copy / settings.relative_to(settings.parents[1])
        found.append(
            ends(
                words_of(
                    command, {"config": config} if "config" in paths_of(command) else {}, folders.good, tmp_path / "new"
                )
            )
        )
    assert not [one for one in found if one]


@pytest.mark.parametrize(
    "words",
    [
        "server status --config BYTES",
        "agent run --config LOOP",
        "doctor --config BYTES",
        "data schema BYTES",
        "roster new-keys --name c1 --role site --samples 40 --out /sys/moiety",
        "roster show MISSING",
        "audit verify FOLDER",
        "audit export BYTES --json",
    ],
)
def test_a_command_ends_with_one_line(
    folders: Folders, words: str, ended: Callable[[Sequence[str]], tuple[object, str]]
) -> None:
    require_one_line(*ended(with_wrong_paths(folders, words)))


@pytest.mark.parametrize(
    "words", ["server run --config FOLDER", "model predict --model FOLDER --input BYTES --out new.csv"]
)
def test_a_process_ends_with_one_line(folders: Folders, words: str) -> None:
    command = [sys.executable, "-m", "moiety", *with_wrong_paths(folders, words)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(moiety.__file__).parent, check=False)
    require_one_line(done.returncode, done.stdout + done.stderr)


def with_wrong_paths(folders: Folders, words: str) -> list[str]:
    wrong = folders.wrong()
    for name, path in (("FOLDER", "folder"), ("BYTES", "bytes.toml"), ("LOOP", "loop"), ("MISSING", "missing")):
        words = words.replace(name, str(wrong[path]))
    return words.split()


def require_one_line(code: object, said: str) -> None:
    assert "Traceback" not in said
    assert code in (1, 2), said
    assert len(said.splitlines()) == 1 or code == 1
