"""``moiety simulate``: a study file over several seeds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import moiety
from client_agent.learning.data import Examples, LocalData, save_folder
from harness.simulate.options import ProtectionName, StudyOptions
from harness.simulate.run_one import Protection
from harness.simulate.study_files import parse_seeds
from harness.simulate.study_run import SimulationResult, run_simulation
from protocol.errors import ConfigurationError

STUDY = """
name = "try"
rounds = 2
[model]
kind = "linear"
inputs = {inputs}
[rule]
name = "weight_erosion"
erosion_applies = "{erosion}"
distance_penalty = 0.1
[training]
batch_size = 16
server_learning_rate = 0.3
[parameters]
clip_norm = 4.0
"""


def study_file(folder: Path, inputs: str = "[30]", erosion: str = "next_round") -> Path:
    path = folder / "study.toml"
    path.write_text(STUDY.format(inputs=inputs, erosion=erosion))
    return path


def run(file: Path, protection: ProtectionName = "plain", data: str = "breast_cancer") -> SimulationResult:
    asked = StudyOptions(file, data, seeds="0,1", protection=protection)
    return run_simulation(asked, correlation_source="dealer")


def test_plain_and_secure_give_the_same_weights_and_accuracies(tmp_path: Path) -> None:
    both: tuple[ProtectionName, ...] = ("plain", "secure")
    plain, secure = (run(study_file(tmp_path), p) for p in both)
    assert plain.accuracy == secure.accuracy
    assert [one.seed for one in secure.runs] == [0, 1]
    for ours, theirs in zip(secure.runs, plain.runs, strict=True):
        for site, alphas in ours.alpha.items():
            # D = 62, f = 19, weights above 1/2: each distance is off by sqrt(62) (1.5 / w + 1) 2^-19 < 6e-5 (encoding
            # and the query's rounding), each alpha by p_d / ||g_0|| of it, the norm being above 0.2 in both rounds.
            assert alphas == pytest.approx(theirs.alpha[site], abs=2 * 0.1 / 0.2 * 6e-5)


def test_ckks_runs_averaging_rules_and_names_them_to_others(tmp_path: Path) -> None:
    pytest.importorskip("tenseal")
    file = study_file(tmp_path)
    with pytest.raises(ConfigurationError, match="take one of 'fedavg'"):
        run(file, "ckks")
    kept = [line for line in file.read_text().splitlines() if not line.startswith(("distance_penalty", "size_penalty"))]
    file.write_text("\n".join(kept).replace("weight_erosion", "fedavg").replace('erosion_applies = "next_round"', ""))
    encrypted, plain = run(file, "ckks"), run(file)
    assert encrypted.protection is Protection.CKKS
    assert encrypted.accuracy == plain.accuracy


def test_same_round_is_for_plain_runs_only(tmp_path: Path) -> None:
    file = study_file(tmp_path, erosion="same_round")
    same = run(file)
    assert same.erosion_applies == "same_round"
    following = run(study_file(tmp_path))
    assert same.runs[0].alpha != following.runs[0].alpha
    with pytest.raises(ConfigurationError, match=r"rule.erosion_applies.*plain simulation only"):
        run(study_file(tmp_path, erosion="same_round"), "secure")


def test_a_study_with_a_finish_finishes_the_requesters_model(tmp_path: Path) -> None:
    file = study_file(tmp_path)
    file.write_text(file.read_text() + '[finish]\nchoose = "held_out"\nheld_out = 0.2\n')
    for finished in (run(file), run(file, "secure")):
        for one in finished.runs:
            assert "local finish" in one.reason
            assert (one.released_rounds, len(one.accuracy_by_round)) == (2, 3)


def test_data_from_folders(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    for name in ("clinic", "north", "south", "west"):
        y = np.arange(40, dtype=np.int64) % 2
        part = Examples((rng.normal(size=(40, 3)) + y[:, None]).astype(np.float32), y)
        save_folder(tmp_path / "data" / name, LocalData(part, part))
    file = study_file(tmp_path, inputs="[3]")
    chosen = StudyOptions(file, str(tmp_path / "data"), "north", "3", protection="secure")
    result = run_simulation(chosen)
    assert set(result.runs[0].alpha) == {"clinic", "south", "west"}
    assert result.runs[0].released_rounds == 2
    with pytest.raises(ConfigurationError, match=r"--requester: found no name; give one of the sites in .*: clinic, "):
        run_simulation(StudyOptions(file, str(tmp_path / "data")))
    empty = Examples(np.zeros((0, 3), np.float32), np.zeros(0, np.int64))
    save_folder(tmp_path / "data" / "west", LocalData(part, empty))
    with pytest.raises(ConfigurationError, match="a simulation tests at every site"):
        run_simulation(chosen)


def test_data_must_fit_the_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"inputs \[30\] and 2 outputs.*\[64\] and 10"):
        run(study_file(tmp_path), data="digits")
    with pytest.raises(ConfigurationError, match="--data: found 'nowhere'; give breast_cancer or digits"):
        run(study_file(tmp_path), data="nowhere")
    file = study_file(tmp_path)
    file.write_text(file.read_text().replace('kind = "linear"', 'kind = "plugin"'))
    with pytest.raises(ConfigurationError, match=r"model.kind.*at a site's agent"):
        run(file)


def test_the_seed_of_a_study_is_used_unless_seeds_are_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = study_file(tmp_path)
    file.write_text(f"seed = 3\n{file.read_text()}")
    for given, used in (((), [3]), (("--seeds", "1,2"), [1, 2])):
        with pytest.raises(SystemExit):
            moiety.main(["simulate", str(file), *given, "--json"])
        assert [run["seed"] for run in json.loads(capsys.readouterr().out)["runs"]] == used


def test_names_in_the_study_are_those_of_the_data(tmp_path: Path) -> None:
    file = study_file(tmp_path)
    unnamed = file.read_text()
    file.write_text(unnamed.replace("[rule]", 'class_names = ["benign", "malignant"]\n[rule]'))
    once = StudyOptions(file, seeds="0")
    assert run_simulation(once).runs[0].released_rounds == 2
    file.write_text(unnamed.replace("[rule]", 'class_names = ["malignant", "benign"]\n[rule]'))
    with pytest.raises(ConfigurationError, match="its class_names are not those of breast cancer, five hospitals"):
        run_simulation(once)


@pytest.mark.parametrize("text", ["", "0,,1", "a", "0,0", "-1", "1.5", "3-1", "0-3,2", "0-99999999999"])
def test_wrong_seeds(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--seeds"):
        parse_seeds(text)


def test_seeds() -> None:
    assert parse_seeds("3, 1,2") == (3, 1, 2)
    assert parse_seeds("0-2,12, 5-5") == (0, 1, 2, 12, 5)


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = study_file(tmp_path), tmp_path / "out"
    with pytest.raises(SystemExit) as ended:
        moiety.main(["simulate", str(file), "--seeds", "0", "--out", str(out), "--json"])
    assert not ended.value.code
    printed = SimulationResult.model_validate_json(capsys.readouterr().out)
    assert printed == SimulationResult.model_validate_json((out / "simulation.json").read_text())
    with pytest.raises(SystemExit):
        moiety.main(["simulate", str(file), "--seeds", "0,1"])
    assert "try, plain: test accuracy" in capsys.readouterr().out
    with pytest.raises(SystemExit) as refused:
        moiety.main(["simulate", str(tmp_path / "none.toml"), "--json"])
    assert refused.value.code == 2
    assert json.loads(capsys.readouterr().out)["error"] == "configuration"
