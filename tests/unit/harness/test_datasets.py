"""The splits: every row in one place, the skew as fixed beforehand, the same seed the same split."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_digits

from client_agent.learning.data import Examples, load_folder
from harness.datasets.bundled import (
    CENTRE,
    HOSPITALS,
    PRACTICES,
    SCALE,
    SURVIVAL_HOSPITALS,
    breast_cancer_five_hospitals,
    breast_cancer_survival,
    diabetes_five_practices,
    digits_sites,
)
from harness.datasets.heart_disease import heart_disease
from harness.datasets.registry import DataRequest, load_data
from harness.datasets.site_data import (
    Federation,
    SiteData,
    check_federation,
    check_targets,
    cut_site,
    describe,
    split_random,
    stratified_parts,
    write_site_folder,
)
from harness.datasets.transforms import whitened
from harness.demo.studies import HEART_DISEASE, study_of
from protocol.errors import ConfigurationError
from protocol.messages.control import RuleName
from protocol.text import require_model_names

PARTS = ("train", "validation", "test")


def rows_of(federation: Federation) -> np.ndarray:
    """All rows with their labels, sorted, whatever site and part they are in."""
    parts = [getattr(site, part) for site in federation.sites for part in PARTS]
    table = np.concatenate([np.column_stack([part.X, part.y]) for part in parts])
    return table[np.lexsort(table.T)]


def same(a: SiteData, b: SiteData) -> bool:
    return all(np.array_equal(getattr(a, part).X, getattr(b, part).X) for part in PARTS)


@pytest.mark.parametrize(
    "make", [breast_cancer_five_hospitals, digits_sites, breast_cancer_survival, diabetes_five_practices]
)
def test_the_seed_decides(make: Callable[[int], Federation]) -> None:
    first, again, other = make(3), make(3), make(4)
    assert all(same(a, b) for a, b in zip(first.sites, again.sites, strict=True))
    assert not any(same(a, b) for a, b in zip(first.sites, other.sites, strict=True))


def test_breast_cancer_every_tumour_is_in_one_place() -> None:
    bundle = load_breast_cancer()
    X = ((bundle.data - np.array(CENTRE)) / np.array(SCALE)).astype(np.float32)
    table = np.column_stack([X, 1 - bundle.target])
    np.testing.assert_array_equal(rows_of(breast_cancer_five_hospitals(0)), table[np.lexsort(table.T)])


def test_breast_cancer_every_hospital_can_ask_and_owners_stay() -> None:
    first, other = breast_cancer_five_hospitals(0), breast_cancer_five_hospitals(0, "oncology-centre")
    assert other.names_of_sites == ("oncology-centre", *(name for name in HOSPITALS if name != "oncology-centre"))
    assert all(len(getattr(other.requester, part)) > 0 for part in PARTS)
    np.testing.assert_array_equal(rows_of(first), rows_of(other))
    sizes = {site.name: sum(len(getattr(site, part)) for part in PARTS) for site in first.sites}
    assert {site.name: sum(len(getattr(site, part)) for part in PARTS) for site in other.sites} == sizes


@pytest.mark.parametrize("data", ["breast_cancer", "diabetes"])
def test_a_share_of_the_training_examples_is_the_same_whoever_asks(data: str) -> None:
    whole, thin = (load_data(DataRequest(data, 2, training_share=share)) for share in (1.0, 0.2))
    for before, after in zip(whole.sites, thin.sites, strict=True):
        assert len(after.train) == pytest.approx(0.2 * len(before.train), abs=1)  # each class is rounded
        assert {row.tobytes() for row in after.train.X} <= {row.tobytes() for row in before.train.X}
        for part in ("validation", "test"):
            np.testing.assert_array_equal(getattr(after, part).X, getattr(before, part).X)
    last = whole.sites[-1].name
    asked = load_data(DataRequest(data, 2, requester=last, training_share=0.2))
    np.testing.assert_array_equal(asked.sites[2].train.X, thin.sites[1].train.X)
    assert asked.sites[2].name == thin.sites[1].name


def test_breast_cancer_skew_is_the_table() -> None:
    shares = np.array(list(HOSPITALS.values()))
    # columns of two-digit decimals: the sum differs from 1 by float rounding only
    np.testing.assert_allclose(shares.sum(axis=0), 1, atol=1e-12)
    radius = np.sort(load_breast_cancer().data[:, 0])
    for seed in range(3):
        federation = breast_cancer_five_hospitals(seed)
        medians = {}
        for site, row in zip(federation.sites, shares, strict=True):
            sizes = sum(len(getattr(site, part)) for part in PARTS)
            # each fifth has 113 or 114 tumours and each cut is rounded: at most one row off per fifth, and 0.2 more
            assert abs(sizes - row.sum() * 569 / 5) <= 6
            own = np.concatenate([getattr(site, part).X[:, 0] for part in PARTS]) * SCALE[0] + CENTRE[0]
            medians[site.name] = np.median(own)
        assert medians["screening-centre"] < np.quantile(radius, 0.4)
        assert medians["oncology-centre"] > np.quantile(radius, 0.6)
        assert federation.requester.name == "city-hospital"


@pytest.mark.parametrize("make", [breast_cancer_five_hospitals, digits_sites])
def test_only_the_requester_keeps_validation_rows(make: object) -> None:
    federation = make(1)  # type: ignore[operator]
    assert len(federation.requester.validation) >= 15
    assert len(federation.requester.test) >= 50
    assert all(len(site.validation) == 0 and len(site.test) > 0 for site in federation.contributors)


def test_scaled_features_stay_of_order_one() -> None:
    federation = breast_cancer_five_hospitals(0)
    pooled = np.concatenate([site.train.X for site in federation.sites])
    assert np.all(np.abs(pooled.mean(axis=0)) < 1)
    assert np.all((pooled.std(axis=0) > 0.5) & (pooled.std(axis=0) < 2))


def test_digits_follow_distribution_b() -> None:
    federation = digits_sites(0, sites=10)
    totals = np.bincount(load_digits().target)
    seen = np.zeros(10, np.int64)
    for site, shift in zip(federation.sites, (0, 1, -1, 2, -2, 3, -3, 4, -4, 5), strict=True):
        counts = sum(np.bincount(getattr(site, part).y, minlength=10) for part in PARTS)
        expected = np.zeros(10)
        for digit, share in ((4, 0.2), (5, 0.6), (6, 0.2)):
            expected[(digit - shift) % 10] = share * totals[(digit - shift) % 10]
        assert np.all(np.abs(counts - expected) <= 1)
        seen += counts
    np.testing.assert_array_equal(seen, totals)
    assert federation.requester.train.X.max() <= 1.0
    assert [len(digits_sites(0, n).sites) for n in (2, 5)] == [2, 5]
    for n in (1, 11):
        with pytest.raises(ValueError, match="2 to 10"):
            digits_sites(0, n)


@pytest.mark.parametrize("make", [breast_cancer_five_hospitals, digits_sites])
def test_every_column_and_class_has_a_name(make: Callable[[int], Federation]) -> None:
    federation = make(0)
    assert (len(federation.feature_names),) == federation.inputs
    require_model_names(
        federation.feature_names, federation.class_names, federation.inputs, len(federation.class_names)
    )


def test_description_and_folder(tmp_path: Path) -> None:
    federation = digits_sites(0)
    rows = describe(federation)
    assert [row.site for row in rows] == [site.name for site in federation.sites]
    assert all(sum(row.class_counts) == row.train for row in rows)
    assert rows[0].note == "mostly digit 5"
    assert int(np.argmax(rows[0].class_counts)) == 5
    write_site_folder(federation.sites[1], tmp_path, federation.names)
    loaded = load_folder(tmp_path, federation.inputs, len(federation.class_names))
    assert loaded.names == federation.names
    np.testing.assert_array_equal(loaded.train.X, federation.sites[1].train.X)
    np.testing.assert_array_equal(loaded.test.y, federation.sites[1].test.y)


@pytest.mark.parametrize("rows", [1, 10, 61, 200])
def test_targets_that_are_no_classes_are_cut_by_rows(rows: int) -> None:
    draw, shares = np.random.default_rng(rows), (0.05, 0.1, 0.85)
    X, times = draw.standard_normal((rows, 3)), draw.exponential(size=rows)
    for y in (
        times,
        times.astype(np.float32)[:, None],
        np.column_stack([times, times > 1]),
        draw.integers(0, 2, (rows, 3)),
    ):
        first, again, other = (cut_site("s", X, y, shares, split_random("t", seed)) for seed in (1, 1, 2))
        for part, share in zip(PARTS, shares, strict=True):
            assert abs(len(getattr(first, part)) - share * rows) < 1
        whole = np.concatenate([getattr(first, part).X for part in PARTS])
        np.testing.assert_array_equal(np.sort(whole, axis=0), np.sort(X.astype(np.float32), axis=0))
        assert same(first, again)
        assert rows < 10 or not same(first, other)


def test_stratified_parts_cut_every_class() -> None:
    y = np.array([0] * 100 + [1] * 20)
    parts = stratified_parts(y, (0.5, 0.25, 0.25), split_random("test", 1))
    assert [(int((y[p] == 0).sum()), int((y[p] == 1).sum())) for p in parts] == [(50, 10), (25, 5), (25, 5)]
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(120))


def heart_row(*, sick: int, cp: int = 1, ecg: int = 0, age: float = 50.0, missing: bool = False) -> str:
    pressure = "?" if missing else "120"
    return f"{age},1,{cp},{pressure},200,0,{ecg},150,0,1.5,?,?,?,{sick}"


@pytest.fixture
def hospitals(tmp_path: Path) -> Path:
    for number, name in enumerate(("cleveland", "hungarian", "switzerland", "va")):
        rows = [heart_row(sick=k % 3, cp=1 + k % 4, ecg=k % 3, age=40 + k + number) for k in range(30)]
        rows += [heart_row(sick=1, missing=True)] * 5
        (tmp_path / f"processed.{name}.data").write_text("\n".join(rows) + "\n")
    return tmp_path


def test_heart_disease_is_prepared_as_described(hospitals: Path) -> None:
    federation = heart_disease(hospitals, seed=2, requester="hungary")
    assert [site.name for site in federation.sites] == ["hungary", "cleveland", "switzerland", "va-long-beach"]
    assert federation.inputs == (13,)
    named = dict(zip(federation.feature_names, federation.requester.train.X.T, strict=True))
    assert list(named)[:5] == ["age", "sex", "cp=2", "cp=3", "cp=4"]
    # every row's age is another; of 15, some have each chest pain, and none two
    assert len(set(named["age"])) == 15
    assert all(len(set(named[f"cp={level}"])) == 2 for level in (2, 3, 4))
    assert len(set(named["chol"])) == 1
    # 30 complete rows, 10 healthy and 20 diseased: 50 % / 16 % / 34 % of each class
    assert [len(getattr(federation.requester, part)) for part in PARTS] == [15, 5, 10]
    assert [len(getattr(federation.sites[1], part)) for part in PARTS] == [20, 0, 10]
    for site in federation.sites:
        X = site.train.X.astype(np.float64)
        # float32 rounding of numbers below 4
        np.testing.assert_allclose(X.mean(axis=0), 0, atol=4 * 2.0**-24)
        constant = [1, 5, 6, 7, 10, 11, 12]
        assert set(np.flatnonzero(X.std(axis=0) == 0)) <= set(constant)
        assert set(np.unique(site.train.y)) == {0, 1}


def test_heart_disease_has_one_split_a_seed_whoever_asks(hospitals: Path) -> None:
    first, other = (heart_disease(hospitals, 3, name, validation=0) for name in ("cleveland", "va-long-beach"))
    assert other.names_of_sites == ("va-long-beach", "cleveland", "hungary", "switzerland")
    by_name = {site.name: site for site in other.sites}
    for site in first.sites:
        np.testing.assert_array_equal(site.train.X, by_name[site.name].train.X)
        np.testing.assert_array_equal(site.test.X, by_name[site.name].test.X)


def test_heart_disease_says_what_is_missing_or_wrong(hospitals: Path) -> None:
    with pytest.raises(ConfigurationError, match="choose from"):
        heart_disease(hospitals, 0, requester="boston")
    file = hospitals / "processed.va.data"
    good = file.read_text()
    file.write_text(good + "1,2,3\n")
    with pytest.raises(ConfigurationError, match=r"processed\.va\.data, line 36: 3 columns, expected 14"):
        heart_disease(hospitals, 0)
    file.write_text(good.replace("150", "fast", 1))
    with pytest.raises(ConfigurationError, match=r"processed\.va\.data holds something"):
        heart_disease(hospitals, 0)
    file.unlink()
    with pytest.raises(ConfigurationError, match=r"processed\.va\.data is missing: put the four files"):
        heart_disease(hospitals, 0)


def test_the_heart_disease_study_fits_its_data(hospitals: Path) -> None:
    federation = heart_disease(hospitals, 2)
    study = study_of(HEART_DISEASE, federation, RuleName.WEIGHT_EROSION, "ab" * 32, 2)
    assert study.model.inputs == federation.inputs
    assert study.parameters.dimension == 13 * 2 + 2
    assert study.rule.distance_penalty == HEART_DISEASE.distance_penalty


@pytest.mark.parametrize(("make", "rows"), [(breast_cancer_survival, 686), (diabetes_five_practices, 442)])
def test_bundled_data_of_other_tasks_are_whole_valid_and_differ_between_sites(
    make: Callable[[int], Federation], rows: int
) -> None:
    federation = make(0)
    parts = [part for site in federation.sites for part in (site.train, site.validation, site.test)]
    assert sum(map(len, parts)) == rows
    check_federation(federation)
    assert len({site.note for site in federation.sites}) > 2
    np.testing.assert_array_equal(rows_of(federation), rows_of(make(1)))


@pytest.mark.parametrize(("name", "sites"), [("breast_cancer_survival", SURVIVAL_HOSPITALS), ("diabetes", PRACTICES)])
def test_any_site_of_the_data_of_other_tasks_can_be_the_requester(name: str, sites: dict[str, object]) -> None:
    first, other = next(iter(sites)), list(sites)[3]
    one, two = (load_data(DataRequest(name, 0, requester=asking)) for asking in (first, other))
    assert (one.requester.name, two.requester.name) == (first, other)
    assert sorted(one.names_of_sites) == sorted(two.names_of_sites)
    np.testing.assert_array_equal(rows_of(one), rows_of(two))
    assert len(two.requester.validation)
    assert not any(len(site.validation) for site in two.contributors)
    with pytest.raises(ConfigurationError, match="the sites are"):
        load_data(DataRequest(name, 0, requester="nobody"))


def test_survival_without_any_event_is_refused() -> None:
    made = breast_cancer_survival(0)
    censored = tuple(
        replace(site, train=Examples(site.train.X, site.train.y * np.array([1, 0], np.float32))) for site in made.sites
    )
    with pytest.raises(ConfigurationError, match="no site has a training example with an event"):
        check_targets(replace(made, sites=censored))


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


def test_images_are_not_whitened() -> None:
    federation = breast_cancer_five_hospitals(0)
    images = tuple(
        replace(site, train=Examples(site.train.X.reshape(-1, 5, 6), site.train.y)) for site in federation.sites
    )
    with pytest.raises(ConfigurationError, match="no rows of a table"):
        whitened(replace(federation, inputs=(5, 6), sites=images))
