"""From nothing to agents that say "connected", by the commands of docs/enrolling.md and real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from moiety import main
from tests.ports import more_free_ports

_PATIENCE_S = 90.0
_ROOT = Path(__file__).parents[2]


class Terminal:
    """Where people type; answers what a command printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: object) -> str:
        self._capsys.readouterr()
        with suppress(SystemExit):
            main([str(word) for word in words])
        printed = self._capsys.readouterr()
        assert "error" not in printed.err, printed.err
        return printed.out


@contextmanager
def running(log: Path, *words: object, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "moiety", *map(str, words)],
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=_ROOT,
            env=os.environ | environment,
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(20)


def until_said(said: str, log: Path, process: subprocess.Popen[bytes]) -> None:
    end_s = time.monotonic() + _PATIENCE_S
    while said not in log.read_text():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < end_s, log.read_text()
        time.sleep(0.1)


def until_ready(port: int, said: str) -> None:
    end_s = time.monotonic() + _PATIENCE_S
    found = ""
    while said not in found:
        assert time.monotonic() < end_s, found
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
                found = answer.read().decode()
        except urllib.error.HTTPError as error:
            found = error.read().decode()
        except OSError as error:
            found = str(error)
        time.sleep(0.1)


def test_from_nothing_to_connected_agents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    moiety = Terminal(capsys)
    ports = more_free_ports(4)
    settings = {side: tmp_path / f"operator-{side}" / "settings.toml" for side in "ab"}
    read = {}
    for side, port in zip("ab", ports, strict=False):
        made = moiety(
            "server", "init", "--side", side, "--federation", "clinics", "--name", f"operator-{side}",
            "--url", f"https://localhost:{port}", "--own-ca", "--out", settings[side].parent, "--json",
        )  # fmt: skip
        read[side] = json.loads(made)["fingerprint"]
    with ExitStack() as stack:
        for side, operations in zip("ab", ports[2:], strict=True):
            run = ("server", "run", "--config", settings[side])
            log = tmp_path / f"{side}.log"
            stack.enter_context(running(log, *run, MOIETY_SERVER_OPERATIONS_PORT=str(operations)))
        until_ready(ports[2], "waits for the other operator's card")
        until_ready(ports[3], "waits for the other operator's card")
        moiety(
            "server", "pair", settings["b"].parent / "operator-b.card.toml", "--fingerprint", read["b"],
            "--config", settings["a"],
        )  # fmt: skip
        moiety("server", "pair", f"https://localhost:{ports[0]}", "--fingerprint", read["a"], "--config", settings["b"])
        requester = tmp_path / "requester" / "settings.toml"

        def joined(name: str) -> Path:
            """Invited by both, joined, and admitted by everybody; its settings."""
            role = ("--requester",) if name == "requester" else ()
            a, b = (moiety("server", "invite", name, *role, "--config", settings[side]).strip() for side in "ab")
            data, folder = tmp_path / f"{name}-data", tmp_path / name
            data.mkdir()
            moiety("site", "join", a, b, "--samples", 100, "--data", data, "--out", folder)
            own = folder / "settings.toml"
            digits = json.loads(moiety("site", "fingerprint", "--config", own, "--json"))["fingerprint"]
            for side in "ab":
                moiety("server", "admit", name, "--fingerprint", digits, "--config", settings[side])
            if name != "requester":
                moiety("site", "admit", name, "--fingerprint", digits, "--config", requester)
            return own

        sites = {name: joined(name) for name in ("requester", "clinic-1", "clinic-2")}
        assert "used" in moiety("server", "invitations", "--config", settings["a"])
        assert moiety("server", "admissions", "--config", settings["b"]).count(" admitted") == 3
        assert moiety("site", "admissions", "--config", requester).count("admitted everywhere") == 3
        until_ready(ports[2], "the requester to found the federation")
        assert "founded: clinics with clinic-1, clinic-2, requester" in moiety("site", "found", "--config", requester)
        for name in ("clinic-1", "clinic-2"):
            said = moiety("site", "status", "--wait", "--config", sites[name])
            assert "is here, signed by all. Start: moiety agent run" in said
        for operations in ports[2:]:
            until_ready(operations, '"status":"ready"')
        sites["clinic-3"] = joined("clinic-3")
        assert "to add clinic-3 to the roster" in moiety("site", "status", "--config", sites["clinic-3"])
        said = moiety("site", "add", "clinic-3", "--reason", "clinic-3 joins", "--config", requester)
        assert "change 1 of the roster is in place at both operators" in said
        assert "is here, signed by all" in moiety("site", "status", "--wait", "--config", sites["clinic-3"])
        for name in ("requester", "clinic-1", "clinic-3"):
            log = tmp_path / f"{name}.log"
            agent = stack.enter_context(running(log, "agent", "run", "--config", sites[name]))
            until_said(f"{name}: connected to operator-a and operator-b", log, agent)
