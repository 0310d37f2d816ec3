"""Finish by this code what older code left at a failpoint: databases, journals, shares, memories of sums.

    python -m tests.frozen.upgrades COMMIT [CASE ...]

The older code, in a worktree of its own, runs a study of real processes until one of them dies at a failpoint; then all
of them are killed. This code starts on what they left, finishes the study, and must come to the model of a study that
nothing disturbed, or to one whose interrupted round was skipped. Some eight seconds per case; no part of ``make test``.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DIES_WITHIN_S = 60.0
OVER_WITHIN_S = 120.0
UNDISTURBED = "undisturbed"
FINISHED = ("alike", "skipped")
MODES = PLAIN, RANKING, SUMMARY, TAGGED = ("plain", "ranking", "summary", "tagged")
"""Modes of ``tests/integration/crash_cases.py`` that are left and finished."""


def leave(folder: Path, ports: tuple[int, int], names: Sequence[str]) -> None:
    """Under the older code: each case in a folder of its own, dead at its failpoint; a line on stdin asks for more."""
    for mode, case in _older_cases():
        name = case.name if mode == PLAIN else f"{mode}-{case.name}"
        if len(case.kills) != 1 or (names and name not in names):
            continue
        (kill,) = case.kills
        with _opened(folder / name, ports, mode) as federation:
            federation.kill(kill.party)
            federation.start_party(kill.party, kill.armed)
            federation.hand_in(_study(federation, mode, large=case.large))
            deadline = time.monotonic() + DIES_WITHIN_S
            while federation.exit_code(kill.party) is None and time.monotonic() < deadline:
                time.sleep(0.01)
            died = federation.exit_code(kill.party) is not None
            for party in federation.process_ids:
                federation.kill(party)
        left = {"case": name, "mode": mode, "died": died, "large": case.large}
        sys.stdout.write(json.dumps(left) + "\n")
        sys.stdout.flush()
        sys.stdin.readline()  # this code finishes it first: rounds close after a minute


def _older_cases() -> Iterator[tuple[str, Any]]:
    """Each case with its mode, of the one matrix or of older code's modules of tests for each mode."""
    try:
        cases = importlib.import_module("tests.integration.crash_cases").CASES
    except ImportError:  # older code has them beside its tests
        cases = importlib.import_module("tests.integration.test_crashes").CASES
    matrix = [(getattr(case, "mode", PLAIN), case) for case in cases]
    for mode, case in matrix:
        if mode in MODES and getattr(case, "storage", "sqlite") == "sqlite":
            yield mode, case
    if {mode for mode, _ in matrix} != {PLAIN}:
        return
    for mode, module in ((RANKING, "ranking"), (SUMMARY, "summary"), (TAGGED, "tagged_study")):
        with suppress(ImportError):  # code from before these modes
            older = importlib.import_module(f"tests.integration.test_crashes_{module}")
            kills = older.KILLS if mode == SUMMARY else (*older.QUICK, *older.SLOW)
            yield from ((mode, type(cases[0])((kill,))) for kill in kills)


def _kit() -> Any:
    """This or older code's helper of crash tests: only what both have is used of it."""
    try:
        return importlib.import_module("tests.integration.crashes")
    except ImportError:
        return importlib.import_module("tests.integration.crash_federation")


def _opened(folder: Path, ports: tuple[int, int], mode: str) -> Any:
    """A federation of these tests, as a context manager."""
    kit = _kit()
    if hasattr(kit, "CrashFederation"):
        kit.free_ports = lambda: ports
        return kit.CrashFederation(folder)
    policy = None
    if mode == RANKING:
        policy = kit.SitePolicy(least_isolation=0.0, may_rank=True)
    elif mode == SUMMARY:
        policy = importlib.import_module("tests.integration.test_summary").POLICY
    return kit.crash_federation(folder, policy=policy, ports=ports)


