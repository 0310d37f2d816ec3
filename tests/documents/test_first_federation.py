"""README's first federation by its own commands, as a person starts them, on other ports and in two rounds; and in it
what the documents tell a requester, a site and its auditor to type: before, during and after a study.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.documents.lines import ROOT
from tests.documents.terminal import PATIENCE_S, ForkedMoiety, Terminal, environment, until_said
from tests.documents.walk import Walk
from tests.kit.present import present
from tests.ports import free_ports, more_free_ports

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2700)]


def blocks() -> list[str]:
    """The shell lines of the section, in order: terminal 1, 2 and 3."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = present(
        re.search(r"^### Operators and sites: .*?(?=^#|^In earnest)", text, flags=re.MULTILINE | re.DOTALL)
    )
    found = re.findall(r"```sh\n(.*?)```", section[0], flags=re.DOTALL)
    assert len(found) == 3
    return found


@contextmanager
def terminal(commands: str, folder: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A shell that runs them; whatever it started is ended with it."""
    clean = {key: value for key, value in environment().items() if not key.startswith("MOIETY_")}
    with ForkedMoiety() as moiety:
        with log.open("ab") as out:
            shell = subprocess.Popen(
                ["bash", "-ec", commands],
                cwd=folder,
                env=clean | {"PATH": f"{moiety.path}{os.pathsep}{clean['PATH']}"},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield shell
        finally:
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()


def test_a_call_writes_into_pipes_and_files_and_says_how_it_ended(tmp_path: Path) -> None:
    line = "moiety --version | tr m M > said; moiety no-such-command || echo $?"
    with ForkedMoiety() as moiety:
        own = environment() | {"PATH": f"{moiety.path}{os.pathsep}{os.environ['PATH']}"}
        done = subprocess.run(["bash", "-c", line], cwd=tmp_path, env=own, capture_output=True, text=True, check=True)
    assert (tmp_path / "said").read_text().startswith("Moiety ")
    assert done.stdout == "2\n"
    assert "no-such-command" in done.stderr


def test_a_terminal_that_is_closed_leaves_nothing_that_runs(tmp_path: Path) -> None:
    """The second server finds port and folder free."""
    port, operations = free_ports()
    made = f"moiety server init --side a --federation f --name a --url https://localhost:{port} --own-ca --out a"
    run = f"MOIETY_SERVER_OPERATIONS_PORT={operations} moiety server run --config a/settings.toml"
    log = tmp_path / "log"
    for times, line in ((1, f"{made} && {run}"), (2, run)):
        with terminal(line, tmp_path, log) as shell:
            until_said("listening", log, times, shell)


DOCUMENTS = (
    "docs/joining.md",
    "docs/using_the_model.md",
    "docs/auditing.md",
    "docs/privacy_budget.md",
    "docs/start/site.md",
)
CREATE = "moiety study create /etc/moiety/study.toml --config /etc/moiety/settings.toml"
EPSILON = "moiety study epsilon study.toml --delta 1e-5 --samples 500"
ELSEWHERE = (
    *("mkdir ", "docker ", "mv ", "MOIETY_DATA=", "alias "),  # in containers: tests/deploy
    *("moiety site ", "moiety doctor", "moiety agent run"),  # test_enrolling.py
    "moiety data ",  # test_preparing_data.py
    "moiety agent page",  # it runs until it is ended: tests/integration/test_site_page.py
    "moiety study summary",  # of a study with a summary: tests/integration/test_summary.py
)


def place_of(tmp_path: Path) -> Path:
    """The examples, with a study of two rounds, where the terminals look for them."""
    examples = tmp_path / "docs" / "examples"
    shutil.copytree(ROOT / "docs" / "examples", examples)
    study = examples / "first.toml"
    study.write_text(study.read_text().replace("rounds = 10", "rounds = 2").replace("list_every = 5", "list_every = 2"))
    return tmp_path


def at_hospital(hospital: int) -> dict[str, str]:
    """Replace the documents' settings, folders and studies by a hospital's own."""
    own = f"hospital-{hospital}"
    settings = {
        "settings.toml": f"{own}/settings.toml",
        **{f"{place}/{own}": own for place in ("/etc/moiety", "clinic-1")},
    }
    state = f"{own}/state"
    folders = {"/var/lib/moiety-agent": state, " state/studies": f" {state}/studies"}
    return {**settings, **folders, " NAME": " first", "/NAME": "/first", " heart ": " first "}


def with_few_draws(lines: str) -> str:
    """The lines of agents, whose scores' intervals are over fewer draws than the usual 200: some seconds each."""
    return lines.replace("moiety agent run", "MOIETY_AGENT_BOOTSTRAP_SAMPLES=20 moiety agent run")


def on_free_ports(operators: str) -> str:
    """The lines of terminal 1, whose servers listen on ports of this test."""
    free = more_free_ports(4)
    for shown, port, side, operations in zip(("8441", "8442"), free[:2], "ab", free[2:], strict=True):
        run = f"moiety server run --config {side}/"
        operators = operators.replace(shown, str(port)).replace(
            run, f"MOIETY_SERVER_OPERATIONS_PORT={operations} {run}"
        )
    return operators.replace("make install && . .venv/bin/activate\n", "")


class Federation:
    """Its folder, what every terminal said, and the lines that people type."""

    def __init__(self, folder: Path, moiety: Terminal, walk: Walk) -> None:
        self.folder, self.moiety, self.walk = folder, moiety, walk

    def at(self, hospital: int, begins: str, put: Mapping[str, str] | None = None, status: int = 0) -> str:
        """Run the documents' line at a hospital, on the first study unless told otherwise."""
        own = {word: typed for word, typed in at_hospital(hospital).items() if word not in (put or {})}
        return self.moiety(*self.walk.words(begins, {**(put or {}), **own}), status=status)

    def waits(self, hospital: int, study: str) -> None:
        """Until a study waits for this hospital's people."""
        deadline = time.monotonic() + PATIENCE_S
        while f"{study}" not in (said := self.at(hospital, "moiety agent show --config clinic-1")):
            assert time.monotonic() < deadline, said
            time.sleep(0.2)


@contextmanager
def first_federation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Federation]:
    """Servers and hospitals run, and the first study has been created; a person of hospital 1 has to approve it."""
    place = place_of(tmp_path)
    operators, hospitals, requester = blocks()
    by_hand = """sed -i 's/approve = "policy"/approve = "manual"/' hospital-1/settings.toml\n"""
    hospitals = hospitals.replace("moiety site found", f"{by_hand}moiety site found")
    logs = {name: place / f"{name}.log" for name in ("operators", "hospitals", "requester")}
    with ExitStack() as stack:
        serving = stack.enter_context(terminal(on_free_ports(operators) + "wait", place, logs["operators"]))
        until_said("listening", logs["operators"], 2, serving)
        monkeypatch.chdir(place / "try")
        walk = Walk(DOCUMENTS, ELSEWHERE)
        training = stack.enter_context(terminal(with_few_draws(hospitals), place / "try", logs["hospitals"]))
        until_said("connected to operator-a and operator-b", logs["hospitals"], 3, training)
        watching = stack.enter_context(terminal(with_few_draws(requester), place / "try", logs["requester"]))
        running = Federation(place / "try", Terminal(capsys), walk)
        running.waits(1, "first")
        assert "hospital-0" in running.at(1, "moiety agent show first")
        running.at(1, 'moiety agent approve first --person "Dr. A"', {'permit 12"': 'permit 12" --yes'})
        deadline = time.monotonic() + PATIENCE_S
        while watching.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        said = {name: log.read_text()[-3000:] for name, log in logs.items()}
        assert watching.poll() == 0, said
        assert "study first: completed (all rounds are done)" in said["requester"]
        yield running


