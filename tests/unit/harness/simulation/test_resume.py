"""A case that is killed goes on where it stopped, to the same bits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from harness.simulate.case import read_case
from harness.simulate.case_run import CaseOptions, run_case
from harness.simulate.run_one import Protection
from protocol.errors import ConfigurationError

CASE = """
name = "try"
rounds = {rounds}
[case]
data = "breast_cancer"
[case.policy]
largest_share = 1.0
[model]
kind = "mlp"
inputs = [30]
hidden = [8]
[training]
update = "local_sgd"
batch_size = 8
[parameters]
clip_norm = 16.0
[[variant]]
name = "weight_erosion"
rule = {{ name = "weight_erosion", distance_penalty = {penalty} }}
[[variant]]
name = "local"
rule = {{ name = "local" }}
"""


def case_file(folder: Path, rounds: int = 3, penalty: float = 0.02) -> Path:
    path = folder / "case.toml"
    path.write_text(CASE.format(rounds=rounds, penalty=penalty))
    return path


def lines_of(out: Path) -> list[dict[str, object]]:
    """Every line but for the seconds, by variant and seed."""
    lines = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    for line in lines:
        del line["seconds"]
    return sorted(lines, key=lambda line: (line["variant"], line["seed"]))


class Stopped(Exception):
    pass


@pytest.mark.parametrize("protection", [Protection.PLAIN, Protection.SECURE])
def test_a_run_stopped_after_any_round_ends_as_an_undisturbed_one(tmp_path: Path, protection: Protection) -> None:
    case = read_case(case_file(tmp_path))
    run_case(case, CaseOptions(tmp_path / "whole", protection=protection, correlation_source="dealer"))
    options = CaseOptions(
        tmp_path / "stopped", protection=protection, correlation_source="dealer", checkpoint_every_s=0
    )
    stops = 0
    while stops < 20:
        told: list[object] = []

        def stop_at_second(progress: object, told: list[object] = told) -> None:
            told.append(progress)
            if len(told) == 2:
                raise Stopped

        try:
            run_case(case, options, stop_at_second)
            break
        except Stopped:
            stops += 1
    # of each of two runs: after rounds 1, 2 and 3, and once its line was written
    assert stops == 2 * 4
    assert lines_of(tmp_path / "stopped") == lines_of(tmp_path / "whole")
    assert list((tmp_path / "stopped" / "partial").iterdir()) == []


STANDING_CASE = """
import sys, time
from pathlib import Path
from harness.simulate.case import read_case
from harness.simulate.case_run import CaseOptions, run_case
options = CaseOptions(Path(sys.argv[2]), checkpoint_every_s=0.0)
run_case(read_case(Path(sys.argv[1])), options, lambda progress: time.sleep(600 * (progress.rounds_done == 6)))
"""
"""Once six rounds are done it goes no further."""


@pytest.mark.slow
def test_a_killed_process_leaves_a_case_that_goes_on(tmp_path: Path) -> None:
    file = case_file(tmp_path, rounds=40)
    out = tmp_path / "killed"
    process = subprocess.Popen([sys.executable, "-c", STANDING_CASE, str(file), str(out)], start_new_session=True)
    partial = out / "partial" / "weight_erosion-city-hospital-0.json"
    until = time.monotonic() + 120
    while time.monotonic() < until and not (partial.is_file() and len(json.loads(partial.read_text())["records"]) > 3):
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    done = len(json.loads(partial.read_text())["records"])
    assert 3 < done < 40
    rounds: list[int] = []
    case = read_case(file)
    run_case(case, CaseOptions(out, only=("weight_erosion",)), lambda progress: rounds.append(progress.rounds_done))
    assert rounds[0] >= done
    run_case(case, CaseOptions(out))
    run_case(case, CaseOptions(tmp_path / "whole"))
    assert lines_of(out) == lines_of(tmp_path / "whole")


def test_a_changed_case_does_not_go_on_in_the_same_folder(tmp_path: Path) -> None:
    options = CaseOptions(tmp_path / "out")
    run_case(read_case(case_file(tmp_path)), options)
    before = (tmp_path / "out" / "results.jsonl").read_bytes()
    changed = read_case(case_file(tmp_path, penalty=0.03))
    with pytest.raises(ConfigurationError, match=r"variant 'weight_erosion' is not what it was .* give another --out"):
        run_case(changed, options)
    with pytest.raises(ConfigurationError, match="--protection plain, now it is secure"):
        run_case(changed, CaseOptions(tmp_path / "out", protection=Protection.SECURE))
    assert (tmp_path / "out" / "results.jsonl").read_bytes() == before


def test_a_checkpoint_of_other_data_is_refused(tmp_path: Path) -> None:
    case = read_case(case_file(tmp_path))

    def stop(progress: object) -> None:
        if progress.rounds_done == 2:  # type: ignore[attr-defined]
            raise Stopped

    with pytest.raises(Stopped):
        run_case(case, CaseOptions(tmp_path / "out", checkpoint_every_s=0), stop)
    (partial,) = (tmp_path / "out" / "partial").glob("*.json")
    content = json.loads(partial.read_text())
    partial.write_text(json.dumps({**content, "identity": "another"}))
    with pytest.raises(ConfigurationError, match="another study or of other data"):
        run_case(case, CaseOptions(tmp_path / "out"))
    vectors = partial.with_name(content["vectors"])
    whole = vectors.read_bytes()
    vectors.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    partial.write_text(json.dumps(content))
    with pytest.raises(ConfigurationError, match="is not the file that was written with it"):
        run_case(case, CaseOptions(tmp_path / "out"))
    partial.write_text("{")
    with pytest.raises(ConfigurationError, match=r"cannot be read: (?s:.*); delete it"):
        run_case(case, CaseOptions(tmp_path / "out"))


def test_a_line_that_a_crash_cut_off_is_done_again(tmp_path: Path) -> None:
    case = read_case(case_file(tmp_path))
    options = CaseOptions(tmp_path / "out")
    run_case(case, options)
    whole = lines_of(tmp_path / "out")
    results = tmp_path / "out" / "results.jsonl"
    results.write_bytes(results.read_bytes()[:-100])
    run_case(case, options)
    assert lines_of(tmp_path / "out") == whole


def test_two_simulations_do_not_write_into_one_folder(tmp_path: Path) -> None:
    case = read_case(case_file(tmp_path))
    options = CaseOptions(tmp_path / "out")

    def begin_another(progress: object) -> None:
        run_case(case, options)

    with pytest.raises(ConfigurationError, match="another simulation writes there"):
        run_case(case, options, begin_another)


@pytest.mark.slow
def test_several_processes_give_the_same_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Called from a script without a ``__main__`` guard too: no worker imports it."""
    script = ModuleType("__main__")
    script.__file__ = str(tmp_path / "script.py")
    (tmp_path / "script.py").write_text("raise SystemExit('a worker ran the script')")
    monkeypatch.setitem(sys.modules, "__main__", script)
    case = read_case(case_file(tmp_path, rounds=2))
    seen: list[tuple[int, int]] = []
    one, two = CaseOptions(tmp_path / "one"), CaseOptions(tmp_path / "two", jobs=2)
    run_case(case, one)
    run_case(case, two, lambda progress: seen.append((progress.runs_done, progress.rounds_done)))
    assert lines_of(tmp_path / "two") == lines_of(tmp_path / "one")
    assert seen[-1] == (2, 4)
    assert sys.modules["__main__"] is script


@pytest.mark.slow
def test_a_run_that_cannot_begin_ends_the_others_after_their_round(tmp_path: Path) -> None:
    text = case_file(tmp_path, rounds=2000).read_text()
    parameters = "parameters = { least_contributors = 9 }"
    (tmp_path / "case.toml").write_text(text.replace('name = "local"\n', f'name = "many"\n{parameters}\n', 1))
    text = (tmp_path / "case.toml").read_text()
    assert text.count("least_contributors = 9") == 1
    (tmp_path / "case.toml").write_text(text.replace('rule = { name = "local" }', 'rule = { name = "fedavg" }'))
    case = read_case(tmp_path / "case.toml")
    with pytest.raises(ConfigurationError, match="too few for least_contributors=9"):
        run_case(case, CaseOptions(tmp_path / "out", jobs=2, checkpoint_every_s=0))
    for partial in (tmp_path / "out" / "partial").glob("*.json"):
        assert len(json.loads(partial.read_text())["records"]) < 2000
    assert not (tmp_path / "out" / "results.jsonl").exists()
