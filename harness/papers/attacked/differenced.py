"""The privacy page's part about single updates: two sums that differ by one site, and what isolation predicts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from scipy.stats import spearmanr

from harness.adversaries.attack_line import AttackLine
from harness.adversaries.differencing.lines import DifferencedLine
from harness.adversaries.reconstruction import Prior
from harness.papers.attacked.differenced_runs import BATCHES, DIFFERENCED
from harness.papers.charts import Point, PointsPanel, points_chart
from harness.papers.page import Page
from harness.simulate.case import read_case
from harness.simulate.charts import Spread, number

_INTRODUCTION: Final = (
    "Two sums that differ by one site are that site's update, as far as the others' updates stay the same. How far off "
    "is the difference, and had the sites' own figure, their *isolation* ([protocol, section 9](../protocol.md)), said "
    "so before? A study of two sums; the site with most weight is away at the second, and no policy forbids it. "
    "Errors are ||estimate - update|| / ||update|| of that site's update in the first sum. `predicted`: the least "
    "isolation that any site worked out before the second sum. `difference`: the two sums subtracted. `best`: the best "
    "of the difference, the average alone, and the two estimates of a requester that knows its own updates. `true`: by "
    "somebody who knows exactly how every site's updates move, which nobody does, and which isolation is about. Means "
    "over five seeds."
)
_LESSONS: Final = (
    "What they say:\n\n"
    "- **Full batches give the site that leaves away,** to .04 to .24 of its length under every rule that sums "
    "everybody; where it weighs by samples an epoch does as well. Sites refuse such a sum: what is predicted is below "
    "the default limit of .3. Fresh batches of 8 leave an error of .6 to .9 where weights are listed, in which there "
    "is little beyond what sites have in common.\n"
    "- **Where isolation is low it is cautious:** in most runs the attack does worse than predicted, by much where "
    "sites weigh themselves (each takes the others' weights for the smallest possible), where one site's batch is all "
    "that it has, and where multi-Krum picks other sites without the one that left.\n"
    "- **Where isolation is high it is no promise about the error.** Over whole studies the best known update was "
    "known to .3 where .8 was predicted. In nearly all of these the average alone is as near, as sites have much in "
    "common. Isolation bounds what an attack adds to the average: above .5 even somebody who knows how updates move "
    "takes a tenth off the average's error in the middle study; below .1, three quarters.\n"
    "- **So read it as a guard against subtraction,** not as the distance at which an update is kept."
)
_WHOLE: Final = (
    "**Over whole studies.** Every study of [What sums give away](sums.md): the least isolation at the last sum, "
    "against the least error of any site's update in any round, by the requester with what it has and by one who "
    "knows how updates move."
)
_LIMIT: Final = 1.2
_BEST: Final = "best, with what a requester has"
_TRUE: Final = "knowing how updates move (true)"
_OVER: Final = "over the average's error"


@dataclass(frozen=True)
class Agreement:
    """How prediction and error go together over runs: Spearman's correlation (None where either is one number), how
    often the error was no smaller than predicted (to a tenth), how often it was that or no smaller than the average's
    alone, which needs no attack, and how far below the prediction it was at worst.
    """

    runs: int
    ranked: float | None
    held: float
    held_or_average: float
    worst: float


def agreement(runs: Iterable[tuple[float, float, float]]) -> Agreement | None:
    """From what was predicted and achieved, and the average's error; None for fewer than three runs."""
    values = np.array([run for run in runs if not np.isnan(run).any()])
    if len(values) < 3:
        return None
    predicted, achieved, average = values.T
    held = achieved >= 0.9 * predicted
    either = held | (achieved >= 0.9 * average)
    constant = np.ptp(predicted) == 0 or np.ptp(achieved) == 0
    ranked = None if constant else float(spearmanr(predicted, achieved).statistic)
    worst = float(np.min(achieved - predicted))
    return Agreement(len(values), ranked, float(held.mean()), float(either.mean()), worst)


def write(page: Page, lines: Sequence[DifferencedLine], attacks: Sequence[AttackLine], studies: Path) -> None:
    """Table, figures and how well both agree; what has not run is named."""
    page.heading("Can one hospital's update be told from sums?")
    page.text(_INTRODUCTION)
    if not lines:
        page.text("**Not run yet:** 0 runs.")
        return
    _table(page, lines, studies)
    _figure(page, lines, studies)
    _agreements(page, lines, attacks)
    _whole(page, attacks)
    page.text(_LESSONS)


def _table(page: Page, lines: Sequence[DifferencedLine], studies: Path) -> None:
    rows = []
    for differenced in DIFFERENCED:
        name = read_case(studies / f"{differenced.case}.toml").name
        for rule in differenced.rules:
            for batch in BATCHES:
                found = [one for one in lines if (one.study, one.variant, one.setting) == (name, rule, batch)]
                rows.append((differenced.title, rule, batch, *_cells(found)))
    page.table(("data", "rule", "updates", "predicted", "difference", "best", "true"), rows)


