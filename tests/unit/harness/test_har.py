"""The human activity splits, on a made-up table of the same form."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.datasets import har
from harness.datasets.har import StrategySplit, har_strategies, har_subjects
from harness.datasets.registry import DataRequest, load_data
from harness.datasets.site_data import Federation
from harness.simulate.case import read_case
from harness.simulate.comparison import read_personal_case
from harness.simulate.study_files import STUDIES
from protocol.errors import ConfigurationError
from protocol.messages.control import RuleName

ROWS_OF_SUBJECT = 281
# numbers of rows of each activity in the real training part, which the majorities must not exhaust
TRAINING_COUNTS = (1226, 1073, 986, 1286, 1374, 1407)
Write = Callable[..., Path]


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes the file; every row's only feature is its own number."""

    def write(y: np.ndarray, subject: np.ndarray, test: np.ndarray) -> Path:
        path = tmp_path / "har" / "uci_har.npz"
        path.parent.mkdir(exist_ok=True)
        X = np.arange(len(y), dtype=np.float32)[:, None]
        np.savez(path, X=X, y=y, subject=subject, official_test=test, feature_names=np.array(["row"]))
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        monkeypatch.setattr(har, "HAR_FILE", replace(har.HAR_FILE, sha256=digest))
        return tmp_path

    return write


@pytest.fixture
def subjects(table: Write) -> Path:
    subject = np.repeat(np.arange(1, 31, dtype=np.uint8), ROWS_OF_SUBJECT)
    y = (np.arange(len(subject)) % 6 + 1).astype(np.uint8)
    return table(y, subject, np.zeros(len(y), np.uint8))


@pytest.fixture
def strategies(table: Write) -> Path:
    y = np.repeat(np.arange(1, 7, dtype=np.uint8), TRAINING_COUNTS)
    test = np.arange(1, 7, dtype=np.uint8)
    labels = np.concatenate([y, np.tile(test, 50)])
    return table(labels, np.ones(len(labels), np.uint8), np.arange(len(labels)) >= len(y))


def rows(federation: Federation, part: str) -> list[np.ndarray]:
    return [getattr(site, part).X[:, 0].astype(int) for site in federation.sites]


def test_every_person_is_a_site_with_a_stratified_hold_out(subjects: Path) -> None:
    federation = har_subjects(subjects, 0)
    assert [site.name for site in federation.sites][:2] == ["subject-01", "subject-02"]
    assert len(federation.sites) == 30
    for number, site in enumerate(federation.sites):
        # max(0.33 * 281, 100) = 100 rows
        assert (len(site.train), len(site.validation), len(site.test)) == (181, 0, 100)
        assert set(rows(federation, "train")[number]) | set(rows(federation, "test")[number]) == set(
            range(number * ROWS_OF_SUBJECT, (number + 1) * ROWS_OF_SUBJECT)
        )
        # a sixth of 100 is 16.7: stratified, every class has 16 or 17
        assert set(np.bincount(site.test.y)) <= {16, 17}


