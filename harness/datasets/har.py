"""UCI Human Activity Recognition Using Smartphones: 30 people, 561 features of phone sensors, six activities.

Two federations are cut from it.

``har_subjects``: every person is a site, as in Roschewitz et al. 2021 (iFedAvg). Of each person's rows max(33 %, 100)
are held out, stratified by activity. The features keep the data set's own scaling to [-1, 1]: the sample configuration
published with that paper standardises each person before the split, so that hold-out rows have a part in it.

``har_strategies``: eight sites, as in Cerasti et al. 2023, which describe their four splits in words; the shares here
are this project's. Training rows are those of the data set's own 21 training subjects, and every site is tested on the
2,947 rows of the 9 others.

    random          eight equal parts
    majority_even   equal parts; 60 % of a site's rows are of one activity, the rest are dealt from what is left
    majority        the same, sizes as 1 : 2 : ... : 8
    pick_two        every site has rows of two activities only
"""

from __future__ import annotations

import io
from enum import StrEnum
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split

from client_agent.learning.data import Examples
from harness.datasets.public_data import PublicFile, content
from harness.datasets.site_data import Federation, Rows, SiteData, split_random, stratified_parts
from protocol.errors import ConfigurationError

HAR_FILE: Final = PublicFile(
    "har/uci_har.npz",
    "0c77777d5f52492c4066539201d174c37315ae726dc18417f653a23d490555e1",
    "Human Activity Recognition Using Smartphones (UCI repository no. 240; Anguita et al. 2013) as one .npz of X, y, "
    "subject, official_test, feature_names and activity_names",
    "https://archive.ics.uci.edu/dataset/240",
    is_repacked=True,
)
ACTIVITIES: Final = ("walking", "upstairs", "downstairs", "sitting", "standing", "laying")
FEATURES: Final = 561
SUBJECTS: Final = 30
HOLD_OUT_SHARE: Final = 0.33
HOLD_OUT_ROWS: Final = 100
STRATEGY_SITES: Final = 8
MAJORITY_SHARE: Final = 0.6
# The activity that most rows of a site show. No two large sites share one, so that no activity runs out.
MAJORITY: Final = (5, 4, 2, 1, 0, 3, 4, 5)


class StrategySplit(StrEnum):
    """The way in which training rows are dealt to the eight sites."""

    RANDOM = "random"
    MAJORITY_EVEN = "majority_even"
    MAJORITY = "majority"
    PICK_TWO = "pick_two"


class _Table:
    """The file's columns, labels counted from 0."""

    def __init__(self, folder: Path) -> None:
        with np.load(io.BytesIO(content(HAR_FILE, folder)), allow_pickle=False) as arrays:
            self.X: NDArray[np.float32] = arrays["X"].astype(np.float32)
            self.y: NDArray[np.int64] = arrays["y"].astype(np.int64) - 1
            self.subject: NDArray[np.int64] = arrays["subject"].astype(np.int64)
            self.official_test: NDArray[np.bool_] = arrays["official_test"] == 1

    def part(self, rows: Rows) -> Examples:
        return Examples(self.X[rows], self.y[rows])


def har_subjects(folder: Path, seed: int, *, validation_share: float = 0.0, requester: str | None = None) -> Federation:
    """The 30 people as sites, ``requester`` first; ``validation_share`` of each training part is kept to choose on.

    Raises: ConfigurationError when the file is missing or the requester is no subject
    """
    names = [f"subject-{number:02d}" for number in range(1, SUBJECTS + 1)]
    if requester not in (None, *names):
        raise ConfigurationError(f"har_subjects: {requester!r} is none of {names[0]} to {names[-1]}")
    table = _Table(folder)
    random = split_random("har subjects", seed)
    sites = tuple(_subject(table, number, name, validation_share, random) for number, name in enumerate(names, 1))
    return Federation("human activity, 30 people", (FEATURES,), ACTIVITIES, sites).asked_by(requester or names[0])


