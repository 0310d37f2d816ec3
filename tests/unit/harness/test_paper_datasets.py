"""MNIST and Titanic as the papers split them, on small files in the real formats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from harness.datasets import titanic as titanic_module
from harness.datasets.mnist import DEVIATION, MEAN, SHARES, mnist
from harness.datasets.titanic import FEATURES, SITES, titanic
from protocol.errors import ConfigurationError
from tests.unit.harness.datasets_files import small_mnist, small_titanic

PER_DIGIT = 400


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    small_mnist(monkeypatch, tmp_path, PER_DIGIT, 60)
    return tmp_path


@pytest.mark.parametrize("distribution", SHARES)
@pytest.mark.parametrize("sites", [10, 20])
def test_every_site_has_the_shares_shifted_left_by_one(images: Path, distribution: str, sites: int) -> None:
    federation = mnist(images, distribution, sites, seed=1)
    shares = SHARES[distribution]
    total = np.zeros(10, np.int64)
    for k, site in enumerate(federation.sites):
        counts = np.bincount(site.train.y, minlength=10)
        expected = [shares[(digit + k) % 10] * PER_DIGIT * 10 / sites for digit in range(10)]
        # each cut of a digit's images is rounded
        assert np.all(np.abs(counts - expected) <= 1)
        total += counts
    np.testing.assert_array_equal(total, PER_DIGIT)
    assert [site.name for site in federation.sites[:3]] == ["site-0", "site-1", "site-2"]


@pytest.mark.parametrize("distribution", SHARES)
def test_the_test_images_are_the_most_with_the_requesters_distribution(images: Path, distribution: str) -> None:
    shares = SHARES[distribution]
    test = mnist(images, distribution, 10, seed=1).requester.test
    counts = np.bincount(test.y, minlength=10)
    assert counts.tolist() == [round(60 * share / max(shares)) for share in shares]
    assert counts.max() == 60


def test_the_first_test_images_are_the_projects_own(images: Path) -> None:
    own, first = (mnist(images, name, 10, seed=1) for name in ("B", "B_first_images"))
    assert np.bincount(first.requester.test.y, minlength=10).tolist() == [0, 0, 0, 0, 12, 36, 12, 0, 0, 0]
    for one, other in zip(own.sites, first.sites, strict=True):
        np.testing.assert_array_equal(one.train.y, other.train.y)
    other_seed = mnist(images, "B_first_images", 10, seed=2).requester.test
    np.testing.assert_array_equal(first.requester.test.y, other_seed.y)


def test_images_keep_their_labels_and_are_normalised(images: Path) -> None:
    federation = mnist(images, "A", 10, seed=0, validation_share=0.25)
    for site in federation.sites:
        expected = (site.train.y / 255 - MEAN) / DEVIATION
        # three float32 operations on numbers below 1
        np.testing.assert_allclose(site.train.X[:, 0, 3, 4], expected, rtol=0, atol=4 * 2.0**-23)
    requester = federation.requester
    assert (len(requester.train), len(requester.validation)) == (300, 100)
    assert all(len(site.validation) == len(site.test) == 0 for site in federation.contributors)


def test_the_seed_decides_who_gets_which_image(images: Path) -> None:
    # all images of a digit are alike, so only their order can differ
    one, again, other = (mnist(images, "B", 10, seed=seed).requester.train.y for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)


def test_mnist_refuses_what_it_does_not_know(images: Path) -> None:
    with pytest.raises(ConfigurationError, match="distribution 'H' is none of A, B"):
        mnist(images, "H", 10, 0)
    for sites in (5, 15):
        with pytest.raises(ConfigurationError, match="multiple of 10"):
            mnist(images, "A", sites, 0)


def passenger(age: str, survived: int, number: int, fare: str = "10") -> str:
    embarked = ("C", "Q", "S", "")[number % 4]
    return f"{1 + number % 3},{survived},{'female' if number % 2 else 'male'},{age},{number % 2},0,{fare},{embarked}"


@pytest.fixture
def passengers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    ages = [str(5 + n) for n in range(60)] + [""] * 20
    rows = [passenger(age, n % 2, n, "" if n == 7 else str(n)) for n, age in enumerate(ages)]
    small_titanic(monkeypatch, tmp_path, rows)
    return tmp_path


def test_ages_decide_the_site(passengers: Path) -> None:
    federation = titanic(passengers, "age_strict", 0)
    sizes = [len(site.train) + len(site.test) for site in federation.sites]
    assert sizes == [16, 15, 29, 20]
    assert [site.name for site in federation.sites] == list(SITES["age_strict"])
    known = np.arange(5, 65)
    for site, (low, high) in zip(federation.sites[1:3], ((20, 35), (35, 65)), strict=True):
        ages = site.train.X[:, FEATURES.index("age")] * known.std() + known.mean()
        # ages below 65 in float32, scaled and back
        assert np.all((ages > low + 0.001) & (ages < high + 0.001))
    some = titanic(passengers, "age_some", 0)
    assert [len(site.train) + len(site.test) for site in some.sites] == [16, 15, 29, 20]
    first = some.sites[0].train.X[:, FEATURES.index("age")] * known.std() + known.mean()
    assert first.min() < 20 < first.max()


@pytest.mark.parametrize("requester", SITES["age_strict"])
def test_the_requester_trains_on_half_and_the_others_on_all(passengers: Path, requester: str) -> None:
    federation = titanic(passengers, "age_strict", 3, requester, validation_share=0.25)
    assert federation.requester.name == requester
    own = federation.requester
    rows = len(own.train) + len(own.validation) + len(own.test)
    assert len(own.test) == round(rows / 2)
    assert 0 < len(own.validation) <= 0.25 * (rows - len(own.test)) + 1
    assert all(len(site.test) == len(site.validation) == 0 for site in federation.contributors)


def test_features_follow_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        "1,1,female,16,0,0,30,C",
        "2,0,male,17,1,0,10,Q",
        "3,0,male,,0,2,,",
        "3,1,female,57,0,0,8,S",
    ]
    small_titanic(monkeypatch, tmp_path, rows)
    parsed = titanic_module.passengers(tmp_path)
    X = titanic_module.features(parsed, np.array([16, 17, np.nan, 57]))
    fare, known = np.array([30, 10, -1, 8]), np.array([16, 17, 57])
    age = np.array([16, 17, 28, 57])
    columns = {
        "fare": (fare - fare.mean()) / fare.std(),
        "female": [1, 0, 0, 1],
        "embarked_c": [1, 0, 0, 0],
        "embarked_q": [0, 1, 0, 0],
        "alone": [1, 0, 0, 1],
        "first_class": [1, 0, 0, 0],
        "second_class": [0, 1, 0, 0],
        "age": (age - known.mean()) / known.std(),
        "minor": [1, 0, 0.2009, 0],
    }
    assert tuple(columns) == FEATURES
    # float32 rounding of numbers below 2
    np.testing.assert_allclose(X, np.column_stack(list(columns.values())), rtol=0, atol=2.0**-23)


def test_titanic_refuses_what_it_does_not_know(passengers: Path) -> None:
    with pytest.raises(ConfigurationError, match="split 'age' is none of age_strict, age_some"):
        titanic(passengers, "age", 0)
    with pytest.raises(ConfigurationError, match="'clinic' is no site; the sites are up-to-20"):
        titanic(passengers, "age_strict", 0, "clinic")
