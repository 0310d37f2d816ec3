"""A run in one process under a study with noise."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from harness.datasets.bundled import HOSPITALS
from harness.engine.loop import run_protected
from harness.simulate.case import parse_case
from harness.simulate.run_one import Protection
from harness.simulate.study_files import simulated_study
from protocol.errors import ConfigurationError
from tests.kit.cases import case_text, variant
from tests.kit.small_runs import run_plain

NOISED = "privacy = {{ record_clip = 1.0, noise_multiplier = {} }}"
CASE = case_text(
    variant("plain", rule="fedavg"),
    variant("noised", NOISED.format(0.5), rule="fedavg"),
    variant("loud", NOISED.format(50.0), rule="fedavg"),
    variant("weighed", NOISED.format(1.0), rule="mallows"),
    rounds=2,
    training="batch_size = 40",
    clip_norm=64.0,
)


def runs(name: str, seed: int = 0, under=run_plain):
    from harness.datasets.registry import DataRequest, load_data

    case = parse_case(CASE, "here")
    federation = load_data(DataRequest("breast_cancer", 0))
    study = simulated_study(Protection.PLAIN.of(case.variant(name).study), "here", federation, seed)
    return under(study, federation.sites)


def test_noise_is_the_seeds_and_its_size_is_the_studys():
    assert len(HOSPITALS) == 5
    plain, noised, again, loud = (runs(name).final_model for name in ("plain", "noised", "noised", "loud"))
    assert np.array_equal(noised, again)
    assert not np.array_equal(noised, runs("noised", seed=1).final_model)
    assert np.linalg.norm(loud - plain) > 3 * np.linalg.norm(noised - plain) > 0


def test_a_run_under_shares_is_the_plain_one_but_for_rounding():
    plain, secure = runs("noised"), runs("noised", under=partial(run_protected, correlation_source="dealer"))
    assert [record.took_part for record in secure.rounds] == [record.took_part for record in plain.rounds]
    assert np.abs(secure.final_model - plain.final_model).max() < 1e-3
    assert not np.array_equal(secure.final_model, plain.final_model)


def test_a_variant_that_noise_does_not_cover_is_refused():
    with pytest.raises(ConfigurationError, match="weighs by examples"):
        runs("weighed")
