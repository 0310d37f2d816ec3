"""Data sets that come with scikit-learn and scikit-survival, split over hospitals, practices or sites.

Why these skews: whom a hospital sees depends on how its patients come to it. A screening programme finds small tumours,
a referral centre gets the large ones, others see a mixture. So each site sees a fixed share of every fifth of the
patients by one value: tumour size, age, or the number of positive lymph nodes. That value is among those that tell most
about the target, so sites differ in features and in what they predict at once, as hospitals do. The digits are skewed
by label, like MNIST's distribution B. All shares were fixed before any model was trained.

Scaling leaks nothing: (x - centre) / scale with the round constants below, the same for every site and seed, which
stand for reference values from a textbook. No statistic of any site's rows is computed or sent.

Source: Efron, Hastie, Johnstone, Tibshirani 2004, Least angle regression (diabetes);
        Schumacher et al. 1994, Randomized 2 x 2 trial evaluating hormonal treatment and the duration of chemotherapy
        in node-positive breast cancer patients (survival)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits

from client_agent.learning.data import Targets
from harness.datasets.site_data import Federation, SiteData, cut_site, owners, split_random
from protocol.messages.control import TaskKind

Shares = Mapping[str, tuple[float, ...]]
"""Each site's share of every fifth, smallest values first; columns sum to 1. The first site is the usual requester."""
Reals = NDArray[np.float64]
REQUESTER_SHARES: Final = (0.40, 0.15, 0.45)
CONTRIBUTOR_SHARES: Final = (0.80, 0.00, 0.20)
"""Training, validation and test part, but for the digits' requester."""


def _over_fifths(
    by: Reals,
    sites: Shares,
    data: tuple[Reals, Targets],
    requester: str | None,
    random: np.random.Generator,
    *,
    note: str,
    strata: NDArray[np.int64] | None = None,
) -> tuple[SiteData, ...]:
    """Deal the rows of X and y in ``data`` by the fifths of ``by``; ``requester`` (None: the first named) in front.

    Each site's ``note`` has the median of ``by`` in it. ``strata``: parts are cut by these, not by the targets.
    """
    X, y = data
    owner = owners(by, list(sites.values()), random)
    asking = requester or next(iter(sites))
    cut: dict[str, SiteData] = {}
    for number, name in enumerate(sites):
        rows = np.flatnonzero(owner == number)
        shares = REQUESTER_SHARES if name == asking else CONTRIBUTOR_SHARES
        own_strata = None if strata is None else strata[rows]
        cut[name] = cut_site(name, X[rows], y[rows], shares, random, note.format(np.median(by[rows])), own_strata)
    return (cut.pop(asking), *cut.values())


# --- breast cancer: 569 tumours, benign or malignant ------------------------------------------------------------------

# The requester, first, sees mostly the middle sizes, where benign and malignant overlap.
HOSPITALS: Final[Shares] = {
    "city-hospital": (0.05, 0.15, 0.30, 0.35, 0.15),
    "county-hospital": (0.15, 0.20, 0.25, 0.25, 0.15),
    "university-clinic": (0.15, 0.15, 0.20, 0.25, 0.30),
    "screening-centre": (0.60, 0.45, 0.15, 0.05, 0.00),
    "oncology-centre": (0.05, 0.05, 0.10, 0.10, 0.40),
}
# fmt: off
CENTRE: Final = (14, 19, 90, 650, 0.1, 0.1, 0.1, 0.05, 0.2, 0.06,
                 0.4, 1.2, 3, 40, 0.007, 0.025, 0.03, 0.012, 0.02, 0.004,
                 16, 26, 110, 900, 0.13, 0.25, 0.27, 0.11, 0.3, 0.08)
SCALE: Final = (4, 4, 20, 400, 0.01, 0.05, 0.1, 0.04, 0.03, 0.007,
                0.3, 0.6, 2, 50, 0.003, 0.02, 0.03, 0.006, 0.01, 0.003,
                5, 6, 30, 600, 0.02, 0.2, 0.2, 0.07, 0.06, 0.02)
# fmt: on


