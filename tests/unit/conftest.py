"""Fixtures common to the unit tests."""

from __future__ import annotations

import numpy as np
import pytest

from protocol.parameters import StudyParameters


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20200917)


@pytest.fixture
def identity() -> StudyParameters:
    """A small study, whose sketch is the identity."""
    return StudyParameters(dimension=101, clip_norm=4.0, least_contributors=3)


@pytest.fixture
def blocks() -> StudyParameters:
    """A study whose vectors are sketched in four blocks."""
    return StudyParameters(dimension=5001, clip_norm=2.0, least_contributors=3)


@pytest.fixture(params=["identity", "blocks"])
def parameters(request: pytest.FixtureRequest) -> StudyParameters:
    return request.getfixturevalue(request.param)