def _cells(found: Sequence[DifferencedLine]) -> tuple[str, ...]:
    if not found:
        return ("not run", "", "", "")
    columns = zip(*((one.predicted, one.difference, one.achieved, one.true) for one in found), strict=True)
    return tuple(str(Spread.of(column)) for column in columns)


def _figure(page: Page, lines: Sequence[DifferencedLine], studies: Path) -> None:
    titles = {read_case(studies / f"{one.case}.toml").name: one.title for one in DIFFERENCED}
    best = tuple(Point(one.predicted, one.achieved, one.variant, one.setting) for one in lines)
    true = tuple(Point(one.predicted, one.true, one.variant, one.setting) for one in lines)
    panels = [PointsPanel(_BEST, best), PointsPanel(_TRUE, true)]
    caption = (
        f"Predicted against achieved, one dot a run ({', '.join(titles.values())}); below the line the attack was "
        "better than isolation said."
    )
    page.figure("differencing", points_chart(panels, "isolation (predicted error)", "error achieved", _LIMIT), caption)


def _agreements(page: Page, lines: Sequence[DifferencedLine], attacks: Sequence[AttackLine]) -> None:
    whole = [point for attack in attacks if not _noisy(attack) and (point := whole_study(attack)) is not None]
    rows = []
    for title, runs in (
        ("two sums: best", [(one.predicted, one.achieved, one.average) for one in lines]),
        ("two sums: true", [(one.predicted, one.true, one.average) for one in lines]),
        ("whole studies: best of own, fitted", [(one.predicted, one.best, one.average) for one in whole]),
        ("whole studies: true", [(one.predicted, one.true, one.average) for one in whole]),
    ):
        found = agreement(runs)
        if found is None:
            rows.append((title, "not run", "", "", "", ""))
        else:
            ranked = "-" if found.ranked is None else f"{found.ranked:+.2f}"
            rows.append(
                (
                    title,
                    str(found.runs),
                    ranked,
                    number(found.held),
                    number(found.held_or_average),
                    f"{found.worst:+.2f}",
                )
            )
    page.text(
        "*Ranked*: Spearman's correlation of prediction and error. *Held*: the share of runs whose error was at least "
        "nine tenths of what was predicted; *or average*: of that, or of the average's own error, which is known "
        "without any attack. *Worst*: the error less what was predicted, in the worst run."
    )
    page.table(("runs and attacker", "runs", "ranked", "held", "held, or average", "worst"), rows)


@dataclass(frozen=True)
class WholeStudy:
    """One study's least isolation at its last sum, and the least errors of a requester."""

    study: str
    rule: str
    predicted: float
    best: float
    true: float
    average: float


def whole_study(line: AttackLine) -> WholeStudy | None:
    """None where nothing was opened or no isolation worked out."""
    if not line.rounds:
        return None
    last = line.rounds[-1] - 1
    isolation = [value for one in line.isolation.values() if last < len(one) and (value := one[last]) is not None]
    best = _least(line, (Prior.AVERAGE, Prior.OWN, Prior.FITTED))
    true = _least(line, (Prior.TRUE,))
    average = _least(line, (Prior.AVERAGE,))
    if not isolation or best is None or true is None or average is None:
        return None
    return WholeStudy(line.study, line.rule, min(isolation), best, true, average)


def _least(line: AttackLine, priors: Iterable[Prior]) -> float | None:
    """The smallest error of any site's update in any round, by the requester alone."""
    found = [
        least
        for prior in priors
        if (one := line.by((line.requester,), prior)) is not None
        for site in one.errors
        if (least := one.least(site)) is not None
    ]
    return min(found, default=None)


def _whole(page: Page, attacks: Sequence[AttackLine]) -> None:
    found = [point for attack in attacks if not _noisy(attack) and (point := whole_study(attack)) is not None]
    if not found:
        page.text("**Not run yet:** whole studies.")
        return
    page.text(_WHOLE)
    panels = [
        PointsPanel(_BEST, tuple(Point(o.predicted, o.best, o.rule, "") for o in found)),
        PointsPanel(_TRUE, tuple(Point(o.predicted, o.true, o.rule, "") for o in found)),
        PointsPanel(_TRUE, tuple(Point(o.predicted, o.true / o.average, o.rule, "") for o in found), _OVER),
    ]
    caption = (
        f"Predicted against achieved, one dot a study ({len(found)}); errors beyond {_LIMIT:g} stand at the edge. On "
        "the right, what knowing how updates move takes off the error that the average alone leaves."
    )
    page.figure("isolation", points_chart(panels, "isolation (predicted error)", "least error", _LIMIT), caption)


def _noisy(line: AttackLine) -> bool:
    """Noise hides updates, and isolation does not count it here."""
    return line.setting.startswith("noise")
