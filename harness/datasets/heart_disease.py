"""UCI Heart Disease: four real hospitals, prepared as FLamby's Fed-Heart-Disease does.

Preparation: slope, ca and thal are dropped, then every row that misses a value; chest pain (cp) and resting ECG
(restecg) are one-hot without their first level; the target is num > 0; each hospital standardises with the mean and
deviation of its own training part (nothing is sent). 34 % of each hospital's rows are for testing, stratified; the
requester keeps another part of its rows to choose settings on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from client_agent.learning.data import Examples
from harness.datasets.public_data import PublicFile, content
from harness.datasets.site_data import Federation, SiteData, cut_site, split_random
from host.settings import read_text
from protocol.errors import ConfigurationError
from protocol.summary.table_one import is_constant

FILES: Final = {"cleveland": "cleveland", "hungary": "hungarian", "switzerland": "switzerland", "va-long-beach": "va"}
COLUMNS: Final = 14
NAMES: Final = ("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak")
"""Names of the kept columns without the target, as the data set's description has them."""
DROPPED: Final = (10, 11, 12)
CHEST_PAIN, RESTING_ECG = 2, 6
LEVELS: Final = {CHEST_PAIN: (2.0, 3.0, 4.0), RESTING_ECG: (1.0, 2.0)}
TRAINING, TEST = 0.66, 0.34
VALIDATION: Final = 0.16
CONTRIBUTOR_SHARES: Final = (TRAINING, 0.00, TEST)


def _file(name: str, sha256: str) -> PublicFile:
    return PublicFile(
        f"heart_disease/processed.{name}.data",
        sha256,
        "the UCI Heart Disease data set (UCI repository no. 45)",
        f"https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/processed.{name}.data",
    )


PUBLIC_FILES: Final = (
    _file("cleveland", "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8"),
    _file("hungarian", "d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796"),
    _file("switzerland", "834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314"),
    _file("va", "e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f"),
)


def four_hospitals(folder: Path, seed: int, requester: str | None, validation_share: float) -> Federation:
    """As :func:`heart_disease`, from the data folder, the files compared with their checksums.

    ``validation_share`` is a part of the requester's training part. Raises: ConfigurationError
    """
    for file in PUBLIC_FILES:
        content(file, folder)
    chosen = requester or next(iter(FILES))
    return heart_disease(folder / "heart_disease", seed, chosen, validation=TRAINING * validation_share)


def heart_disease(
    folder: Path, seed: int, requester: str = "cleveland", *, validation: float = VALIDATION
) -> Federation:
    """The federation of the four hospitals, ``requester`` first; it keeps the part ``validation`` of its rows.

    A seed has one split, whoever is the requester: the hospitals are cut in the order of ``FILES``.

    Raises: ConfigurationError when a file is missing or no Heart Disease file, or the requester is none of the four
    """
    if requester not in FILES:
        raise ConfigurationError(f"requester {requester!r} is no hospital of this data set; choose from {list(FILES)}")
    random = split_random("heart disease", seed)
    requesters = (TRAINING - validation, validation, TEST)
    tables = {name: _table(folder / f"processed.{FILES[name]}.data") for name in FILES}
    cut = {
        name: _standardised(
            cut_site(name, *_features(table), requesters if name == requester else CONTRIBUTOR_SHARES, random)
        )
        for name, table in tables.items()
    }
    sites = (cut.pop(requester), *cut.values())
    title, columns = "heart disease, four hospitals", _feature_names()
    return Federation(title, (len(columns),), ("healthy", "diseased"), sites, columns)


def _table(path: Path) -> NDArray[np.float64]:
    """Complete rows over the eleven columns that are kept."""
    if not path.is_file():
        raise ConfigurationError(
            f"{path} is missing: put the four files processed.{{{','.join(FILES.values())}}}.data of the UCI Heart "
            f"Disease data set (UCI repository no. 45) into {path.parent}"
        )
    rows = [line.split(",") for line in read_text(path).split()]
    for number, row in enumerate(rows, start=1):
        if len(row) != COLUMNS:
            raise ConfigurationError(f"{path}, line {number}: {len(row)} columns, expected {COLUMNS}")
    kept = [[value for column, value in enumerate(row) if column not in DROPPED] for row in rows]
    try:
        return np.array([row for row in kept if "?" not in row], dtype=np.float64)
    except ValueError as error:
        raise ConfigurationError(f"{path} holds something that is neither a number nor '?': {error}") from None


def _features(table: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    columns: list[NDArray[np.float64]] = []
    for column, values in enumerate(table.T[:-1]):
        levels = LEVELS.get(column)
        columns += [values] if levels is None else [(values == level).astype(np.float64) for level in levels]
    return np.stack(columns, axis=1), (table[:, -1] > 0).astype(np.int64)


def _feature_names() -> tuple[str, ...]:
    """In the order of :func:`_features`."""
    levels = [[f"{name}={level:.0f}" for level in LEVELS.get(column, ())] for column, name in enumerate(NAMES)]
    return tuple(name for of, column in zip(levels, NAMES, strict=True) for name in of or [column])


def _standardised(site: SiteData) -> SiteData:
    """Scaled by the training part's mean and deviation; a column that is constant there is only centred."""
    own = site.train.X.astype(np.float64)
    mean, deviation = own.mean(axis=0), own.std(axis=0)
    scale = np.where(is_constant(own.min(axis=0), own.max(axis=0)), 1.0, deviation)

    def scaled(part: Examples) -> Examples:
        return Examples(((part.X - mean) / scale).astype(np.float32), part.y)

    note = f"{100 * site.train.y.mean():.0f} % diseased"
    return SiteData(site.name, scaled(site.train), scaled(site.validation), scaled(site.test), note)