def test_what_the_documents_tell_people_to_type(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with first_federation(tmp_path, capsys, monkeypatch) as federation:
        models = [federation.folder / f"hospital-{n}" / "state" / "studies" / "first" for n in range(4)]
        assert all(folder.is_dir() for folder in models)
        declined(federation)
        used(federation)
    audited(federation)
    assert federation.walk.left() == []


def declined(federation: Federation) -> None:
    """A second study: checked, created, shown, and cancelled while a site's people have not said a word; a third one,
    approved at that site and declined by somebody else there.
    """
    for name in ("second", "third"):
        text = (federation.folder / "first.toml").read_text().replace('name = "first"', f'name = "{name}"')
        (federation.folder / f"{name}.toml").write_text(text)
    second = {"/etc/moiety/study.toml": "second.toml", " NAME": " second"}
    assert "can be created" in federation.at(0, f"{CREATE} --dry-run", second)
    federation.at(0, CREATE, second)
    federation.waits(1, "second")
    federation.at(1, "moiety agent show --config /etc")
    federation.at(1, "moiety agent show NAME", second)
    federation.at(0, "moiety study cancel NAME", second)
    third = {"/etc/moiety/study.toml": "third.toml", " NAME": " third"}
    federation.at(0, CREATE, third)
    federation.waits(1, "third")
    federation.at(1, "moiety agent approve NAME", {**third, 'permit 12"': 'permit 12" --yes'})
    federation.at(1, "moiety agent decline NAME", {**third, 'no permit"': 'no permit" --yes'})
    federation.at(0, "moiety study watch NAME")


def used(federation: Federation) -> None:
    """The model: reported, exported, predicted with, compared."""
    federation.at(0, "moiety study report NAME")
    federation.at(0, "moiety study report heart", {"heart.html": "first.html"})
    assert "first" in (federation.folder / "first.html").read_text()
    export = "moiety model export heart --config settings.toml --out heart-model"
    federation.at(0, export, {"--out heart-model": "--out first-model"})
    federation.at(0, f"{export} --horizon", {"--out heart-model": "--out hazard"}, status=2)  # no survival study
    federation.at(1, "moiety model export first", {"--out first-model": "--out its-model"})
    federation.at(0, "moiety model predict", {"heart-model": "first-model", "new.csv": "data/0/test.npz"})
    assert len((federation.folder / "predictions.csv").read_text().splitlines()) > 5
    assert "difference" in federation.at(0, "moiety model compare", {"--draws 1000": "--draws 20"})
    assert "study first" in federation.at(0, "moiety agent status")
    plan = {"study.toml": "second.toml"}
    federation.at(0, EPSILON, plan, status=2)  # it has no noise
    assert "noise_multiplier = " in federation.at(0, f"{EPSILON} --target", plan)


def audited(federation: Federation) -> None:
    """Transcripts verified, the audit log exported and verified against the export, what is held deleted."""
    roster = {"roster.toml": "hospital-0/roster.toml"}
    assert federation.at(0, "moiety study verify state", roster)
    pair = roster | {
        f"{name}/transcripts": f"hospital-{n}/state/studies/first/transcripts"
        for n, name in ((0, "ours"), (1, "theirs"))
    }
    assert federation.at(0, "moiety study verify ours", pair)
    federation.at(1, "moiety audit export /var/lib/moiety-agent --json")
    federation.walk.every("moiety audit verify", lambda words: federation.moiety(*words), at_hospital(1))
    assert "approved" in federation.at(1, "moiety audit export /var/lib/moiety-agent --study")
    federation.at(1, "moiety agent delete heart")
    assert (federation.folder / "hospital-1/state/studies/first/deletion.json").is_file()
    federation.at(1, "moiety server delete heart", {"settings.toml": "its", "/etc/moiety/its": "a/settings.toml"})
    assert (federation.folder / "a/data/deletions/first.json").is_file()
    answers = federation.at(1, "moiety audit answers heart", {"/var/lib/moiety-server": "a/data"})
    assert all(said in answers for said in ("Dr. A", "Dr. O", "permit 12", "permit 7 ended"))
