"""Recurrence-free survival with breast cancer (GBSG-2, scikit-survival's copy, 686 women) over five hospitals.

The hospitals see different stages: by the number of positive lymph nodes, the strongest of the factors, so that they
differ in features and in risk at once. A screening programme finds women with few, a referral centre gets those with
many. The shares below were fixed before any model was trained.

Scaling leaks nothing: counts and hormone receptors go through log(1 + x), then (x - centre) / scale with the round
constants below, the same for every site and seed.

Source: Schumacher et al. 1994, Randomized 2 x 2 trial evaluating hormonal treatment and the duration of chemotherapy
in node-positive breast cancer patients
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from sksurv.datasets import load_gbsg2

from harness.datasets.site_data import Federation, SiteData, cut_site, owners, split_random
from protocol.wire.messages import TaskKind

HOSPITALS: Final = {
    "city-hospital": (0.15, 0.20, 0.25, 0.25, 0.15),
    "county-hospital": (0.20, 0.25, 0.25, 0.20, 0.15),
    "university-clinic": (0.15, 0.20, 0.20, 0.25, 0.20),
    "screening-centre": (0.45, 0.30, 0.20, 0.10, 0.00),
    "oncology-centre": (0.05, 0.05, 0.10, 0.20, 0.50),
}
"""Share of each fifth of the women, by positive nodes from few to many, that each hospital sees."""
REQUESTER_SHARES: Final = (0.40, 0.15, 0.45)
CONTRIBUTOR_SHARES: Final = (0.80, 0.00, 0.20)
COLUMNS: Final = (
    "age",
    "tumour size",
    "log positive nodes",
    "log progesterone receptor",
    "log oestrogen receptor",
    "hormone therapy",
    "postmenopausal",
    "grade II",
    "grade III",
)
CENTRE: Final = (53, 30, 1.5, 3.5, 3.5, 0, 0, 0, 0)
SCALE: Final = (10, 15, 0.8, 2, 2, 1, 1, 1, 1)
DAYS_A_YEAR: Final = 365.25


def breast_cancer_survival(seed: int, requester: str | None = None) -> Federation:
    """The federation, ``requester`` (None: the first named) in front; ``seed`` decides the parts and, within the fixed
    shares, who goes where. Times are years.
    """
    table, outcome = load_gbsg2()
    X = (_features(table) - np.array(CENTRE)) / np.array(SCALE)
    y = np.column_stack([outcome["time"] / DAYS_A_YEAR, outcome["cens"]]).astype(np.float32)
    nodes, random = table["pnodes"].to_numpy(float), split_random("breast cancer survival", seed)
    owner = owners(nodes, list(HOSPITALS.values()), random)
    asking = requester or next(iter(HOSPITALS))
    cut: dict[str, SiteData] = {}
    for number, name in enumerate(HOSPITALS):
        rows = np.flatnonzero(owner == number)
        shares = REQUESTER_SHARES if name == asking else CONTRIBUTOR_SHARES
        note = f"median {np.median(nodes[rows]):.0f} positive nodes"
        cut[name] = cut_site(name, X[rows], y[rows], shares, random, note, y[rows, 1].astype(np.int64))
    title = "breast cancer survival, five hospitals"
    return Federation(
        title, (len(COLUMNS),), ("log hazard",), (cut.pop(asking), *cut.values()), COLUMNS, TaskKind.SURVIVAL
    )


def _features(table: Any) -> NDArray[np.float64]:  # noqa: ANN401  # pandas has no types here
    """The columns, unscaled."""
    logs = [np.log1p(table[name].to_numpy(float)) for name in ("pnodes", "progrec", "estrec")]
    marks = [table["horTh"] == "yes", table["menostat"] == "Post", table["tgrade"] == "II", table["tgrade"] == "III"]
    plain = [table["age"].to_numpy(float), table["tsize"].to_numpy(float)]
    return np.column_stack([*plain, *logs, *(mark.to_numpy(float) for mark in marks)])