def har_strategies(folder: Path, seed: int, split: StrategySplit, *, validation_share: float = 0.0) -> Federation:
    """Eight sites with the training subjects' rows; all are tested on the test subjects' rows.

    ``validation_share`` of the training rows, stratified, is kept before the split; site-0, the requester, holds it.
    Raises: ConfigurationError when the file is missing
    """
    table = _Table(folder)
    random = split_random(f"har {split}", seed)
    pool = np.flatnonzero(~table.official_test)
    kept, validation = stratified_parts(table.y[pool], (1 - validation_share, validation_share), random)
    rows = pool[kept]
    test, nothing = table.part(np.flatnonzero(table.official_test)), table.part(np.zeros(0, np.int64))
    pieces = _dealt(table.y[rows], split, random)
    sites = tuple(
        SiteData(
            f"site-{number}",
            table.part(rows[piece]),
            table.part(pool[validation]) if number == 0 else nothing,
            test,
            _mostly(table.y[rows[piece]]),
        )
        for number, piece in enumerate(pieces)
    )
    return Federation(f"human activity, 8 sites, {split}", (FEATURES,), ACTIVITIES, sites)


def _subject(table: _Table, number: int, name: str, validation_share: float, random: np.random.Generator) -> SiteData:
    rows = np.flatnonzero(table.subject == number)
    held_out = int(max(HOLD_OUT_SHARE * len(rows), HOLD_OUT_ROWS))
    state = int(random.integers(2**32))
    train, test = train_test_split(rows, test_size=held_out, stratify=table.y[rows], random_state=state)
    kept, validation = stratified_parts(table.y[train], (1 - validation_share, validation_share), random)
    fit, chosen_on, report = (table.part(np.sort(part)) for part in (train[kept], train[validation], test))
    return SiteData(name, fit, chosen_on, report)


def _dealt(y: NDArray[np.int64], split: StrategySplit, random: np.random.Generator) -> list[Rows]:
    if split is StrategySplit.PICK_TWO:
        return _two_activities_each(y, random)
    sizes = np.arange(1, STRATEGY_SITES + 1) if split is StrategySplit.MAJORITY else np.ones(STRATEGY_SITES)
    ends = np.rint(np.cumsum(sizes) / sizes.sum() * len(y)).astype(np.int64)
    counts = np.diff(ends, prepend=0)
    if split is StrategySplit.RANDOM:
        return np.split(random.permutation(len(y)), ends[:-1])
    return _with_majorities(y, counts, random)


def _with_majorities(y: NDArray[np.int64], counts: NDArray[np.int64], random: np.random.Generator) -> list[Rows]:
    """First every site's majority, then the rows that are left, shuffled, to fill the sites up."""
    left = {label: list(random.permutation(np.flatnonzero(y == label))) for label in range(len(ACTIVITIES))}
    majorities: list[list[int]] = []
    for label, count in zip(MAJORITY, counts, strict=True):
        wanted = int(MAJORITY_SHARE * count)
        majorities.append([left[label].pop() for _ in range(wanted)])
    others = random.permutation(np.concatenate([np.array(rows, np.int64) for rows in left.values()]))
    missing = [int(count) - len(rows) for count, rows in zip(counts, majorities, strict=True)]
    fills = np.split(others, np.cumsum(missing)[:-1])
    return [np.concatenate([np.array(rows, np.int64), fill]) for rows, fill in zip(majorities, fills, strict=True)]


def _two_activities_each(y: NDArray[np.int64], random: np.random.Generator) -> list[Rows]:
    """Site k has activities k and k + 1 (mod 6); an activity's rows are cut evenly over the sites that have it."""
    classes = len(ACTIVITIES)
    pieces: list[list[Rows]] = [[] for _ in range(STRATEGY_SITES)]
    for label in range(classes):
        owners = [site for site in range(STRATEGY_SITES) if label in (site % classes, (site + 1) % classes)]
        for site, piece in zip(
            owners, np.array_split(random.permutation(np.flatnonzero(y == label)), len(owners)), strict=True
        ):
            pieces[site].append(piece)
    return [np.concatenate(piece) for piece in pieces]


def _mostly(y: NDArray[np.int64]) -> str:
    shares = np.bincount(y, minlength=len(ACTIVITIES)) / len(y)
    return f"{100 * shares.max():.0f} % {ACTIVITIES[int(shares.argmax())]}"
