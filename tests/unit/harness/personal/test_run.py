"""A comparison from its file to its results: resumed to the same bits, refused when changed, summed up, drawn."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.datasets.registry import DataRequest, load_data
from harness.datasets.site_data import Federation
from harness.simulate import comparison
from harness.simulate.cli import simulate
from harness.simulate.comparison import (
    PersonalCase,
    ResultFolder,
    Run,
    Tampering,
    deviations,
    execute,
    load_sites,
    personal_case_of,
    personal_layers,
    read_personal_case,
    scores_of,
    summaries,
    summary_table,
    tampered,
)
from harness.simulate.study_files import StudyFile
from protocol.configuration import parse_toml
from protocol.errors import ConfigurationError
from tests.kit.present import present
from tests.unit.harness.personal.sites import CPU, FILE, federation


@pytest.fixture(autouse=True)
def _small_data(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(request: DataRequest) -> Federation:
        return federation() if request.data == "har_subjects" else load_data(request)

    monkeypatch.setattr(comparison, "load_data", load)


def case(text: str = FILE) -> PersonalCase:
    return personal_case_of(StudyFile("small.toml", parse_toml(text, "small.toml")))


def planned(name: str, of: PersonalCase | None = None, *, batched: bool = False, seed: int = 0) -> Run:
    chosen = of or case()
    return Run(chosen, chosen.only((name,))[0], seed, Path("anywhere"), CPU, batched)


class Killed(Exception):
    """Stands for kill -9."""


@pytest.mark.parametrize("variant", ["ifedavg", "fedavg", "apfl", "local", "centralised"])
def test_a_stopped_run_goes_on_to_the_same_bits(tmp_path: Path, variant: str) -> None:
    whole, stopped = ResultFolder(tmp_path / "whole"), ResultFolder(tmp_path / "stopped")
    line = execute(planned(variant), whole)

    def kill(evaluated: object) -> None:
        raise Killed

    for _ in range(2):
        with pytest.raises(Killed):
            execute(planned(variant), stopped, kill)
    seen = []
    again = execute(planned(variant), stopped, lambda evaluated: seen.append(evaluated.round))
    assert seen == [6]
    assert again.model_copy(update={"seconds": line.seconds}) == line
    for name in ("models", "personal", "own", "mixing"):
        np.testing.assert_array_equal(
            getattr(stopped.final_state(variant, 0), name), getattr(whole.final_state(variant, 0), name)
        )
    assert not list((tmp_path / "stopped" / "partial").iterdir())
    assert [one.round for one in line.evaluated] == [2, 4, 6]
    assert len(line.evaluated[0].test.f1) == len(line.sites) == 5
    assert line.evaluated[0].validation is None


def test_training_helps_and_fine_tuning_goes_on_from_the_last_model(tmp_path: Path) -> None:
    folder = ResultFolder(tmp_path)
    line = execute(planned("fedavg"), folder)
    assert line.evaluated[-1].test.mean_accuracy > 0.5
    assert line.last == present(line.fine_tuned)
    assert folder.final_state("fedavg", 0).models.shape == (5, 9)
    assert execute(planned("local"), folder).fine_tuned is None


def test_batched_runs_reach_the_same_scores(tmp_path: Path) -> None:
    one = execute(planned("ifedavg"), ResultFolder(tmp_path / "one"))
    together = execute(planned("ifedavg", batched=True), ResultFolder(tmp_path / "together"))
    assert one.last == together.last


def test_a_partial_file_of_another_case_is_refused(tmp_path: Path) -> None:
    folder = ResultFolder(tmp_path)

    def kill(evaluated: object) -> None:
        raise Killed

    with pytest.raises(Killed):
        execute(planned("local"), folder, kill)
    changed = case(FILE.replace("clip_norm = 64.0", "clip_norm = 32.0"))
    with pytest.raises(ConfigurationError, match="a run of another study or of other data"):
        execute(planned("local", changed), folder)


def test_the_command_skips_what_is_done_and_refuses_a_changed_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "small.toml", tmp_path / "out"
    path.write_text(FILE)
    simulate(path, str(tmp_path), out=out, only="fedavg,ifedavg", device="cpu")
    first = (out / "results.jsonl").read_bytes()
    assert "fedavg, seed 0, round 6 of 6: F1" in capsys.readouterr().out
    simulate(path, str(tmp_path), out=out, only="fedavg", device="cpu", as_json=True)
    assert (out / "results.jsonl").read_bytes() == first
    found = json.loads(capsys.readouterr().out)
    assert [one["variant"] for one in found] == ["ifedavg", "fedavg"]
    names = {plot.name for plot in (out / "plots").iterdir()}
    layers = {f"ifedavg-0-{place}-{symbol}.svg" for place in ("input", "target") for symbol in "bw"}
    assert names == {"scores.svg"} | layers
    path.write_text(FILE.replace("fine_tune_epochs = 2", "fine_tune_epochs = 3"))
    with pytest.raises(ConfigurationError, match="'fedavg' is not the one whose results are there"):
        simulate(path, str(tmp_path), out=out, only="fedavg", device="cpu")


def test_the_command_needs_a_folder_and_is_plain(tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text(FILE)
    with pytest.raises(ConfigurationError, match="needs --out"):
        simulate(path)
    with pytest.raises(ConfigurationError, match=r"runs with --protection plain.*'model\.personal'"):
        simulate(path, out=tmp_path / "out", protection="secure")


def test_summary_has_mean_and_standard_error_over_seeds(tmp_path: Path) -> None:
    folder = ResultFolder(tmp_path)
    lines = [execute(replace(planned("local"), seed=seed), folder) for seed in (0, 1)]
    (summary,) = summaries(folder.lines())
    means, worst = [line.last.mean_f1 for line in lines], [line.last.worst_f1 for line in lines]
    assert summary.mean_f1.mean == pytest.approx(np.mean(means))
    # the standard error of two values is half of their difference
    assert summary.worst_f1.error == pytest.approx(abs(worst[0] - worst[1]) / 2)
    assert summary.seeds == 2
    assert summary_table(folder.lines()).row_count == 1


def test_scores_are_those_of_every_site() -> None:
    found = scores_of(
        [np.array([0, 0, 1, 1]), np.array([2])],
        [np.array([0, 1, 1, 1]), np.array([2])],
    )
    # class 0: precision 1, recall 1/2, F1 2/3; class 1: precision 2/3, recall 1, F1 4/5; equal weights
    assert found.f1 == pytest.approx(((2 / 3 + 4 / 5) / 2, 1.0))
    assert found.accuracy == (0.75, 1.0)
    assert (found.worst_f1, found.mean_accuracy) == (found.f1[0], 0.875)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('data = "har_subjects"', 'data = "mars"', "data set 'mars' is none of"),
        ("[personal]", "[people]", "one table \\[personal\\]"),
        ('scheme = "mixed"', 'scheme = "mixture"', "scheme"),
        ('name = "apfl"', 'name = "local"', "a name of its own"),
        ("evaluate_every = 2", "evaluate_every = 0", "evaluate_every"),
        ("inputs = [2]", "inputs = [3]", "the model takes inputs"),
    ],
)
def test_mistakes_in_the_file_are_named(tmp_path: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        execute(planned("ifedavg", case(FILE.replace(old, new))), ResultFolder(tmp_path))


def test_a_site_without_test_examples_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def untested(request: DataRequest) -> Federation:
        first, *others = federation().sites
        last = replace(others[-1], test=first.validation)
        return replace(federation(), sites=(first, *others[:-1], last))

    monkeypatch.setattr(comparison, "load_data", untested)
    with pytest.raises(ConfigurationError, match="'s4' of har_subjects has no test example"):
        execute(planned("local"), ResultFolder(tmp_path))


def test_unknown_variants_and_missing_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no variant 'fedprox'; it has ifedavg, fedavg"):
        case().only(("fedprox",))
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_personal_case(tmp_path / "nothing.toml")
    with pytest.raises(ConfigurationError, match="is not finished"):
        ResultFolder(tmp_path).final_state("local", 0)
    (tmp_path / "results.jsonl").write_text('{"format": "moiety-run/1"}\n')
    with pytest.raises(ConfigurationError, match="a line that is no PersonalLine"):
        ResultFolder(tmp_path).lines()


def test_tampering_changes_one_site_in_all_parts() -> None:
    sites = federation().sites
    changed = tampered(sites, Tampering(site="s2", shifted=[1], shift=0.5, swapped=[0, 2]))
    for before, after in zip(sites, changed, strict=True):
        if before.name != "s2":
            assert after is before
    for part in ("train", "test"):
        old, new = getattr(sites[2], part), getattr(changed[2], part)
        np.testing.assert_array_equal(new.X, old.X + np.array([0, 0.5], np.float32))
        np.testing.assert_array_equal(new.y, np.array([2, 1, 0])[old.y])
    assert tampered(sites, Tampering()) is sites


@pytest.mark.parametrize(
    ("tampering", "said"),
    [
        (Tampering(site="s9"), "no site 's9'"),
        (Tampering(site="s1", shifted=[2]), "the data have 0 to 1"),
        (Tampering(site="s1", swapped=[1, 1]), "two different labels"),
    ],
)
def test_tampering_with_what_is_not_there_is_refused(tampering: Tampering, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        tampered(federation().sites, tampering)


def test_deviations_are_over_sites() -> None:
    values = np.array([[1, 5], [1, 5], [1, 5], [1, 5], [1, 10]], np.float32)
    found = deviations(values)
    # mean 6, standard deviation 2: the last is two of them away, the others half of one
    np.testing.assert_allclose(found, [[0, -0.5]] * 4 + [[0, 2]], rtol=0, atol=1e-12)


def strongest(values: np.ndarray) -> tuple[int, ...]:
    """Site and column of the entry that stands out most."""
    found = np.abs(deviations(values))
    return tuple(map(int, np.unravel_index(found.argmax(), found.shape)))


@pytest.mark.parametrize("text", [FILE, FILE.replace('kind = "linear"', 'kind = "mlp"\nhidden = [8]')])
def test_a_shifted_feature_stands_out_in_the_input_layer(tmp_path: Path, text: str) -> None:
    change = 'evaluate_every = 2\ntampering = { site = "s3", shifted = [0], shift = 3.0 }'
    longer = text.replace("rounds = 6", "rounds = 60").replace("evaluate_every = 2", change)
    folder = ResultFolder(tmp_path)
    ((_, bias, _), _) = personal_layers(case(longer), folder, execute(planned("ifedavg", case(longer)), folder))
    # of five sites none can be further than 2 standard deviations from the mean: (n - 1) / sqrt(n) = 1.79
    assert strongest(bias) == (3, 0)
    assert deviations(bias)[3, 0] < -1.6
    assert load_sites(case(longer), 0, tmp_path).sites[3].train.X[:, 0].mean() > 1.5


def test_swapped_labels_stand_out_in_the_target_layer(tmp_path: Path) -> None:
    change = 'evaluate_every = 2\ntampering = { site = "s3", swapped = [1, 2] }'
    longer = FILE.replace("rounds = 6", "rounds = 60").replace("evaluate_every = 2", change)
    folder = ResultFolder(tmp_path)
    # five sites are few: whose layer lies furthest out depends on the seed, and with this one it is the swapped one
    line = execute(planned("ifedavg", case(longer), seed=4), folder)
    (_, (_, _, weight)) = personal_layers(case(longer), folder, line)
    site, column = strongest(weight)
    assert site == 3
    assert column in (1, 2)
    assert deviations(weight)[site, column] < -1.6


def test_detections_count_the_marks_of_what_was_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # of five sites none can be further than 1.79 standard deviations from the mean
    monkeypatch.setattr(comparison, "MARKED_DEVIATIONS", 1.6)
    change = 'evaluate_every = 2\ntampering = { site = "s3", shifted = [0], shift = 3.0, swapped = [1, 2] }'
    path, out = tmp_path / "small.toml", tmp_path / "out"
    path.write_text(FILE.replace("rounds = 6", "rounds = 60").replace("evaluate_every = 2", change))
    simulate(path, str(tmp_path), out=out, only="ifedavg,local", device="cpu")
    shifted, swapped = json.loads((out / "detections.json").read_text())
    assert (shifted["layer"], shifted["changed"], shifted["found"], shifted["rank"]) == ("input", 1, 1, 1)
    assert (swapped["layer"], swapped["changed"]) == ("target", 2)
    assert swapped["found"] >= 1
    assert shifted["site"] == swapped["site"] == "s3"
    assert 0 <= shifted["elsewhere"] < 1
    assert "1 of 1 changed columns of s3 marked in the input layer" in " ".join(capsys.readouterr().out.split())