def test_large_hold_outs_are_a_third(subjects: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(har, "HOLD_OUT_ROWS", 10)
    assert len(har_subjects(subjects, 0).sites[3].test) == int(0.33 * 281) == 92


def test_seed_requester_and_validation(subjects: Path) -> None:
    first, again, other = (har_subjects(subjects, seed, validation_share=0.2) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.sites[5].train.X, again.sites[5].train.X)
    assert not np.array_equal(first.sites[5].train.X, other.sites[5].train.X)
    # a fifth of each class's 30 or 31 training rows, rounded
    assert all(len(site.validation) == 36 for site in first.sites)
    ninth = har_subjects(subjects, 1, requester=9)
    assert ninth.requester.name == "subject-09"
    plain = har_subjects(subjects, 1)
    np.testing.assert_array_equal(ninth.requester.train.X, plain.sites[8].train.X)
    with pytest.raises(ConfigurationError, match="numbered 1 to 30"):
        har_subjects(subjects, 1, requester=31)


@pytest.mark.parametrize("split", list(StrategySplit))
def test_strategies_deal_every_training_row_once(strategies: Path, split: StrategySplit) -> None:
    federation = har_strategies(strategies, 0, split, validation_share=0.1)
    trained = np.concatenate(rows(federation, "train"))
    validation = rows(federation, "validation")[0]
    np.testing.assert_array_equal(np.sort(np.concatenate([trained, validation])), np.arange(sum(TRAINING_COUNTS)))
    # half a row is rounded away or up in each of six classes
    assert len(validation) == pytest.approx(0.1 * sum(TRAINING_COUNTS), rel=0, abs=3)
    assert all(len(site.test) == 300 for site in federation.sites)
    assert all(len(site.validation) == 0 for site in federation.contributors)
    assert len(federation.sites) == 8


def test_strategies_have_the_promised_skew(strategies: Path) -> None:
    def shares(split: StrategySplit) -> np.ndarray:
        sites = har_strategies(strategies, 0, split).sites
        return np.array([np.bincount(site.train.y, minlength=6) / len(site.train) for site in sites])

    def sizes(split: StrategySplit) -> np.ndarray:
        return np.array([len(site.train) for site in har_strategies(strategies, 0, split).sites])

    assert shares(StrategySplit.RANDOM).max() < 0.3
    assert np.ptp(sizes(StrategySplit.RANDOM)) <= 1
    for split in (StrategySplit.MAJORITY_EVEN, StrategySplit.MAJORITY):
        assert list(shares(split).argmax(axis=1)) == [5, 4, 2, 1, 0, 3, 4, 5]
        assert shares(split).max(axis=1).min() >= 0.6 - 0.01  # a part of a row is rounded away
    assert np.ptp(sizes(StrategySplit.MAJORITY_EVEN)) <= 1
    # sizes are the differences of rounded ends: the first is off by half a row, the last by one
    assert sizes(StrategySplit.MAJORITY)[7] == pytest.approx(8 * sizes(StrategySplit.MAJORITY)[0], rel=0, abs=5)
    assert list((shares(StrategySplit.PICK_TWO) > 0).sum(axis=1)) == [2] * 8


def test_a_missing_file_says_where_it_comes_from(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"har/uci_har\.npz is missing.*UCI repository no\. 240"):
        har_subjects(tmp_path, 0)


def test_the_registry_knows_both_federations(subjects: Path) -> None:
    loaded = load_data(DataRequest("har_subjects", 1, requester="subject-04", validation_share=0.2, folder=subjects))
    same = har_subjects(subjects, 1, validation_share=0.2, requester=4)
    assert loaded.requester.name == same.requester.name == "subject-04"
    np.testing.assert_array_equal(loaded.requester.train.X, same.requester.train.X)
    with pytest.raises(ConfigurationError, match="'nobody' is none of subject-01 to subject-30"):
        load_data(DataRequest("har_subjects", 1, requester="nobody", folder=subjects))
    with pytest.raises(ConfigurationError, match="split 'half' is none of random, majority_even, majority, pick_two"):
        load_data(DataRequest("har_strategies", 1, split="half", folder=subjects))


def test_the_registry_deals_strategies(strategies: Path) -> None:
    federation = load_data(DataRequest("har_strategies", 0, split="majority", folder=strategies))
    assert [len(site.validation) for site in federation.sites] == [0] * 8
    assert sum(len(site.train) for site in federation.sites) == sum(TRAINING_COUNTS)


@pytest.mark.parametrize("split", list(StrategySplit))
def test_every_split_has_a_case(split: StrategySplit) -> None:
    case = read_case(STUDIES / f"har_strategies_{split}.toml")
    assert case.table.split == split
    assert {variant.study.rule.name for variant in case.variants} >= {
        RuleName.FEDAVG,
        RuleName.WFEDAVG,
        RuleName.FEDADAGRAD,
        RuleName.FEDADAM,
        RuleName.FEDYOGI,
    }


def test_the_ifedavg_cases_are_valid() -> None:
    for path in sorted(STUDIES.glob("har_ifedavg*.toml")):
        assert read_personal_case(path).table.data == "har_subjects"