def breast_cancer_five_hospitals(seed: int, requester: str | None = None) -> Federation:
    """Wisconsin breast cancer over five hospitals that see different tumour sizes (mean radius); benign first.

    ``seed`` decides who goes where within the fixed shares, and the parts.
    """
    bundle = load_breast_cancer()
    raw = np.asarray(bundle.data, dtype=np.float64)
    y = 1 - np.asarray(bundle.target, dtype=np.int64)
    X = (raw - np.array(CENTRE)) / np.array(SCALE)
    random = split_random("breast cancer", seed)
    sites = _over_fifths(raw[:, 0], HOSPITALS, (X, y), requester, random, note="median radius {:.1f} mm")
    columns = tuple(str(name) for name in bundle.feature_names)
    return Federation("breast cancer, five hospitals", (X.shape[1],), ("benign", "malignant"), sites, columns)


# --- diabetes: its progression after a year in 442 patients, a regression ---------------------------------------------

PRACTICES: Final[Shares] = {
    "city-practice": (0.15, 0.20, 0.25, 0.25, 0.15),
    "harbour-practice": (0.20, 0.25, 0.25, 0.15, 0.15),
    "old-town-practice": (0.10, 0.15, 0.20, 0.25, 0.25),
    "student-clinic": (0.50, 0.30, 0.10, 0.05, 0.00),
    "home-for-the-aged": (0.05, 0.10, 0.20, 0.30, 0.45),
}
DIABETES_CENTRE: Final = (48, 1.5, 26, 95, 190, 115, 50, 4, 4.6, 91)
DIABETES_SCALE: Final = (13, 0.5, 4.5, 14, 35, 30, 13, 1.3, 0.5, 11.5)
TARGET_CENTRE: Final = 150
TARGET_SCALE: Final = 75


def diabetes_five_practices(seed: int, requester: str | None = None) -> Federation:
    """Diabetes over five practices that see different ages, and with them other blood values.

    The target, a score from 25 to 346, is (score - 150) / 75. ``seed`` decides as above.
    """
    bundle = load_diabetes(scaled=False)
    raw = np.asarray(bundle.data, dtype=np.float64)
    X = (raw - np.array(DIABETES_CENTRE)) / np.array(DIABETES_SCALE)
    y = ((np.asarray(bundle.target, dtype=np.float64) - TARGET_CENTRE) / TARGET_SCALE).astype(np.float32)[:, None]
    random, one_stratum = split_random("diabetes", seed), np.zeros(len(y), np.int64)
    sites = _over_fifths(raw[:, 0], PRACTICES, (X, y), requester, random, note="median age {:.0f}", strata=one_stratum)
    columns = tuple(str(name) for name in bundle.feature_names)
    return Federation("diabetes, five practices", (X.shape[1],), ("progression",), sites, columns, TaskKind.REGRESSION)


# --- survival: recurrence-free time of 686 women with breast cancer (GBSG-2) ------------------------------------------

