"""The page on sums: what everybody who takes part can work out about everybody's updates, before and after."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Final

import numpy as np

from harness.adversaries.attack_line import AttackLine
from harness.adversaries.memory_attacks import ATTACKS
from harness.adversaries.reconstruction import Prior
from harness.papers.attacked.sums_runs import LIMIT, LINEAR, SHIPPED, Attacked, of, recorded, run_missing
from harness.papers.making import Making
from harness.papers.page import Page
from harness.simulate.charts import Panel, Spread, curve, curves_chart, heatmap_chart, number
from harness.simulate.run_line import Values
from protocol.clauses import Clause

_CURVES: Final = (
    ("remedies-titanic", "full batches", "Titanic by age: slow lists over full batches"),
    (
        "remedies-titanic",
        "limit 0.5, fresh batches of 16, 10 rounds, list kept 5",
        "the same at limit 0.5, fresh batches",
    ),
    ("breast-cancer", "before", "breast cancer (demo), before"),
    ("breast-cancer", "now", "breast cancer (demo), now"),
)
_HEAT: Final = (
    ("breast-cancer", "before", "demo_before", "Breast cancer, Weight Erosion, before"),
    ("breast-cancer", "now", "demo_now", "Breast cancer, Weight Erosion, now"),
    ("remedies-titanic", "full batches", "full_batches", "Titanic by age, slow lists over full batches"),
)
_INTRODUCTION: Final = (
    "What everybody can infer, in plain words and with figures, is on [the privacy page](privacy.md). This page is the "
    "detail behind one part of it.\n\n"
    "No single server sees a hospital's update, and only sums over several hospitals are opened. But every sum is an "
    "equation. A study opens one every round, and under some rules the hospitals count with other weights every time; "
    "if at the same time each hospital's update hardly changes, many rounds together are a system of equations, and "
    "whoever holds the sums and the weights, the requester and every listed hospital, can solve it on a laptop. No "
    "encryption helps, since the sums are what the study is for. What helps is to be careful which sums one agrees to "
    "be in, and every hospital's agent now is: before it contributes it works out its *isolation*, and declines if "
    "that is below the limit in its policy (`least_isolation`, 0.3 unless the hospital says otherwise)."
)
_FIGURES: Final = (
    "**Error.** ||estimate - update|| / ||update||, from the truth, which a simulation knows. 0: the update is known. "
    "Around 1: a guess of nothing at all would do as well. Below, an *error* is the middle round's, and the hospital's "
    "that is known best.\n\n"
    "**Isolation.** What a hospital computes from its own updates and the lists: the error that the best linear "
    "estimate would have if everybody's updates moved exactly as its own and pointed elsewhere, the least over "
    "everybody's updates in all sums so far. It is not the error of a real attack: an attacker knows less than that "
    "about how updates move, and something more about where they point, since hospitals' updates are alike.\n\n"
    "**What the attacker knows.** `average`: only this round's sum, everybody's update taken to be the average. That "
    "is no attack but what summing means, so it is the line to compare with. `own` and `fitted`: everything that a "
    "curious requester or listed hospital has: all sums, all lists, its own updates; `own` takes the others to move "
    "as itself does, `fitted` lets the sums decide how far that is true. `true`: in addition how each hospital's own "
    "updates moved, to the last digit, which is more than knowing its batches; nobody has that, and a limit should "
    "hold against it."
)


@dataclass(frozen=True)
class SumsPage:
    """Runs, attacks and writes; see :class:`harness.papers.build.PageSpec`."""

    name: str
    title: str
    studies: Path

    def run_missing(self, making: Making) -> None:
        """Every attacked run that is not there yet; one process. Raises: ConfigurationError"""
        for data in sorted({attacked.data(self.studies) for attacked in (*SHIPPED, *LINEAR)}):
            making.get_data(data)
        run_missing(self.studies, making.runs, making.data, making.tell)

    def write_page(self, runs: Path, out: Path, data: Path | None) -> Path:
        """The page from the recorded lines. Returns the file."""
        page = Page(out / f"{self.name}.md", self.title)
        write(page, recorded(runs))
        page.write()
        return page.path


def write(page: Page, lines: Sequence[AttackLine]) -> None:
    """Everything; without lines it says so."""
    page.text(_INTRODUCTION)
    page.heading("The figures")
    page.text(_FIGURES)
    if not lines:
        page.text("**Not run yet:** 0 runs.")
        return
    page.heading("Every shipped study, before and after")
    _shipped(page, lines)
    page.heading("What helps, and what it costs")
    for attacked in LINEAR:
        _remedies(page, attacked, lines)
    page.text(_LESSONS)
    page.heading("Attacks on the memory")
    _memory(page)
    page.heading("Error by site and round")
    _figures(page, lines)
    _by_site(page, lines)
    page.heading("How this page was made")
    _made(page, lines)


_LESSONS: Final = (
    "What the tables say:\n\n"
    "- **Full batches with lists that change a little every round give everything away**: errors of a few per cent "
    "for a requester that only kept its sums, .1 to 1 % for one who knows how the others move.\n"
    "- **A list that never changes, with everybody needed, gives away no more than the average.** It costs what "
    "Weight Erosion gains. A list kept for five rounds over full batches delays the attack and does not stop it.\n"
    "- **Fresh small batches** help more than anything else, as long as the rounds are fewer than the model has "
    "directions to move in. Beyond, isolation falls: for linear models of 10 features before round 10, of 30 features "
    "after 10 to 15 rounds.\n"
    "- **Local SGD** stops the attack with what a requester has, but isolation stays far below the limit for linear "
    "models: an epoch averages the batches away, so that whoever knew how the updates move would know them.\n"
    "- **Noise on whole updates** was tried, and is not built in: at these clip norms a tenth of the norm is as long "
    "as the updates themselves or longer. What it costs is in the accuracy. Noise that covers single records is "
    "another matter ([protocol, section 19](../protocol.md)).\n"
    "- **A sum that may do without a site is a list that changes.** With `least_contributors` below the number of "
    "contributors an absent site makes two sums whose difference is its own update; isolation counts every sum that "
    "an announcement admits, so shipped studies need all contributors in every sum.\n"
    "- **Isolation has a blind spot.** It takes everybody's updates to move as the site's own do. Where they move "
    "differently and somebody knows how, sums of fixed weights can be told apart too: Titanic's batches, cut once and "
    "cycled with another period at each site, are known to .035 under FedAvg by whoever knows every site's batches. "
    "Batches must be a site's own secret, drawn afresh.\n"
    "- **Nothing here hides what all hospitals have in common.** Where they are alike, the average itself is close to "
    "each of them (errors of .2 to .4 in first rounds)."
)


def _memory(page: Page) -> None:
    """Deterministic and quick, so they are made with the page."""
    page.text(
        "A malicious requester asks for two or more sums whose difference is one hospital's update, and hides that "
        "behind something that used to make the hospitals' memory forget. Seven hospitals, linear regression on full "
        "batches, the smoothest updates there are; the error is that of the update that is known best in the end, by "
        "whoever knows how updates move."
    )
    rows = [(one.name, one.says, number(one.error(0.0)), number(one.error(LIMIT))) for one in ATTACKS]
    page.table(("attack", "what the requester does", "error without a limit", f"with a limit of {LIMIT:g}"), rows)


def _shipped(page: Page, lines: Sequence[AttackLine]) -> None:
    columns = (
        "study", "setting", "sums", "lists", "least isolation", "average", "requester: best of own, fitted",
        "requester: true", "listed site: true", "requester and one site: true", "accuracy",
    )  # fmt: skip
    rows = []
    for attacked in SHIPPED:
        for setting in attacked.settings:
            found = of(lines, attacked.key, setting.name)
            if found:
                rows.append((attacked.title, setting.name, *_cells(found)))
    page.table(columns, rows)
    page.text(
        "*before*: as the study was shipped, and no limit on isolation. *now*: as it is shipped, at the sites' default "
        "limit or a higher one (HAR: 0.25, since sites there weigh themselves and a site cannot know how little the "
        "others count; its "
        "FedAvg had a least number of 3 before, with the same sums). "
        "Studies without *now* repeat a paper's settings, with the sites' policy switched off: they run in simulation "
        "only, and by their own figure, above, no site would take part in them."
    )


def _remedies(page: Page, attacked: Attacked, lines: Sequence[AttackLine]) -> None:
    page.text(f"**{attacked.title[0].upper()}{attacked.title[1:]}**, Weight Erosion, all contributors needed:")
    base = {(line.requester, line.seed): line for line in of(lines, attacked.key, attacked.settings[0].name)}
    rows = []
    for setting in attacked.settings:
        found = of(lines, attacked.key, setting.name)
        if found:
            gains = [
                line.test_accuracy - base[line.requester, line.seed].test_accuracy
                for line in found
                if (line.requester, line.seed) in base
            ]
            rows.append((setting.name, *_cells(found)[:6], _signed(gains), _ended(found)))
    columns = (
        "setting", "sums", "lists", "least isolation", "average", "requester: best of own, fitted", "requester: true",
        "accuracy against the first row", "ended by isolation",
    )  # fmt: skip
    page.table(columns, rows)


def _cells(lines: Sequence[AttackLine]) -> tuple[str, ...]:
    """Sums, lists, least isolation, four errors, accuracy."""
    isolation = [line.least_isolation for line in lines if line.least_isolation is not None]
    return (
        f"{mean(len(line.rounds) for line in lines):.0f}",
        f"{mean(line.lists for line in lines):.0f}",
        number(min(isolation)) if isolation else "",
        _error(lines, lambda line: _worst(line, [(line.requester,)], [Prior.AVERAGE])),
        _error(lines, lambda line: _worst(line, [(line.requester,)], [Prior.OWN, Prior.FITTED])),
        _error(lines, lambda line: _worst(line, [(line.requester,)], [Prior.TRUE])),
        _error(lines, lambda line: _worst(line, [(site,) for site in line.weight], [Prior.TRUE])),
        _error(lines, lambda line: _worst(line, [(line.requester, site) for site in line.weight], [Prior.TRUE])),
        str(Spread.of(line.test_accuracy for line in lines)),
    )


def _error(lines: Sequence[AttackLine], worst: Callable[[AttackLine], float | None]) -> str:
    found = [error for line in lines if (error := worst(line)) is not None]
    return number(mean(found)) if found else ""


def _worst(line: AttackLine, parties: Iterable[tuple[str, ...]], priors: Iterable[Prior]) -> float | None:
    """The middle round's error of the site that is known best, by whichever party and prior does best."""
    found = [
        median
        for party in parties
        for prior in priors
        if (one := line.by(party, prior)) is not None
        for site in one.errors
        if (median := one.median(site)) is not None
    ]
    return min(found, default=None)


