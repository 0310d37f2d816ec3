"""The part of the page on noise that is about whole sites: what accuracy is left where both servers add noise to sums.

A sum has one noise, however many sites are in it; so the same images are dealt to more and more sites.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Final

from client_agent.scoring.score import MetricName
from client_agent.site.budget.accounting import Steps, accountant, epsilon_of
from harness.datasets.registry import load_data
from harness.papers.page import Page
from harness.papers.tables.by_requester import over_requesters
from harness.simulate.case import Case, Variant, read_case
from harness.simulate.case_run import request_for, requesters_of
from harness.simulate.charts import Spread, bars_chart, number
from harness.simulate.run_line import RunLine
from protocol.errors import ConfigurationError

EPSILONS: Final = ("none", "clipped", "64", "8", "4", "2", "1")
COUNTED: Final = EPSILONS[2:]
_NOT_ASKED: Final = "-"
_GAP: Final = Spread(math.nan, None, 0)
_HEADING: Final = "A whole site hidden: noise of the servers"
_INTRODUCTION: Final = (
    'With `unit = "site"` sites add nothing, and each server adds discrete Gaussian noise to its half of every sum '
    "([protocol.md](../protocol.md), section 21): epsilon is then about all that a site shares, against everybody who "
    "has at most one of the two servers. One server's noise deviates by the noise multiplier times the longest update "
    "that a site can share, in every coordinate, and both add theirs; so the noise's length grows with the square root "
    "of the number of parameters, and its part in an average falls with the number of sites. FedAvg only, one gradient "
    "of a batch a round; updates are clipped to 1, fixed beforehand; rates were chosen for every column by itself on "
    "other seeds by validation examples, which is not in epsilon. Accuracy on the requesters' own test parts after the "
    "last round, mean ± standard error over seeds. *None* neither clips nor adds noise, *clipped* clips alone. *A "
    "guess* always says the most frequent class of the requester's test part, so an accuracy near it, or below, means "
    "that the model is lost."
)

_LESSONS: Final = (
    "What the tables say:\n\n"
    "- **Four or ten sites are not hidden with a model that is of use.** In heart disease 64 takes nothing of "
    "accuracy, and epsilon 8 seven points of it and most of what the log-loss had to say (a guess is right so often "
    "there because all of Switzerland's test patients are ill); with ten sites of digits or MNIST even 64, which "
    "promises next to nothing, takes a quarter to more than half, and 8 everything.\n"
    "- **What counts is the number of sites.** The same images over 10, 20, 50 and 100 sites: at 64 the model comes "
    "back between 20 and 50, where the noise is about twice as long as an update; at 8 it is at a hundred where "
    "always saying five would be. Epsilon 1 leaves nothing anywhere here.\n"
    "- **Read a column's small differences with care.** Rates were chosen on one or two seeds, out of three or four, "
    "by accuracy: clipping alone at a hundred sites got one at which it swings (.721, and .807 under the noise of 64 "
    "with another), and epsilon 1 in heart disease one whose log-loss is far worse than that of 2.\n"
    "- **A site that wants a bound and has few others beside it** is better off with noise on its own records, above: "
    "it says less, of a record and not of the site, and leaves a model."
)


@dataclass(frozen=True)
class SitesCase:
    """A case of this part: ``sites`` share updates in a sum, ``delta`` is what its noise multipliers were found at."""

    case: str
    title: str
    sites: int
    delta: float

    def read(self, studies: Path) -> Case:
        """Raises: ConfigurationError"""
        return read_case(studies / f"{self.case}.toml")


MNIST_SITES: Final = (10, 20, 50, 100)
HEART: Final = SitesCase("noise_sites_heart", "heart disease, four hospitals", 4, 1e-3)
DIGITS: Final = SitesCase("noise_sites_digits", "digits, ten sites", 10, 1e-3)
MNIST: Final = tuple(SitesCase(f"noise_sites_mnist_{n}", f"MNIST, {n} sites", n, 1e-5) for n in MNIST_SITES)
CASES: Final = (HEART, DIGITS, *MNIST)


def variant_of(case: Case, epsilon: str) -> Variant | None:
    """The case's variant under an epsilon, None where it was not asked for."""
    name = "fedavg" if epsilon == "none" else f"fedavg_{epsilon}"
    return case.variant(name) if name in case.names else None


def spent_of(case: Case, one: SitesCase, epsilon: str) -> float | None:
    """What all rounds of the variant spend at every site, None for a variant without noise."""
    variant = variant_of(case, epsilon)
    if variant is None or variant.study.privacy is None:
        return None
    return epsilon_of([Steps(1.0, variant.study.privacy.noise_multiplier, variant.study.rounds)], one.delta)


