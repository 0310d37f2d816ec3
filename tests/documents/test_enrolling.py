"""A federation from nothing to agents that say "connected", a later site, other keys, a removal: every command of
enrolling.md and of the quick starts as it stands there, and real processes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest

from harness.federation.processes import Forked, fork_command
from tests.documents.lines import ROOT
from tests.documents.terminal import PATIENCE_S, Terminal, environment, until_said
from tests.documents.walk import Walk
from tests.ports import more_free_ports


@contextmanager
def running(log: Path, *words: str, **more: str) -> Iterator[Forked]:
    log.touch()
    process = fork_command([*words], log.absolute(), environment() | more)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


def until_ready(port: int, said: str) -> None:
    end_s = time.monotonic() + PATIENCE_S
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


DOCUMENTS = ("docs/enrolling.md", "docs/start/operator.md", "docs/start/site.md")
ELSEWHERE = (
    *("mkdir ", "docker run "),  # in containers: tests/deploy/test_strangers.py
    "moiety data ",  # test_preparing_data.py
    "moiety agent page",  # it runs until it is ended: tests/integration/test_site_page.py
    *("moiety agent show", "moiety agent show", "moiety agent approve", "moiety model "),  # test_first_federation.py
)
FINGERPRINT, SHORT = "'01234 56789 ...'", "'...'"
TYPED_INVITATIONS = "'moiety-invitation:...' 'moiety-invitation:...'"


class Clinics:
    """A federation that people make by typing what the documents say."""

    def __init__(self, moiety: Terminal) -> None:
        self.walk = Walk(DOCUMENTS, ELSEWHERE)
        self.moiety = moiety
        free = more_free_ports(4)
        self.ports = dict(zip("ab", free[:2], strict=True))
        self.operations = dict(zip("ab", free[2:], strict=True))

    def typed(self, begins: str, put: Mapping[str, str] | None = None) -> str:
        """Run the documents' line; return its output."""
        return self.moiety(*self.walk.words(begins, put))

    def at(self, side: str, begins: str, put: Mapping[str, str] | None = None) -> str:
        """Run a command at one of the operators; return its output."""
        own = {"https://a.example.org:8443": f"https://localhost:{self.ports[side]}"}
        if side == "b":
            own |= {"operator-a": "operator-b", "--side a": "--side b"}
        return self.typed(begins, {**(put or {}), **own})

    def join(self, name: str, invite: str, join: str, folder: str) -> None:
        """Invited by both operators and joined; the folder that the line names becomes ``folder``."""
        invitations = " ".join(self.at(side, invite, {"clinic-1": name}).strip() for side in "ab")
        self.typed(join, {TYPED_INVITATIONS: invitations, "--out clinic-1": f"--out {folder}"})

    def admit(self, name: str, folder: str, written: str = FINGERPRINT) -> None:
        """Everybody compares the fingerprint and admits the site; the requester does not admit itself."""
        told = json.loads(
            self.moiety(*self.walk.words("moiety site status --config clinic-1/", {"clinic-1": folder}), "--json")
        )
        put = {"clinic-1": name, written: f"'{told['fingerprint']}'"}
        line = "moiety server admit " + ("requester" if name == "requester" else "clinic-1")
        for side in "ab":
            self.at(side, f"{line} --fingerprint {written}", put)
        if name != "requester":
            self.typed(f"moiety site admit clinic-1 --fingerprint {written}", put)

    def enrol(self, name: str) -> None:
        role = " requester --requester" if name == "requester" else " clinic-1 --ttl"
        line = "moiety site join 'moiety-invitation:...' 'moiety-invitation:...' --samples 242 --data data --out"
        self.join(name, f"moiety server invite{role}", line, name)
        self.admit(name, name)


