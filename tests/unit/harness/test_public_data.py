"""Public files and the papers' splits of them."""

from __future__ import annotations

import gzip
import hashlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from harness.datasets import har, public_data
from harness.datasets import titanic as titanic_module
from harness.datasets.har import StrategySplit, har_strategies, har_subjects
from harness.datasets.mnist import DEVIATION, MEAN, SHARES, mnist
from harness.datasets.public_data import PublicFile, content, data_folder, fetch_missing
from harness.datasets.registry import DataRequest, load_data
from harness.datasets.site_data import Federation
from harness.datasets.titanic import FEATURES, SITES, titanic
from protocol.errors import ConfigurationError
from tests.unit.harness.datasets_files import small_mnist, small_titanic

# --- public data ------------------------------------------------------------------------------------------------------

CONTENT = b"a,b\n1,2\n" * 50
SHA256 = hashlib.sha256(CONTENT).hexdigest()
FILE = PublicFile("set/rows.csv", SHA256, "the example data set", "https://example.org/rows.csv")


def test_the_folder_comes_from_the_option_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MOIETY_DATA", raising=False)
    with pytest.raises(ConfigurationError, match="--data, or set MOIETY_DATA"):
        data_folder(None)
    monkeypatch.setenv("MOIETY_DATA", str(tmp_path))
    assert data_folder(None) == tmp_path
    assert data_folder(tmp_path / "other") == tmp_path / "other"


def test_a_missing_file_says_which_from_where_and_where_to_put_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as refused:
        content(FILE, tmp_path)
    for part in (str(tmp_path / "set" / "rows.csv"), FILE.origin, FILE.url, "--download"):
        assert part in refused.value.detail


def test_another_file_under_the_name_is_refused(tmp_path: Path) -> None:
    packed = replace(FILE, path="set/rows.csv.gz")
    for file in (FILE, packed):
        file.below(tmp_path).parent.mkdir(exist_ok=True)
        file.below(tmp_path).write_bytes(b"something else")
        with pytest.raises(ConfigurationError, match=r"is not the file that is expected.*get it again"):
            content(file, tmp_path)


def test_a_packed_file_is_known_by_what_it_holds(tmp_path: Path) -> None:
    file = replace(FILE, path="rows.csv.gz")
    for level in (1, 9):
        file.below(tmp_path).write_bytes(gzip.compress(CONTENT, level))
        assert content(file, tmp_path) == CONTENT


def test_a_table_is_known_whatever_its_line_ends_and_empty_rows(tmp_path: Path) -> None:
    file = replace(FILE, is_table=True)
    file.below(tmp_path).parent.mkdir()
    for other in (CONTENT, b"\xef\xbb\xbf" + CONTENT.replace(b"\n", b"\r\n") + b",\r\n", CONTENT.rstrip(b"\n")):
        file.below(tmp_path).write_bytes(other)
        assert content(file, tmp_path) == CONTENT


class _Origin(BaseHTTPRequestHandler):
    """Serves the file, packed, something else, and nothing."""

    def do_GET(self) -> None:
        bodies = {"/rows.csv": CONTENT, "/rows.csv.gz": gzip.compress(CONTENT), "/wrong.csv": b"wrong"}
        if self.path == "/moved.csv":
            self.send_response(302)
            self.send_header("Location", "/rows.csv")
            self.end_headers()
            return
        body = bodies.get(self.path)
        self.send_response(404 if body is None else 200)
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def origin() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Origin)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("name", ["rows.csv", "moved.csv", "rows.csv.gz"])
def test_a_missing_file_is_fetched_once(tmp_path: Path, origin: str, name: str) -> None:
    file = replace(FILE, path=f"set/{name}", url=f"{origin}/{name}")
    told: list[str] = []
    fetch_missing([file], tmp_path, told.append)
    assert content(file, tmp_path) == CONTENT
    fetch_missing([replace(file, url="http://nowhere.invalid/")], tmp_path, told.append)
    assert told == [f"fetching {file.url}"]


def test_a_wrong_file_is_not_kept(tmp_path: Path, origin: str) -> None:
    file = replace(FILE, url=f"{origin}/wrong.csv")
    with pytest.raises(ConfigurationError, match=r"expected [0-9a-f]{64}; nothing was kept: get rows\.csv"):
        fetch_missing([file], tmp_path, lambda text: None)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_fetched_says_where_to_put_it(
    tmp_path: Path, origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigurationError, match=r"answers 404; .*put it at set/rows\.csv in the data folder"):
        fetch_missing([replace(FILE, url=f"{origin}/none.csv")], tmp_path, lambda text: None)
    monkeypatch.setattr(public_data, "LARGEST_BYTES", 100)
    with pytest.raises(ConfigurationError, match="longer than 100 bytes"):
        fetch_missing([replace(FILE, url=f"{origin}/rows.csv")], tmp_path, lambda text: None)


def test_a_file_that_its_origin_has_in_another_form_is_not_asked_for(tmp_path: Path) -> None:
    repacked = replace(FILE, is_repacked=True)
    with pytest.raises(ConfigurationError, match=r"cannot be fetched: .* holds it in another form; make the example"):
        fetch_missing([repacked], tmp_path, lambda text: None)
    with pytest.raises(ConfigurationError) as refused:
        content(repacked, tmp_path)
    assert FILE.url in refused.value.detail
    assert "--download" not in refused.value.detail


def test_an_origin_that_is_not_reachable_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"http://127\.0\.0\.1:9/rows\.csv cannot be fetched: "):
        fetch_missing([replace(FILE, url="http://127.0.0.1:9/rows.csv")], tmp_path, lambda text: None)


# --- har --------------------------------------------------------------------------------------------------------------

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
    ninth = har_subjects(subjects, 1, requester="subject-09")
    assert ninth.requester.name == "subject-09"
    plain = har_subjects(subjects, 1)
    np.testing.assert_array_equal(ninth.requester.train.X, plain.sites[8].train.X)


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
    same = har_subjects(subjects, 1, validation_share=0.2, requester="subject-04")
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


# --- paper datasets ---------------------------------------------------------------------------------------------------

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
