"""A federation from one folder per site: what differs between sites is named before anything is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_agent.learning.data import DataNames, Examples
from harness.datasets.site_data import Federation, SiteData, check_federation
from harness.datasets.site_folders import load_site_folders
from protocol.errors import ConfigurationError

COLUMNS = ("age", "sex", "fare")


def write_site(
    folder: Path,
    *,
    features: tuple[str, ...] | None = COLUMNS,
    classes: tuple[str, ...] | None = ("died", "survived"),
    y: tuple[int, ...] = (0, 1, 0, 1),
) -> None:
    folder.mkdir(parents=True)
    arrays: dict[str, Any] = {"X": np.ones((len(y), 3), np.float32), "y": np.array(y, np.int64)}
    named: dict[str, Any] = {"feature_names": features, "class_names": classes}
    for file in ("test.npz", "train.npz"):
        arrays |= {kind: np.array(names) for kind, names in named.items() if names}
        np.savez(folder / file, **arrays)


def load(folder: Path) -> Federation:
    return load_site_folders(folder, "north", (3,), 2)


def test_names_are_taken_from_the_files_where_all_agree(tmp_path: Path) -> None:
    for name in ("east", "north", "west"):
        write_site(tmp_path / name)
    federation = load(tmp_path)
    assert [site.name for site in federation.sites] == ["north", "east", "west"]
    assert federation.names == DataNames(COLUMNS, ("died", "survived"))
    for name in ("a", "north"):
        write_site(tmp_path / "plain" / name, features=None, classes=None)
    assert load(tmp_path / "plain").class_names == ("0", "1")


def test_validation_examples_are_taken_where_a_site_has_some(tmp_path: Path) -> None:
    for name in ("north", "south"):
        write_site(tmp_path / name)
    named: dict[str, Any] = {"feature_names": np.array(COLUMNS), "class_names": np.array(["died", "survived"])}
    np.savez(tmp_path / "north" / "validation.npz", X=np.zeros((3, 3), np.float32), y=np.array([0, 1, 1]), **named)
    north, south = load(tmp_path).sites
    assert (len(north.validation), len(south.validation)) == (3, 0)


def test_columns_that_differ_are_shown_as_a_difference(tmp_path: Path) -> None:
    write_site(tmp_path / "north")
    write_site(tmp_path / "south", features=("age", "fare", "sex"))
    with pytest.raises(ConfigurationError) as refused:
        load(tmp_path)
    detail = refused.value.detail
    assert "feature_names differ between sites 'north' and 'south'" in detail
    lines = detail.splitlines()
    assert "--- north" in lines
    assert "+++ south" in lines
    assert sorted(line for line in lines if line[0] in "+-" and line[1] not in "+-") == ["+fare", "-fare"]


def test_labels_that_differ_are_refused(tmp_path: Path) -> None:
    write_site(tmp_path / "north")
    write_site(tmp_path / "south", classes=("survived", "died"))
    with pytest.raises(ConfigurationError, match="class_names differ between sites 'north' and 'south'"):
        load(tmp_path)


def test_names_at_some_sites_only_are_refused(tmp_path: Path) -> None:
    write_site(tmp_path / "north")
    write_site(tmp_path / "south", features=None)
    with pytest.raises(ConfigurationError, match="south give no feature_names and the others do"):
        load(tmp_path)


def test_names_are_as_many_as_columns_and_classes(tmp_path: Path) -> None:
    write_site(tmp_path / "north", classes=("a", "b", "c"))
    with pytest.raises(ConfigurationError, match=r"class_names holds 3 names .*, the model has 2"):
        load(tmp_path)
    write_site(tmp_path / "wide" / "north")
    write_site(tmp_path / "wide" / "south", features=(*COLUMNS, "weight"))
    with pytest.raises(ConfigurationError, match=r"\+weight"):
        load(tmp_path / "wide")


def test_a_class_that_no_site_has_is_named(tmp_path: Path) -> None:
    for name in ("north", "south"):
        write_site(tmp_path / name, y=(0, 0))
    with pytest.raises(ConfigurationError, match="no site has a training example of class 'survived'"):
        load(tmp_path)


def federation(*sites: tuple[int, ...]) -> Federation:
    def of(y: tuple[int, ...]) -> Examples:
        return Examples(np.ones((len(y), 3), np.float32), np.array(y, np.int64))

    made = tuple(SiteData(f"site-{n}", of(y), of(()), of((0, 1))) for n, y in enumerate(sites))
    return Federation("try", (3,), ("no", "yes"), made)


def test_a_whole_federation_passes() -> None:
    check_federation(federation((0, 1), (0,), (1,)))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (federation((0, 1), (), (0, 1)), "site 'site-1' has no sample of any class to train on"),
        (federation((0, 0), (0,), (0,)), "no site has a training example of class 'yes'"),
        (federation((0, 1), (0, 2), (0,)), r"site 'site-1', training part: y lies in 0\.\.2, .* classes are 0\.\.1"),
    ],
)
def test_sites_that_do_not_fit_are_refused(given: Federation, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check_federation(given)


def test_examples_of_another_shape_name_the_site() -> None:
    good = federation((0, 1), (0, 1))
    wide = Examples(np.ones((2, 4), np.float32), np.array([0, 1]))
    other = SiteData("site-1", wide, good.sites[1].validation, good.sites[1].test)
    with pytest.raises(ConfigurationError, match=r"site 'site-1', training part: one example has shape \[4\]"):
        check_federation(Federation("try", (3,), ("no", "yes"), (good.sites[0], other)))
    untested = SiteData("site-0", good.sites[0].train, good.sites[0].validation, good.sites[0].validation)
    with pytest.raises(ConfigurationError, match="requester 'site-0' has no test example"):
        check_federation(Federation("try", (3,), ("no", "yes"), (untested, good.sites[1])))
