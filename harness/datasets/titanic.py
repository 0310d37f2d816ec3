"""Titanic's 1309 passengers over four sites by age, as in the Weight Erosion report.

Features, in its order: fare, female, embarked at Cherbourg, at Queenstown, travelling alone, first class, second class,
age, minor. A missing fare is -1, and fares are standardised over all rows; a missing port is Southampton; alone means
neither siblings, spouse, parents nor children; ages are standardised by the known ones, and a missing age is 28; minor
is under 17, and a missing age makes it 0.2009. So the scaling uses every row, the test rows included, as in
the report; labels are not used.

Splits: ``age_strict``: up to 20, 21 to 35, over 35, unknown age. ``age_some``: those up to 35 shuffled into two halves,
over 35, unknown. Half of the requester's rows are its test part; the other sites train on all of theirs.

Source: Grimberg, "Weight Erosion" (EPFL semester report, 2020), sections 4 and 5; the row order differs from the
        report's, so its exact splits cannot be made again. Data: Harrell and Cason, "titanic3".
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from client_agent.learning.data import Examples
from harness.datasets.public_data import PublicFile, content
from harness.datasets.site_data import Federation, SiteData, split_random, stratified_parts
from protocol.errors import ConfigurationError

TITANIC3: Final = PublicFile(
    "titanic/titanic3.csv",
    "be4571dad20dbeb54cacb10d8f24019bf9c3f7ddea9bd1c69f05d33f3b1ecc1e",
    "Titanic passengers (Harrell and Cason, Vanderbilt; 1309 rows)",
    "https://raw.githubusercontent.com/djnavarro/psyr/9e129a4302123db1db5c68681a980007bab93639/data/titanic3.csv",
    is_table=True,
)
FILES: Final = (TITANIC3,)
FEATURES: Final = (
    "fare", "female", "embarked_c", "embarked_q", "alone", "first_class", "second_class", "age", "minor",
)  # fmt: skip
SITES: Final = {
    "age_strict": ("up-to-20", "21-to-35", "over-35", "age-unknown"),
    "age_some": ("up-to-35-a", "up-to-35-b", "over-35", "age-unknown"),
}
MISSING_AGE, MISSING_FARE, MISSING_MINOR, ADULT_FROM = 28.0, -1.0, 0.2009, 17.0
TEST_SHARE: Final = 0.5


def titanic(
    folder: Path, split: str, seed: int, requester: str | None = None, validation_share: float = 0.0
) -> Federation:
    """The federation, the requester (the first site, if None) first; ``seed`` decides its halves and the shuffle.

    ``validation_share`` of the requester's training half is kept to choose settings on. Raises: ConfigurationError
    """
    if split not in SITES:
        raise ConfigurationError(f"Titanic: split {split!r} is none of {', '.join(SITES)}")
    names = SITES[split]
    chosen = requester or names[0]
    if chosen not in names:
        raise ConfigurationError(f"Titanic, {split}: {chosen!r} is no site; the sites are {', '.join(names)}")
    rows = passengers(folder)
    ages = np.array([float(row["age"]) if row["age"] else np.nan for row in rows])
    X, y = features(rows, ages), np.array([int(row["survived"]) for row in rows], np.int64)
    random = split_random(f"titanic {split}", seed)
    owner = owners(ages, split, random)
    ordered = (chosen, *(name for name in names if name != chosen))
    sites = tuple(
        _site(name, X, y, np.flatnonzero(owner == names.index(name)), name == chosen, validation_share, random)
        for name in ordered
    )
    return Federation(f"Titanic, {split}", (len(FEATURES),), ("died", "survived"), sites)


def passengers(folder: Path) -> list[dict[str, str]]:
    """The file's rows. Raises: ConfigurationError"""
    return list(csv.DictReader(io.StringIO(content(TITANIC3, folder).decode())))


def features(rows: list[dict[str, str]], ages: NDArray[np.float64]) -> NDArray[np.float32]:
    """float32[n, 9] in the order of ``FEATURES``; NaN ages are the missing ones."""
    fare = np.array([float(row["fare"]) if row["fare"] else MISSING_FARE for row in rows])
    known = ages[~np.isnan(ages)]
    age = np.where(np.isnan(ages), MISSING_AGE, ages)
    columns = (
        (fare - fare.mean()) / fare.std(),
        [row["sex"] == "female" for row in rows],
        [row["embarked"] == "C" for row in rows],
        [row["embarked"] == "Q" for row in rows],
        [int(row["sibsp"]) + int(row["parch"]) == 0 for row in rows],
        [row["pclass"] == "1" for row in rows],
        [row["pclass"] == "2" for row in rows],
        (age - known.mean()) / known.std(),
        np.where(np.isnan(ages), MISSING_MINOR, ages < ADULT_FROM),
    )
    table: NDArray[np.float32] = np.column_stack(columns).astype(np.float32)
    return table


def owners(ages: NDArray[np.float64], split: str, random: np.random.Generator) -> NDArray[np.int64]:
    """Number of each passenger's site."""
    unknown = np.isnan(ages)
    owner = np.select([unknown, ages <= 20, ages <= 35], [3, 0, 1], default=2).astype(np.int64)
    if split == "age_some":
        young = random.permutation(np.flatnonzero(owner < 2))
        owner[young] = np.arange(len(young)) % 2
    return owner


def _site(
    name: str,
    X: NDArray[np.float32],
    y: NDArray[np.int64],
    rows: NDArray[np.int64],
    is_requester: bool,
    validation_share: float,
    random: np.random.Generator,
) -> SiteData:
    """A contributor trains on everything; the requester's rows are halved at random, not by class, as in the report."""

    def of(part: NDArray[np.int64]) -> Examples:
        return Examples(X[part], y[part])

    if not is_requester:
        return SiteData(name, of(rows), of(rows[:0]), of(rows[:0]))
    shuffled = random.permutation(rows)
    test, own = np.split(shuffled, [round(TEST_SHARE * len(rows))])
    train, validation = stratified_parts(y[own], (1 - validation_share, validation_share), random)
    return SiteData(name, of(own[train]), of(own[validation]), of(np.sort(test)))
