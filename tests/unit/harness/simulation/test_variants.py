"""What a variant and a case may change: model, rounds, pooled data, who is away; and a model that diverges."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from harness.datasets.bundled import breast_cancer_five_hospitals
from harness.datasets.transforms import pooled
from harness.simulate.case import parse_case
from harness.simulate.case_run import CaseOptions, run_case
from harness.simulate.run_line import RunLine
from harness.simulate.run_one import Protection
from harness.simulate.summary import remarks_on, summarise_case
from protocol.errors import ConfigurationError

CASE = """
name = "try"
rounds = 3
[case]
data = "breast_cancer"
{case}
[case.policy]
least_contributors = 1
largest_share = 1.0
least_isolation = 0.0
[model]
kind = "linear"
inputs = [30]
[training]
batch_size = 16
[parameters]
clip_norm = {clip}
[[variant]]
name = "changed"
"""
FIRST, SECOND = (site.name for site in breast_cancer_five_hospitals(0).contributors[:2])


def run(folder: Path, variant: str, case: str = "", protection: Protection = Protection.PLAIN, clip: str = "4.0"):
    text = CASE.format(case=case, clip=clip) + variant
    return run_case(parse_case(text, "case.toml"), CaseOptions(folder, protection=protection))


def one(folder: Path, variant: str, **more: object) -> RunLine:
    (line,) = run(folder, variant, **more)  # type: ignore[arg-type]
    return line


def test_a_variant_has_a_model_and_rounds_of_its_own(tmp_path: Path) -> None:
    line = one(tmp_path, 'rounds = 2\nrule = { name = "fedavg" }\nmodel = { kind = "mlp", hidden = [3] }')
    assert len(line.kind) == 2
    assert len(line.final_model or ()) == 30 * 3 + 3 + 3 * 2 + 2


def test_a_pooled_run_trains_alone_on_everything(tmp_path: Path) -> None:
    line = one(tmp_path, 'pooled = true\nrule = { name = "local" }')
    assert set(line.kind) == {"alone"}
    alone = one(tmp_path / "alone", 'rule = { name = "local" }')
    assert line.final_model != alone.final_model
    assert line.data_digest == alone.data_digest
    federation = breast_cancer_five_hospitals(0)
    train = pooled(federation).requester.train
    assert len(train) == sum(len(site.train) for site in federation.sites)
    np.testing.assert_array_equal(train.X[: len(federation.requester.train)], federation.requester.train.X)


@pytest.mark.parametrize(
    ("variant", "protection", "said"),
    [
        ('pooled = true\nrule = { name = "fedavg" }', Protection.PLAIN, "key 'pooled': the rule is 'fedavg'"),
        ('pooled = true\nrule = { name = "local" }', Protection.SECURE, "'pooled' puts all data at one place"),
    ],
)
def test_pooling_is_refused_elsewhere(tmp_path: Path, variant: str, protection: Protection, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        run(tmp_path, variant, protection=protection)


@pytest.mark.parametrize("protection", [Protection.PLAIN, Protection.SECURE])
def test_who_is_late_or_away_is_in_no_sum(tmp_path: Path, protection: Protection) -> None:
    attendance = f"attendance = {{ late = {{ {FIRST} = 3 }}, missed = {{ {SECOND} = [2, 3] }} }}"
    line = one(tmp_path, 'rule = { name = "fedavg" }\nparameters = { least_contributors = 2 }',
               case=attendance, protection=protection)  # fmt: skip
    assert [FIRST in names for names in line.took_part] == [False, False, True]
    assert [SECOND in names for names in line.took_part] == [True, False, False]


def test_dropouts_are_drawn_from_the_seed(tmp_path: Path) -> None:
    case = "attendance = { dropout = 0.4 }\nseeds = [0, 1]"
    variant = 'rounds = 12\nrule = { name = "fedavg" }\nparameters = { least_contributors = 1 }'
    lines = [run(tmp_path / name, variant, case) for name in "ab"]
    assert [line.took_part for line in lines[0]] == [line.took_part for line in lines[1]]
    assert lines[0][0].took_part != lines[0][1].took_part
    present = sum(len(names) for line in lines[0] for names in line.took_part)
    assert 0.4 * 96 < present < 0.8 * 96


def test_an_unknown_late_site_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"\[case.attendance\]: 'nowhere' is no site"):
        run(tmp_path, 'rule = { name = "fedavg" }', case="attendance = { late = { nowhere = 2 } }")


@pytest.mark.parametrize("rule", ["local", "fedavg", "weight_erosion"])
def test_a_rate_without_sense_is_divergence(tmp_path: Path, rule: str) -> None:
    line = one(tmp_path, f'rule = {{ name = "{rule}" }}\ntraining = {{ server_learning_rate = 1e30 }}')
    assert line.end == "failed"
    assert "the model has diverged" in line.reason
    (row,) = summarise_case([line]).rows
    assert "FAILED 1 of 1" in remarks_on(row)


def test_the_table_marks_clipping_and_going_alone(tmp_path: Path) -> None:
    line = one(
        tmp_path, 'rule = { name = "weight_erosion", distance_penalty = 50.0, size_penalty = 0.0 }', clip="0.0078125"
    )
    (row,) = summarise_case([line]).rows
    assert remarks_on(row) == ("CLIPPED up to 100%", "LOCAL_ONLY 1 of 1")


def test_the_chosen_round_is_the_best_on_validation_data(tmp_path: Path) -> None:
    line = one(tmp_path, 'rule = { name = "fedavg" }')
    tried = line.model_copy(
        update={"validation_accuracy": (0.5, 0.9, 0.9), "test_accuracy": (0.99, 0.7, 0.8)},
    )
    assert tried.chosen_score == 0.7
    assert summarise_case([tried]).rows[0].chosen_round is not None
    assert line.model_copy(update={"validation_accuracy": (None,) * 3}).chosen_score is None