def _signed(gains: Sequence[float]) -> str:
    spread = Spread.of(gains) if gains else None
    if spread is None:
        return ""
    return f"{spread.mean:+.3f}" if spread.error is None else f"{spread.mean:+.3f} ± {spread.error:.3f}"


def _ended(lines: Sequence[AttackLine]) -> str:
    return f"{sum(line.ended_by is Clause.ISOLATION for line in lines)} of {len(lines)}"


def _figures(page: Page, lines: Sequence[AttackLine]) -> None:
    panels = []
    for key, setting, title in _CURVES:
        found = of(lines, key, setting)
        if found:
            panels.append(Panel(title, tuple(curve(prior.value, _series(found, prior)) for prior in Prior)))
    if panels:
        caption = (
            "The requester's error for the site that it knows best in each round, mean and standard error over seeds "
            "and requesters; cut at 1.5."
        )
        page.figure("errors", curves_chart(panels, "relative error", floor=0.0), caption)


def _series(lines: Sequence[AttackLine], prior: Prior) -> list[Values]:
    found = []
    for line in lines:
        one = line.by((line.requester,), prior)
        if one is not None:
            columns = zip(*one.errors.values(), strict=True)
            least = (min((error for error in column if error is not None), default=None) for column in columns)
            found.append(tuple(None if error is None else min(error, 1.5) for error in least))
    return found


