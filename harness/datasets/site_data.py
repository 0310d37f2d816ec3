"""One site's examples in three parts, and how a split is cut and described."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from client_agent.learning.data import Examples, LocalData, save_folder
from client_agent.learning.names import NO_NAMES, DataNames
from client_agent.tasks.targets import Targets
from protocol.wire.messages import TaskKind

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
        """What columns and classes are called."""
        return DataNames(self.feature_names, self.class_names)

    @property
    def names_of_sites(self) -> tuple[str, ...]:
        """The requester's first."""
        return tuple(site.name for site in self.sites)

    @property
    def requester(self) -> SiteData:
        return self.sites[0]

    @property
    def contributors(self) -> tuple[SiteData, ...]:
        return self.sites[1:]


def pooled(federation: Federation) -> Federation:
    """The same federation, but for the requester's training part: all sites' together, as if data could be moved."""
    parts = [site.train for site in federation.sites]
    train = Examples(np.concatenate([part.X for part in parts]), np.concatenate([part.y for part in parts]))
    requester = replace(federation.requester, train=train, note="all sites' training parts")
    return replace(federation, sites=(requester, *federation.contributors))


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


def with_validation(site: SiteData, share: float, random: np.random.Generator) -> SiteData:
    """A part of the site's training examples, drawn at random, kept to choose settings on."""
    order = random.permutation(len(site.train))
    kept, apart = np.split(order, [len(order) - round(share * len(order))])
    train, validation = (Examples(site.train.X[np.sort(rows)], site.train.y[np.sort(rows)]) for rows in (kept, apart))
    return replace(site, train=train, validation=validation)


def thinned(federation: Federation, share: float, seed: int) -> Federation:
    """The same sites, validation and test parts, with ``share`` of every training part, classes cut alike.

    What a site keeps follows from its name, so a seed has one choice, whoever is the requester.
    """

    def kept(site: SiteData) -> SiteData:
        y = site.train.y if federation.task is TaskKind.CLASSES else np.zeros(len(site.train), np.int64)
        random = split_random(f"training share {site.name}", seed)
        rows, _ = stratified_parts(y, (share, 1 - share), random)
        return replace(site, train=Examples(site.train.X[rows], site.train.y[rows]))

    return replace(federation, sites=tuple(map(kept, federation.sites)))


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
