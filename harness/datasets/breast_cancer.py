"""Wisconsin breast cancer (scikit-learn's copy, 569 tumours) over five hospitals that see different tumour sizes.

Why this skew: whom a hospital sees depends on how its patients come to it. A screening programme finds small
tumours, a referral centre gets the large ones, others see a mixture. Tumour size (mean radius) is also the single
feature that tells most about malignancy, so the hospitals differ in features and in class balance at once, as
hospitals do. The shares below were fixed before any model was trained.

Scaling leaks nothing: (x - centre) / scale with the round constants below, the same for every site and seed, which
stand for reference values from a textbook. No statistic of any site's rows is computed or sent.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from sklearn.datasets import load_breast_cancer

from harness.datasets.site_data import Federation, SiteData, cut_site, owners, split_random

# Share of each fifth of the tumours, by mean radius from smallest to largest, that each hospital sees (columns sum
# to 1). The requester, first, sees mostly the middle, where benign and malignant overlap.
HOSPITALS: Final = {
    "city-hospital": (0.05, 0.15, 0.30, 0.35, 0.15),
    "county-hospital": (0.15, 0.20, 0.25, 0.25, 0.15),
    "university-clinic": (0.15, 0.15, 0.20, 0.25, 0.30),
    "screening-centre": (0.60, 0.45, 0.15, 0.05, 0.00),
    "oncology-centre": (0.05, 0.05, 0.10, 0.10, 0.40),
}
REQUESTER_SHARES: Final = (0.40, 0.15, 0.45)
CONTRIBUTOR_SHARES: Final = (0.80, 0.00, 0.20)

# fmt: off
CENTRE: Final = (14, 19, 90, 650, 0.1, 0.1, 0.1, 0.05, 0.2, 0.06,
                 0.4, 1.2, 3, 40, 0.007, 0.025, 0.03, 0.012, 0.02, 0.004,
                 16, 26, 110, 900, 0.13, 0.25, 0.27, 0.11, 0.3, 0.08)
SCALE: Final = (4, 4, 20, 400, 0.01, 0.05, 0.1, 0.04, 0.03, 0.007,
                0.3, 0.6, 2, 50, 0.003, 0.02, 0.03, 0.006, 0.01, 0.003,
                5, 6, 30, 600, 0.02, 0.2, 0.2, 0.07, 0.06, 0.02)
# fmt: on


def breast_cancer_five_hospitals(seed: int, requester: str | None = None) -> Federation:
    """The federation, ``requester`` (None: the first named) in front; ``seed`` decides who goes where within the fixed
    shares, and the parts. Classes: benign first.
    """
    bundle = load_breast_cancer()
    raw = np.asarray(bundle.data, dtype=np.float64)
    y = 1 - np.asarray(bundle.target, dtype=np.int64)
    X = (raw - np.array(CENTRE)) / np.array(SCALE)
    random = split_random("breast cancer", seed)
    owner = owners(raw[:, 0], list(HOSPITALS.values()), random)
    asking = requester or next(iter(HOSPITALS))
    cut: dict[str, SiteData] = {}
    for number, name in enumerate(HOSPITALS):
        rows = np.flatnonzero(owner == number)
        shares = REQUESTER_SHARES if name == asking else CONTRIBUTOR_SHARES
        note = f"median radius {np.median(raw[rows, 0]):.1f} mm"
        cut[name] = cut_site(name, X[rows], y[rows], shares, random, note)
    columns, sites = tuple(str(name) for name in bundle.feature_names), (cut.pop(asking), *cut.values())
    return Federation("breast cancer, five hospitals", (X.shape[1],), ("benign", "malignant"), sites, columns)