@pytest.fixture
def clinics(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Clinics:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    return Clinics(Terminal(capsys))


def pair(clinics: Clinics, stack: ExitStack) -> None:
    """Both servers are made, run, and know each other."""
    read = {}
    for side in "ab":
        digits = re.findall(r"^ +((?:\d{5} )+\d{5})$", clinics.at(side, "moiety server init"), re.MULTILINE)
        read[side] = f"'{digits[0]}'"
        words = clinics.walk.words("moiety server run", {"operator-a": f"operator-{side}"})
        environment = {"MOIETY_SERVER_OPERATIONS_PORT": str(clinics.operations[side])}
        stack.enter_context(running(Path(f"{side}.log"), *words, **environment))
    for side in "ab":
        until_ready(clinics.operations[side], "waits for the other operator's card")
    shutil.copy("operator-b/operator-b.card.toml", ".")
    clinics.at("a", "moiety server pair", {FINGERPRINT: read["b"]})
    clinics.at(
        "b",
        "moiety server pair",
        {"operator-b.card.toml": f"https://localhost:{clinics.ports['a']}", FINGERPRINT: read["a"]},
    )


def found(clinics: Clinics) -> None:
    """The requester and two clinics are enrolled, and the federation is founded."""
    for name in ("requester", "clinic-1", "clinic-2"):
        clinics.enrol(name)
    assert clinics.at("b", "moiety server admissions").count(" admitted") == 3
    assert clinics.typed("moiety site status --config requester/").count("admitted everywhere") == 3
    until_ready(clinics.operations["a"], "the requester to found the federation")
    assert "founded: clinics with clinic-1, clinic-2, requester" in clinics.typed("moiety site found")
    for name in ("clinic-1", "clinic-2"):
        said = clinics.typed("moiety site status --wait", {"clinic-1": name})
        assert "is here, signed by all. Start: moiety agent run" in said
    for operations in clinics.operations.values():
        until_ready(operations, '"status":"ready"')


def renew(clinics: Clinics) -> None:
    """clinic-1 gets other keys, in a folder of its own, and keeps its state."""
    line = "moiety site join 'moiety-invitation:...' 'moiety-invitation:...' --samples 242 --data data --state"
    clinics.join("clinic-1", "moiety server invite clinic-1 --renew", line, "clinic-1")
    clinics.admit("clinic-1", "clinic-1-2027", SHORT)
    clinics.typed("moiety site status --config clinic-1-2027")
    assert "is in place at both" in clinics.typed("moiety site add clinic-1")
    assert "is here, signed by all" in clinics.typed("moiety site status --config clinic-1-2027")


def test_from_nothing_to_a_federation_that_changes(clinics: Clinics) -> None:
    with ExitStack() as stack:
        pair(clinics, stack)
        found(clinics)
        assert "server a: nothing failed" in clinics.at("a", "moiety doctor --config operator-a")
        with patch.dict(os.environ, {"MOIETY_SERVER_OPERATIONS_PORT": str(clinics.operations["a"])}):
            assert "no study" in clinics.at("a", "moiety server status")
        clinics.at("a", "moiety server invite clinic-1 --config", {"clinic-1": "clinic-9"})
        clinics.enrol("clinic-3")
        assert "to add clinic-3 to the roster" in clinics.typed("moiety site status --config clinic-3")
        assert "change 1 of the roster is in place at both" in clinics.typed("moiety site add clinic-3")
        assert "is here, signed by all" in clinics.typed("moiety site status --config clinic-3")
        clinics.typed("moiety doctor --config clinic-1/", {})
        for name in ("requester", "clinic-1", "clinic-3"):
            words = clinics.walk.words("moiety agent run", {"clinic-1": name})
            with running(Path(f"{name}.log"), *words) as agent:
                until_said(f"{name}: connected to operator-a and operator-b", Path(f"{name}.log"), process=agent)
        renew(clinics)
        for side in "ab":
            clinics.at(side, "moiety server remove clinic-2")
        assert "change 3 of the roster is in place at both" in clinics.typed("moiety site remove clinic-2")
    assert clinics.walk.left() == []


def test_the_operators_quick_start_admits_the_requester_before_the_sites_and_before_it_founds() -> None:
    text = (ROOT / "docs/start/operator.md").read_text()
    admitted = [
        text.index(said) for said in ("admit requester --fingerprint", "admit clinic-1", "founds the federation")
    ]
    assert admitted == sorted(admitted)


def test_the_sites_quick_start_prepares_data_before_it_says_how_many_rows_train() -> None:
    text = (ROOT / "docs/start/site.md").read_text()
    (trained,) = re.findall(r"^data: (\d+) rows to train on", text, re.MULTILINE)
    assert text.index("moiety data prepare") < text.index("rows to train on,") < text.index(f"--samples {trained} ")
    assert re.findall(r"--samples (\d+)", text) == [trained]
    assert "`pip install 'moiety[agent,page]'`" in text
    assert "moiety agent page --config clinic-1/settings.toml\n" in text
