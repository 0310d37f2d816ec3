"""A data set split over sites: each site's examples in three parts, how a split is cut, described and checked."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from client_agent.learning.data import EVENT, NO_NAMES, DataNames, Examples, LocalData, Targets, checked, save_folder
from protocol.errors import ConfigurationError
from protocol.messages.control import TaskKind, TaskSpec

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class SiteData:
    """A site: it trains on ``train``; settings are chosen on ``validation``; ``test`` is for the report alone."""

    name: str
    train: Examples
    validation: Examples
    test: Examples
    note: str = ""


@dataclass(frozen=True)
class Federation:
    """A data set split over sites; the first site is the requester. ``feature_names`` is empty where none are known.

    ``class_names`` has a name for every output of a model: the classes, or what else the ``task`` predicts.
    """

    title: str
    inputs: tuple[int, ...]
    class_names: tuple[str, ...]
    sites: tuple[SiteData, ...]
    feature_names: tuple[str, ...] = ()
    task: TaskKind = TaskKind.CLASSES

    @property
    def names(self) -> DataNames:
        return DataNames(self.feature_names, self.class_names)

    @property
    def names_of_sites(self) -> tuple[str, ...]:
        """The requester's first."""
        return tuple(site.name for site in self.sites)

    def asked_by(self, requester: str) -> Federation:
        """The same sites, this one first."""
        return replace(self, sites=tuple(sorted(self.sites, key=lambda site: site.name != requester)))

    @property
    def requester(self) -> SiteData:
        return self.sites[0]

    @property
    def contributors(self) -> tuple[SiteData, ...]:
        return self.sites[1:]


@dataclass(frozen=True)
class SplitRow:
    """One line of the printed split: sizes of the parts, and the training part's examples of each class."""

    site: str
    train: int
    validation: int
    test: int
    class_counts: tuple[int, ...]
    note: str


def describe(federation: Federation) -> tuple[SplitRow, ...]:
    """The split as a table, one row per site, the requester first."""
    classes = len(federation.class_names)
    return tuple(
        SplitRow(
            site.name,
            len(site.train),
            len(site.validation),
            len(site.test),
            tuple(int(n) for n in np.bincount(site.train.y, minlength=classes)),
            site.note,
        )
        for site in federation.sites
    )


def write_site_folder(site: SiteData, folder: Path, names: DataNames = NO_NAMES) -> None:
    """The folder that a site's agent reads: train.npz and test.npz; validation examples stay out of it."""
    save_folder(folder, LocalData(site.train, site.test, names=names))


def split_random(data_set: str, seed: int) -> np.random.Generator:
    """The random source of one data set's split; two data sets with the same seed do not share draws."""
    return np.random.default_rng([seed, int.from_bytes(hashlib.sha256(data_set.encode()).digest()[:8], "big")])


def stratified_parts(y: NDArray[np.int64], shares: Sequence[float], random: np.random.Generator) -> tuple[Rows, ...]:
    """Row numbers cut into parts by ``shares`` (which sum to 1), each class cut by itself; every row in one part."""
    parts: list[list[Rows]] = [[] for _ in shares]
    for label in np.unique(y):
        rows = random.permutation(np.flatnonzero(y == label))
        ends = np.rint(np.cumsum(shares) * len(rows)).astype(np.int64)[:-1]
        for part, piece in zip(parts, np.split(rows, ends), strict=True):
            part.append(piece)
    return tuple(np.sort(np.concatenate(part)) if part else np.zeros(0, np.int64) for part in parts)


def parts_of(y: Targets, shares: Sequence[float], random: np.random.Generator) -> tuple[Rows, ...]:
    """Row numbers cut into parts by ``shares`` (which sum to 1): classes, whole numbers, one by one.

    Targets that are no classes (numbers, times with events, several labels) are cut by rows, every part within one row
    of its share. Give counts as floats, or each count is cut as a class.
    """
    if y.ndim == 1 and y.dtype.kind in "iub":
        return stratified_parts(y, shares, random)
    ends = np.floor(np.cumsum(shares) * len(y) + 0.5).astype(np.int64)[:-1]
    return tuple(np.sort(part) for part in np.split(random.permutation(len(y)), ends))


def cut_site(
    name: str,
    X: NDArray[np.float64],
    y: Targets,
    shares: tuple[float, float, float],
    random: np.random.Generator,
    note: str = "",
    strata: NDArray[np.int64] | None = None,
) -> SiteData:
    """Cut a site's rows into training, validation and test part by ``shares``, as ``parts_of`` cuts, or ``strata``."""
    parts = parts_of(y, shares, random) if strata is None else stratified_parts(strata, shares, random)
    train, validation, test = (Examples(X[rows].astype(np.float32), y[rows]) for rows in parts)
    return SiteData(name, train, validation, test, note)


def owners(
    values: NDArray[np.float64], shares: Sequence[Sequence[float]], random: np.random.Generator
) -> NDArray[np.int64]:
    """Number of the site that sees each example: each fifth by ``values`` is shuffled and cut by its column of shares.

    ``shares`` has a row per site and a column for each of the fifths, from the smallest values on; columns sum to 1.
    """
    owner = np.zeros(len(values), np.int64)
    table = np.array(shares)
    for fifth, rows in enumerate(np.array_split(np.argsort(values, kind="stable"), table.shape[1])):
        ends = np.rint(np.cumsum(table[:, fifth]) * len(rows)).astype(np.int64)[:-1]
        for number, piece in enumerate(np.split(random.permutation(rows), ends)):
            owner[piece] = number
    return owner


def check_federation(federation: Federation) -> None:
    """Every site's examples against the model's shapes, and all sites together against its task.

    Types, shapes, labels and finite values, of every part of every site; every site has something to train on.

    Raises: ConfigurationError
    """
    outputs, task = len(federation.class_names), TaskSpec(kind=federation.task)
    for site in federation.sites:
        for part, examples in (("training", site.train), ("validation", site.validation), ("test", site.test)):
            where = f"{federation.title}: site {site.name!r}, {part} part"
            checked(examples.X, examples.y, federation.inputs, outputs, where, task)
        if not len(site.train):
            raise ConfigurationError(
                f"{federation.title}: site {site.name!r} has no sample of any class to train on: leave it out"
            )
    if not len(federation.requester.test):
        raise ConfigurationError(
            f"{federation.title}: the requester {federation.requester.name!r} has no test example, and the run is "
            "judged by them"
        )
    check_targets(federation)


def check_targets(federation: Federation) -> None:
    """All sites together have what the task cannot be learned without: every class, or an event.

    Raises: ConfigurationError
    """
    if federation.task is TaskKind.CLASSES:
        _check_classes(federation)
    if federation.task is TaskKind.SURVIVAL and not any(site.train.y[:, EVENT].any() for site in federation.sites):
        raise ConfigurationError(
            f"{federation.title}: no site has a training example with an event, so that no order of risks can be "
            "learned: follow up longer, or choose another endpoint"
        )


def _check_classes(federation: Federation) -> None:
    seen = np.zeros(len(federation.class_names), np.int64)
    for site in federation.sites:
        seen += np.bincount(site.train.y, minlength=len(seen))
    missing = [name for name, count in zip(federation.class_names, seen, strict=True) if count == 0]
    if missing:
        raise ConfigurationError(
            f"{federation.title}: no site has a training example of class {', '.join(map(repr, missing))}; leave it "
            "out of the classes, or add a site that has some"
        )
