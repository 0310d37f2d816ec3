"""Progression of diabetes after a year (scikit-learn's copy, 442 patients) over five practices: a regression.

The practices see different ages, and with them other blood values. The shares below were fixed before any model was
trained. Scaling leaks nothing: (x - centre) / scale with the round constants below, the same for every site and seed;
the target, a score from 25 to 346, is (score - 150) / 75.

Source: Efron, Hastie, Johnstone, Tibshirani 2004, Least angle regression
"""

from __future__ import annotations

from typing import Final

import numpy as np
from sklearn.datasets import load_diabetes

from harness.datasets.site_data import Federation, SiteData, cut_site, owners, split_random
from protocol.wire.messages import TaskKind

PRACTICES: Final = {
    "city-practice": (0.15, 0.20, 0.25, 0.25, 0.15),
    "harbour-practice": (0.20, 0.25, 0.25, 0.15, 0.15),
    "old-town-practice": (0.10, 0.15, 0.20, 0.25, 0.25),
    "student-clinic": (0.50, 0.30, 0.10, 0.05, 0.00),
    "home-for-the-aged": (0.05, 0.10, 0.20, 0.30, 0.45),
}
"""Share of each fifth of the patients, by age from young to old, that each practice sees."""
REQUESTER_SHARES: Final = (0.40, 0.15, 0.45)
CONTRIBUTOR_SHARES: Final = (0.80, 0.00, 0.20)
CENTRE: Final = (48, 1.5, 26, 95, 190, 115, 50, 4, 4.6, 91)
SCALE: Final = (13, 0.5, 4.5, 14, 35, 30, 13, 1.3, 0.5, 11.5)
TARGET_CENTRE: Final = 150
TARGET_SCALE: Final = 75


def diabetes_five_practices(seed: int, requester: str | None = None) -> Federation:
    """The federation, ``requester`` (None: the first named) in front; ``seed`` decides the parts and, within the fixed
    shares, who goes where.
    """
    bundle = load_diabetes(scaled=False)
    raw = np.asarray(bundle.data, dtype=np.float64)
    X = (raw - np.array(CENTRE)) / np.array(SCALE)
    y = ((np.asarray(bundle.target, dtype=np.float64) - TARGET_CENTRE) / TARGET_SCALE).astype(np.float32)[:, None]
    random = split_random("diabetes", seed)
    owner = owners(raw[:, 0], list(PRACTICES.values()), random)
    asking = requester or next(iter(PRACTICES))
    cut: dict[str, SiteData] = {}
    for number, name in enumerate(PRACTICES):
        rows = np.flatnonzero(owner == number)
        shares = REQUESTER_SHARES if name == asking else CONTRIBUTOR_SHARES
        note, one_stratum = f"median age {np.median(raw[rows, 0]):.0f}", np.zeros(len(rows), np.int64)
        cut[name] = cut_site(name, X[rows], y[rows], shares, random, note, one_stratum)
    columns = tuple(str(name) for name in bundle.feature_names)
    title = "diabetes, five practices"
    return Federation(
        title, (X.shape[1],), ("progression",), (cut.pop(asking), *cut.values()), columns, TaskKind.REGRESSION
    )