def _by_site(page: Page, lines: Sequence[AttackLine]) -> None:
    """One seed's errors by site and round, for the requester with what it has and with the true covariances."""
    for key, setting, name, title in _HEAT:
        found = of(lines, key, setting)
        if not found:
            continue
        line = found[0]
        rows, labels = [], []
        for prior in (Prior.AVERAGE, Prior.FITTED, Prior.TRUE):
            one = line.by((line.requester,), prior)
            for site, errors in {} if one is None else one.errors.items():
                rows.append([np.nan if error is None else min(error, 1.0) for error in errors])
                labels.append(f"{site}, {prior.value}")
        chart = heatmap_chart(np.array(rows), labels, [str(number) for number in line.rounds], "relative error")
        page.figure(name, chart, f"{title}: error by site and round, seed {line.seed}, requester {line.requester}.")


def _made(page: Page, lines: Sequence[AttackLine]) -> None:
    versions = sorted({f"{name} {version}" for line in lines for name, version in line.versions.items()})
    hours = sum(line.seconds for line in lines) / 3600
    page.text(
        "```sh\nmoiety results --only sums --data DATA\n"
        "moiety attack reconstruction harness/studies/heart_disease.toml --data DATA --only weight_erosion\n```\n\n"
        f"{len(lines)} runs, plain (a protected run opens the same sums, rounded), {hours:.1f} hours of one core; "
        f"every error by party, prior, site and round is in `results-out/privacy/attacks.jsonl`. The limit is "
        f"{LIMIT:g} where a setting says so. {', '.join(versions)}."
    )
