"""Whitened features: pooled over training parts, the same map everywhere."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from client_agent.learning.data import Examples
from harness.datasets.bundled import breast_cancer_five_hospitals
from harness.datasets.transforms import whitened
from protocol.errors import ConfigurationError


def test_pooled_training_parts_have_no_correlation_left_and_tests_follow() -> None:
    before = breast_cancer_five_hospitals(0)
    after = whitened(before)
    pooled = np.concatenate([site.train.X for site in after.sites])
    np.testing.assert_allclose(pooled.mean(axis=0), 0, atol=1e-4)
    spread = np.linalg.eigvalsh(np.cov(pooled, rowvar=False))
    # thirty features of which some are nearly sums of others: those stay shorter than 1
    assert spread.max() < 1.01
    assert np.sum(spread > 0.9) >= 10
    # one affine map for all parts of all sites
    moved = before.sites[1].test.X[1:] - before.sites[1].test.X[:1]
    turn, *_ = np.linalg.lstsq(
        before.sites[0].train.X - before.sites[0].train.X[0],
        after.sites[0].train.X - after.sites[0].train.X[0],
        rcond=None,
    )
    np.testing.assert_allclose(moved @ turn, after.sites[1].test.X[1:] - after.sites[1].test.X[:1], atol=0.02)
    assert [site.train.y.tolist() for site in after.sites] == [site.train.y.tolist() for site in before.sites]


def test_images_are_refused() -> None:
    federation = breast_cancer_five_hospitals(0)
    images = tuple(
        replace(site, train=Examples(site.train.X.reshape(-1, 5, 6), site.train.y)) for site in federation.sites
    )
    with pytest.raises(ConfigurationError, match="no rows of a table"):
        whitened(replace(federation, inputs=(5, 6), sites=images))