def guesses(studies: Path, data: Path | None) -> dict[str, float]:
    """By case, how often the most frequent class of a requester's test part is right, on average over requesters.

    A case whose data are not there is left out.
    """
    found = {}
    for one in CASES:
        case = one.read(studies)
        try:
            found[one.case] = _guess(case, data)
        except ConfigurationError:
            continue
    return found


def _guess(case: Case, data: Path | None) -> float:
    """Raises: ConfigurationError, where the data are not there"""
    seed = case.table.seeds[0]
    federation = load_data(request_for(case, data, None, seed))
    shares = []
    for requester in requesters_of(case, federation):
        test = load_data(request_for(case, data, requester, seed)).requester.test
        ((_, most),) = Counter(test.y.tolist()).most_common(1)
        shares.append(most / len(test))
    return mean(shares)


def write(page: Page, runs: Mapping[str, Sequence[RunLine]], guessed: Mapping[str, float], studies: Path) -> None:
    """Everything; cases that were not run are named."""
    page.heading(_HEADING)
    page.text(_INTRODUCTION)
    done = [(one, one.read(studies), runs[one.case]) for one in CASES if runs.get(one.case)]
    missing = [one.title for one in CASES if not runs.get(one.case)]
    if missing:
        page.text(f"**Not run yet:** {'; '.join(missing)}.")
    if not done:
        return
    heads = ("none", "clipped", *(f"epsilon {epsilon}" for epsilon in COUNTED))
    rows = [
        (one.title, *(_cell(case, lines, epsilon, MetricName.ACCURACY) for epsilon in EPSILONS), _shown(guessed, one))
        for one, case, lines in done
    ]
    page.table(("accuracy", *heads, "a guess"), rows)
    page.table(
        ("log-loss", *heads),
        [
            (one.title, *(_cell(case, lines, epsilon, MetricName.LOG_LOSS) for epsilon in EPSILONS))
            for one, case, lines in done
        ],
    )
    page.text(
        "Noise multipliers, and how long both servers' noise in an average is beside the longest average that there "
        f"can be ({accountant()}):"
    )
    page.table(
        ("multiplier: length", "rounds", "delta", "parameters", *heads[2:]),
        [
            (one.title, *_sizes(one, case), *(_noise(one, case, epsilon) for epsilon in COUNTED))
            for one, case, lines in done
        ],
    )
    _figure(page, done)
    if not missing:
        page.text(_LESSONS)


def _shown(guessed: Mapping[str, float], one: SitesCase) -> str:
    return number(guessed[one.case], 3) if one.case in guessed else _NOT_ASKED


def _spread(case: Case, lines: Sequence[RunLine], epsilon: str, metric: MetricName) -> Spread | None:
    variant = variant_of(case, epsilon)
    return None if variant is None else over_requesters(lines, variant.name, metric)


def _cell(case: Case, lines: Sequence[RunLine], epsilon: str, metric: MetricName) -> str:
    spread = _spread(case, lines, epsilon, metric)
    return _NOT_ASKED if spread is None else str(spread)


def dimension_of(case: Case) -> int:
    """Shared parameters of the case's linear model: one row and one bias for every class."""
    model = case.variants[0].study.model
    return (math.prod(model.inputs) + 1) * model.width


def _sizes(one: SitesCase, case: Case) -> tuple[str, str, str]:
    return str(case.variants[0].study.rounds), f"{one.delta:g}", f"{dimension_of(case):,}"


def _noise(one: SitesCase, case: Case, epsilon: str) -> str:
    variant = variant_of(case, epsilon)
    if variant is None or variant.study.privacy is None:
        return _NOT_ASKED
    multiplier = variant.study.privacy.noise_multiplier
    length = noise_beside(one, case, multiplier)
    return f"{multiplier:g}: {length:.2g}" if length < 100 else f"{multiplier:g}: {length:.0f}"


def noise_beside(one: SitesCase, case: Case, multiplier: float) -> float:
    """Expected length of both servers' noise over the number of sites, over the clip norm."""
    return multiplier * math.sqrt(2 * dimension_of(case)) / one.sites


def _figure(page: Page, done: Sequence[tuple[SitesCase, Case, Sequence[RunLine]]]) -> None:
    """MNIST by the number of sites; what was not run is a gap."""
    grown = [(one, case, lines) for one, case, lines in done if one in MNIST]
    series: list[tuple[str, list[Spread]]] = []
    for epsilon in EPSILONS:
        found = [_spread(case, lines, epsilon, MetricName.ACCURACY) for _, case, lines in grown]
        if any(spread is not None for spread in found):
            name = f"epsilon {epsilon}" if epsilon in COUNTED else epsilon
            series.append((name, [spread or _GAP for spread in found]))
    if series:
        chart = bars_chart([f"{one.sites} sites" for one, _, _ in grown], series, "test accuracy")
        page.figure("sites", chart, "MNIST under noise of the servers: accuracy by the number of sites.")
