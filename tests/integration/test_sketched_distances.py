"""Sketched distances against exact ones, and the accuracy of runs that use them.

Whole runs with exact distances are in ``test_rules_secure_equals_plain.py``, for every rule.
"""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import mean, stdev

import numpy as np
import pytest

from harness.datasets.bundled import digits_sites
from harness.demo.studies import study_of
from harness.engine.history import RunHistory
from protocol.arithmetic.fixed_point import encode
from protocol.arithmetic.ring import derive
from protocol.messages.control import RuleName
from protocol.mpc.measurement import distance_query, open_distance
from protocol.mpc.sketch import sketch_vector
from protocol.parameters import StudyParameters
from tests.unlimited import CHANGING_DIGITS, run_plain, run_protected

pytestmark = pytest.mark.uncounted
NO_ROSTER = "0" * 64
SEEDS = (0, 1, 2, 3, 4)


def test_sketched_distances_over_the_same_updates() -> None:
    """The relative error over many challenges: mean within three standard errors of 0, spread within 10 % of theory.

    Theory, for x = S d with four independent blocks of k/4 buckets: ||Sx||^2/4 has mean ||x||^2 and variance
    (2/k) (||x||^4 - ||x||_4^4), since within each block E = ||x||^2 and Var = 2 (||x||^4 - ||x||_4^4) / (k/4), and four
    blocks are averaged. The square root halves the relative deviation to first order; its bias, -1/8 of the relative
    variance of the square (6e-5 of 1e-3 / 2 here), is added to the expected mean.
    """
    parameters = StudyParameters(dimension=10_810, clip_norm=1.0, weight_grid=16, least_contributors=3)
    rng = np.random.default_rng(11)
    own, other = (v / (2 * np.linalg.norm(v)) for v in rng.normal(size=(2, parameters.dimension)))
    encoded = [encode(v, parameters, bytes([i]) * 32) for i, v in enumerate((own, other))]
    exact = float(np.linalg.norm(own - other))
    errors = []
    for number in range(2000):
        challenge = derive(bytes(32), f"challenge {number}")
        mine, theirs = (sketch_vector(challenge, x, parameters) for x in encoded)
        d = theirs - distance_query(mine, 16, 16)
        opened = open_distance(int(np.sum(d * d)), 0, 16, parameters)
        errors.append(opened / exact - 1)
    difference = own - other
    relative_variance = (2 / parameters.sketch_length) * (1 - np.sum(difference**4) / np.sum(difference**2) ** 2)
    theory = math.sqrt(relative_variance) / 2
    assert abs(mean(errors) + relative_variance / 8) <= 3 * stdev(errors) / math.sqrt(len(errors))
    assert abs(mean(errors)) <= 3 * stdev(errors) / math.sqrt(len(errors))
    assert abs(stdev(errors) / theory - 1) <= 0.10


@pytest.mark.slow
def test_sketched_runs_end_within_one_standard_error_of_plain_ones() -> None:
    plain: list[RunHistory] = []
    secure: list[RunHistory] = []
    for seed in SEEDS:
        federation = digits_sites(seed)
        study = study_of(replace(CHANGING_DIGITS, rounds=8), federation, RuleName.WEIGHT_EROSION, NO_ROSTER, seed)
        assert not study.parameters.exact_distances
        plain.append(run_plain(study, federation.sites))
        secure.append(run_protected(study, federation.sites, correlation_source="dealer"))
    ours, theirs = ([run.test_accuracy for run in runs] for runs in (secure, plain))
    # Seeds that all give the same accuracy have standard error 0, and must then agree exactly.
    assert abs(mean(ours) - mean(theirs)) <= stdev(theirs) / math.sqrt(len(SEEDS))
