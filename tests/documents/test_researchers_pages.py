"""The commands of the pages for researchers, as they stand there; with one seed where a line names none.

Lines that need the public data sets run where MOIETY_DATA names them. What takes hours is run by the commands that make
the pages of docs/results, which print it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.documents.lines import ROOT, commands_of
from tests.documents.terminal import shell

PAGES = ("docs/start/researcher.md", "docs/simulating.md", "docs/attacking.md", "README.md")
DATA = os.environ.get("MOIETY_DATA", "")
ELSEWHERE = (
    *("make ", ". .venv", "mkdir", "python -m", "for ", "chmod", "cp ", "done", "ray ", "export RAY"),
    # test_first_federation.py types a whole federation; tests/adversarial and test_attacks_by_....py run the attacks
    *("moiety server ", "moiety site ", "moiety agent ", "moiety study ", "digits() ", "n=", "read=", "[ ", "cat "),
    *("moiety attack request-replayed", "moiety attack --all"),
    "moiety simulate recurrence.toml",  # tests/unit/harness/simulation/test_folders.py
    *("moiety simulate mnist", "moiety lab results", "moiety simulate harness/studies/mnist"),  # hours
)
FEWER = {"--seeds 0,1,2,3,4": "--seeds 0", "--seeds 0,1,2": "--seeds 0", "--seeds 0-9,12": "--seeds 0"}
FEWER |= {"--seeds 0-9": "--seeds 0", "--seeds 0-4": "--seeds 0", "--batches 1,32": "--batches 1"}
LINES = list(
    dict.fromkeys(line for page in PAGES for line in commands_of(page) if not line.startswith(("  ", *ELSEWHERE)))
)
MOIETY = [line for line in LINES if line.startswith("moiety ")]

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]


@pytest.mark.parametrize("line", LINES)
def test_it_runs(line: str, tmp_path: Path) -> None:
    if "DATA" in line and not DATA:
        pytest.skip("MOIETY_DATA names no folder with the public data sets")
    typed = line.replace("--data DATA", f"--data {DATA}").replace("--download ", "")
    for said, fewer in FEWER.items():
        typed = typed.replace(said, fewer)
    if typed.startswith("moiety simulate harness") and "--seeds" not in typed:
        typed += " --seeds 0"
    typed = typed.replace("harness/studies", f"{ROOT}/harness/studies").replace(
        "docs/examples", f"{ROOT}/docs/examples"
    )
    done = shell(typed, tmp_path, 800.0)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert done.stdout.strip()
