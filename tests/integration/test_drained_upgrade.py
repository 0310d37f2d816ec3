"""A study goes on bit by bit while both servers are drained and started again, and while folders are put back.

The drill of docs/operating.md: drain, stop, archive, wipe, restore, start. What is put back is the newest state, taken
while the party was stopped.
"""

from __future__ import annotations

import shutil
import signal
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.federation.learners import EROSION, light_study
from protocol.messages.control import RoundState, Study
from protocol.sharing import Side
from servers.cli import app
from tests.integration.crashes import A, B, crash_federation, over, recorded, run_killing
from tests.kit.disk import folder_on_disk
from tests.kit.processes import Federation

ROUNDS = 6


@pytest.fixture
def federation() -> Iterator[Federation]:
    with folder_on_disk() as folder, crash_federation(folder) as running:
        yield running


def study(federation: Federation, name: str) -> Study:
    return light_study(federation.parties, name, EROSION, rounds=ROUNDS)


def drain(federation: Federation, name: str, *options: str) -> str:
    words = ["drain", "--config", str(federation.config(name)), *options]
    return CliRunner().invoke(app, words, catch_exceptions=False).stdout


def restored(folder: Path, archive: Path) -> None:
    """The folder is archived, wiped, and put back from the archive alone."""
    with tarfile.open(archive, "w") as made:
        made.add(folder, arcname=".")
    shutil.rmtree(folder)
    folder.mkdir(mode=0o700)
    with tarfile.open(archive) as kept:
        kept.extractall(folder, filter="data")


def test_drains_and_restores_in_the_middle_change_no_bit(federation: Federation, tmp_path: Path) -> None:
    undisturbed = run_killing(federation, study(federation, "undisturbed"))
    asked = study(federation, "drained")
    federation.hand_in(asked)
    for number, (side, name) in enumerate(((Side.A, A), (Side.B, B)), start=1):
        recorded(federation, asked, number)
        said = drain(federation, name, "--within", "30")
        assert "no new round or study is taken; it has stopped: start the new release" in said
        assert federation.running[name].process.wait(30) == 0
        with federation.database(side) as database:
            states = {row[0] for row in database.execute("select state from rounds")}
        assert states == {RoundState.RELEASED.value}, "nothing was left under way"
        restored(federation.folder / name / "data", tmp_path / f"{name}.tar")
        federation.start_party(name)
    recorded(federation, asked, 3)
    federation.running["c1"].process.send_signal(signal.SIGTERM)
    federation.running["c1"].process.wait(30)
    restored(federation.state("c1"), tmp_path / "c1.tar")
    federation.start_party("c1")
    found = over(federation, asked)
    assert [record.state for record in found.records] == [record.state for record in undisturbed.records]
    assert found.models == undisturbed.models