SURVIVAL_HOSPITALS: Final[Shares] = {
    "city-hospital": (0.15, 0.20, 0.25, 0.25, 0.15),
    "county-hospital": (0.20, 0.25, 0.25, 0.20, 0.15),
    "university-clinic": (0.15, 0.20, 0.20, 0.25, 0.20),
    "screening-centre": (0.45, 0.30, 0.20, 0.10, 0.00),
    "oncology-centre": (0.05, 0.05, 0.10, 0.20, 0.50),
}
SURVIVAL_COLUMNS: Final = (
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
SURVIVAL_CENTRE: Final = (53, 30, 1.5, 3.5, 3.5, 0, 0, 0, 0)
SURVIVAL_SCALE: Final = (10, 15, 0.8, 2, 2, 1, 1, 1, 1)
DAYS_A_YEAR: Final = 365.25


def breast_cancer_survival(seed: int, requester: str | None = None) -> Federation:
    """Survival over five hospitals that see different stages, by the number of positive lymph nodes.

    Counts and hormone receptors go through log(1 + x) before they are scaled. Times are years. ``seed`` decides as
    above.
    """
    from sksurv.datasets import load_gbsg2  # takes seconds, and the other data sets do without

    table, outcome = load_gbsg2()
    X = (_survival_features(table) - np.array(SURVIVAL_CENTRE)) / np.array(SURVIVAL_SCALE)
    y = np.column_stack([outcome["time"] / DAYS_A_YEAR, outcome["cens"]]).astype(np.float32)
    nodes, random = table["pnodes"].to_numpy(float), split_random("breast cancer survival", seed)
    events, note = y[:, 1].astype(np.int64), "median {:.0f} positive nodes"
    sites = _over_fifths(nodes, SURVIVAL_HOSPITALS, (X, y), requester, random, note=note, strata=events)
    title, columns = "breast cancer survival, five hospitals", SURVIVAL_COLUMNS
    return Federation(title, (len(columns),), ("log hazard",), sites, columns, TaskKind.SURVIVAL)


def _survival_features(table: Any) -> Reals:  # noqa: ANN401  # pandas has no types here
    """The columns, unscaled."""
    logs = [np.log1p(table[name].to_numpy(float)) for name in ("pnodes", "progrec", "estrec")]
    marks = [table["horTh"] == "yes", table["menostat"] == "Post", table["tgrade"] == "II", table["tgrade"] == "III"]
    plain = [table["age"].to_numpy(float), table["tsize"].to_numpy(float)]
    return np.column_stack([*plain, *logs, *(mark.to_numpy(float) for mark in marks)])


# --- digits: 1,797 handwritten images of 8x8 --------------------------------------------------------------------------

SHARES_AROUND: Final = (0.2, 0.6, 0.2)
CENTRAL_DIGIT: Final = 5
# Shift of each site's digits against the requester's, nearest first.
HELPFUL: Final = (0, 1, -1, 2, -2, 3, -3, 4, -4, 5)
DIGITS_REQUESTER_SHARES: Final = (0.15, 0.25, 0.60)


def digits_sites(seed: int, sites: int = 5) -> Federation:
    """The federation of ``sites`` (2 to 10); ``seed`` decides who gets which image. Pixels are scaled to [0, 1].

    Site 0, the requester, gets 20 % of the fours, 60 % of the fives and 20 % of the sixes; each next site the same
    shares one digit lower. So every site sees three digits, its neighbours share two of them, and far sites none: what
    helps the requester and what does not is known. The requester trains on 15 % of its images, so that there is
    something to win from others. A federation of n sites takes the first n in the order of HELPFUL.
    """
    if not 2 <= sites <= len(HELPFUL):
        raise ValueError(f"the digits split into 2 to {len(HELPFUL)} sites, {sites} were asked for")
    bundle = load_digits()
    X = np.asarray(bundle.data, dtype=np.float64) / 16
    y = np.asarray(bundle.target, dtype=np.int64)
    random = split_random("digits", seed)
    owner = _digit_owners(y, random)
    made: list[SiteData] = []
    for place, shift in enumerate(HELPFUL[:sites]):
        rows = np.flatnonzero(owner == shift % 10)
        shares = DIGITS_REQUESTER_SHARES if place == 0 else CONTRIBUTOR_SHARES
        centre = (CENTRAL_DIGIT - shift) % 10
        made.append(cut_site(f"site-{place}", X[rows], y[rows], shares, random, f"mostly digit {centre}"))
    digits, pixels = tuple(str(digit) for digit in range(10)), tuple(str(name) for name in bundle.feature_names)
    return Federation(f"digits, {sites} sites", (64,), digits, tuple(made), pixels)


def _digit_owners(y: NDArray[np.int64], random: np.random.Generator) -> NDArray[np.int64]:
    """Shift of the site that gets each image: each digit is shuffled and cut over the three sites that see it."""
    owner = np.zeros(len(y), np.int64)
    for digit in range(10):
        rows = random.permutation(np.flatnonzero(y == digit))
        ends = np.rint(np.cumsum(SHARES_AROUND) * len(rows)).astype(np.int64)[:-1]
        for offset, piece in zip((-1, 0, 1), np.split(rows, ends), strict=True):
            owner[piece] = (CENTRAL_DIGIT + offset - digit) % 10
    return owner