def _study(federation: Any, mode: str, *, large: bool) -> Any:
    """The same study under this and older code; a summary's tables are put in place first."""
    kit = _kit()
    if mode == SUMMARY:
        summary = importlib.import_module("tests.integration.test_summary")
        summary.put_tables(federation, kit.SITES)
        return summary.summary_study(federation, "upgraded", rounds=1)
    if hasattr(kit, "CrashFederation"):
        return kit.CrashFederation.study(federation, "upgraded", large=large)
    light = kit.light_study_of(federation, "upgraded", large=large)
    changes: dict[str, dict[str, Any]] = {RANKING: {"ranking": {}}, TAGGED: {"tags": True}}
    return type(light).model_validate({**dict(light), **changes.get(mode, {})})


def finish(folder: Path, ports: tuple[int, int], mode: str, large: bool) -> dict[str, Any]:
    """Under this code: start on what is there, and say how the study ended."""
    from tests.integration import agents, crashes

    new = not folder.exists()
    with _opened(folder, ports, mode) as federation:
        study = _study(federation, mode, large=large)
        if new:
            federation.hand_in(study)
        deadline = time.monotonic() + OVER_WITHIN_S
        over = agents.finished(federation, study.name, *crashes.SITES)
        while not over():
            federation.check()
            if time.monotonic() > deadline:
                return {"problem": "not over in time", "tails": federation.tails() + federation.site_tails()}
            time.sleep(0.05)
        crashes.audit(federation, study)
        outcome = crashes.outcome_of(federation, study)
        return {
            "rounds": [(record.round, record.state.value) for record in outcome.records],
            "models": sorted({model.hex() for model in outcome.models}),
        }


def verdict(found: dict[str, Any], undisturbed: dict[str, Any]) -> str:
    """ "alike", "skipped" (one model everywhere, a round less), or what is wrong."""
    if "problem" in found:
        return f"{found['problem']}\n{found['tails']}"
    if len(found["models"]) != 1:
        return f"sites hold {len(found['models'])} models"
    if found == undisturbed:
        return "alike"
    states = [state for _, state in found["rounds"]]
    return "skipped" if states.count("skipped") == 1 and len(states) == len(undisturbed["rounds"]) else f"ended {found}"


def main(commit: str, names: Sequence[str]) -> int:
    """0 if every case was finished."""
    from tests.ports import free_ports

    ports = free_ports()
    with tempfile.TemporaryDirectory() as made:
        older, folder = Path(made, "older"), Path(made, "left")
        folder.mkdir()
        _git("worktree", "add", "--quiet", "--detach", str(older), commit)
        try:
            command = [sys.executable, str(Path(__file__)), "leave", str(folder), *map(str, ports), *names]
            environment = {**os.environ, "PYTHONPATH": str(older)}
            with subprocess.Popen(
                command, cwd=older, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            ) as leaving:
                counts = _finish_each(leaving, folder, ports)
        finally:
            _git("worktree", "remove", "--force", str(older))
    sys.stdout.write(", ".join(f"{count} {said}" for said, count in sorted(counts.items())) + "\n")
    return int(not counts or bool(counts["wrong"]) or leaving.returncode != 0)


def _finish_each(leaving: subprocess.Popen[str], folder: Path, ports: tuple[int, int]) -> Counter[str]:
    """Count the cases by their end, each printed."""
    assert leaving.stdin is not None
    assert leaving.stdout is not None
    plain: dict[tuple[str, bool], dict[str, Any]] = {}
    counts: Counter[str] = Counter()
    for case in map(json.loads, leaving.stdout):
        mode, large = of = case["mode"], case["large"]
        found = finish(folder / case["case"], ports, mode, large)
        if of not in plain:
            plain[of] = finish(folder / f"{UNDISTURBED}-{mode}-{large}", ports, mode, large)
        said = verdict(found, plain[of])
        counts[said if said in FINISHED else "wrong"] += 1
        said += "" if case["died"] else " (nobody had died: the failpoint was not reached)"
        sys.stdout.write(f"{case['case']}: {said}\n")
        sys.stdout.flush()
        leaving.stdin.write("\n")
        leaving.stdin.flush()
    return counts


def _git(*arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=ROOT, check=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["leave"]:
        sys.path.pop(0)  # this file's folder
        leave(Path(sys.argv[2]), (int(sys.argv[3]), int(sys.argv[4])), sys.argv[5:])
    else:
        sys.exit(main(sys.argv[1], sys.argv[2:]))
