"""The tables and plots about attacks, from their lines: by page, the file's name and what goes into it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any, Final

import numpy as np
from scipy.stats import spearmanr

from harness.adversaries.attacked_study import AS_IT_IS
from harness.adversaries.differencing import DifferencedLine
from harness.adversaries.distances import LocatingLine
from harness.adversaries.falsified_round import Question, most_bits
from harness.adversaries.inference import InferenceLine, guessed
from harness.adversaries.inversion import How, InversionLine, Inverted
from harness.adversaries.inversion_targets import TARGETS, Target
from harness.adversaries.leak import Asked, Leaked, LeakLine, leaked
from harness.adversaries.lies import LyingLine
from harness.adversaries.membership import MemorisedLine, Told, by_shadows
from harness.adversaries.memory_attacks import ATTACKS
from harness.adversaries.poisoning import Poison, PoisonedLine
from harness.adversaries.reconstruction import AttackLine, Prior
from harness.papers import recipes as made
from harness.papers.plots import Series, curve_rows, heat_rows
from harness.papers.recipes import ALONE, Recipe, canary_shares, case_of, lies_of, recipes, settings_of
from harness.papers.scores import Scores, Table, shown, spread_of
from harness.papers.simulated import Found, lines_of, noised, told_cell
from harness.simulate.charts import Spread, curve, number
from harness.simulate.run_line import Values
from harness.simulate.store import read_lines
from protocol.errors import Clause
from protocol.policy.clauses import TIMES_LEFT_OUT

LIMIT: Final = 0.5
"""The least isolation of the settings that name one, and of the attacks on the memory."""
_WITH_WHAT_IT_HAS: Final = (Prior.OWN, Prior.FITTED)
_STUDIES: Final = {
    "breast-cancer": "breast cancer (demo), Weight Erosion",
    "breast-cancer-fedavg": "breast cancer (demo), FedAvg",
    "digits-demo": "digits, 5 sites (demo), Weight Erosion",
    "digits": "digits, 10 sites, Weight Erosion",
    "heart-disease": "heart disease, Weight Erosion",
    "heart-disease-fedavg": "heart disease, FedAvg",
    "titanic-strict": "Titanic by age, Weight Erosion",
    "titanic-strict-fedavg": "Titanic by age, FedAvg",
    "titanic-some": "Titanic, two alike, Weight Erosion",
    "har-fedavg": "HAR, 8 sites, FedAvg (15 rounds)",
    "har-wfedavg": "HAR, 8 sites, WFedAvg (15 rounds)",
    "mnist-b-10": "MNIST B, 10 sites, Weight Erosion (2 rounds)",
}
_CURVES: Final = (
    ("remedies-titanic", "full batches", "Titanic by age: slow lists over full batches"),
    (
        "remedies-titanic",
        "limit 0.5, fresh batches of 16, 10 rounds, list kept 5",
        "the same at limit 0.5, fresh batches",
    ),
    ("breast-cancer", "before", "breast cancer (demo), before"),
    ("breast-cancer", "now", "breast cancer (demo), now"),
)  # fmt: skip
_HEAT: Final = {
    "demo_before": ("breast-cancer", "before"),
    "demo_now": ("breast-cancer", "now"),
    "full_batches": ("remedies-titanic", "full batches"),
}


def sums(runs: Path, data: Path | None) -> Found:
    """Tables of what everybody can work out about everybody's updates from sums, before and after."""
    lines = read_lines(runs / made.ATTACKED, AttackLine)
    recipe = recipes()["sums"]
    heads = ("sums", "lists", "least isolation", "average", "requester: best of own, fitted", "requester: true")
    table: Table = [("study", "setting", *heads, "listed site: true", "requester and one site: true", "accuracy")]
    for asked in recipe["attacked"]:
        if asked.get("remedies"):
            name = asked["key"].replace("-", "_")
            last = ("accuracy against the first row", "ended by isolation")
            yield f"sums_{name}", [("setting", *heads, *last), *_remedies(recipe, asked, lines)]
            continue
        for setting in settings_of(recipe, asked):
            found = _attacked(lines, asked["key"], setting.name)
            if found:
                table.append((_STUDIES[asked["key"]], setting.name, *_attack_cells(found)))
    yield "sums_shipped", table
    yield (
        "sums_memory",
        [
            ("attack", "what the requester does", "error without a limit", f"with a limit of {LIMIT:g}"),
            *((one.name, one.says, number(one.error(0.0)), number(one.error(LIMIT))) for one in ATTACKS),
        ],
    )
    yield (
        "plots/sums_errors",
        curve_rows(
            {
                (title, prior.value): curve("", _least_by_round(_attacked(lines, key, named), prior))
                for key, named, title in _CURVES
                for prior in Prior
            }
        ),
    )
    for name, (key, named) in _HEAT.items():
        yield f"plots/sums_{name}", _errors_by_site(_attacked(lines, key, named)[0])


def _attacked(lines: Sequence[AttackLine], key: str, setting: str) -> list[AttackLine]:
    return [line for line in lines if (line.study, line.setting) == (key, setting)]


def _remedies(recipe: Recipe, asked: Recipe, lines: Sequence[AttackLine]) -> Table:
    settings = settings_of(recipe, asked)
    base = {(one.requester, one.seed): one.test_accuracy for one in _attacked(lines, asked["key"], settings[0].name)}
    rows: Table = []
    for setting in settings:
        found = _attacked(lines, asked["key"], setting.name)
        if found:
            pairs = [(line.test_accuracy, base.get((line.requester, line.seed))) for line in found]
            gain = spread_of([own - first for own, first in pairs if first is not None])
            ended = f"{sum(line.ended_by is Clause.ISOLATION for line in found)} of {len(found)}"
            rows.append((setting.name, *_attack_cells(found)[:6], _plus(gain, ".3f"), ended))
    return rows


def _plus(spread: Spread | None, form: str) -> str:
    """+0.012 ± 0.003"""
    if spread is None:
        return ""
    return f"{spread.mean:+{form}}" + ("" if spread.error is None else f" ± {spread.error:{form}}")


def _attack_cells(lines: Sequence[AttackLine]) -> tuple[str, ...]:
    """Sums, lists, least isolation, five errors, accuracy."""
    isolation = [line.least_isolation for line in lines if line.least_isolation is not None]

    def error(parties: Callable[[AttackLine], Iterable[tuple[str, ...]]], priors: Sequence[Prior]) -> str:
        found = [least for line in lines if (least := middle_error(line, parties(line), priors)) is not None]
        return number(mean(found)) if found else ""

    return (
        f"{mean(len(line.rounds) for line in lines):.0f}",
        f"{mean(line.lists for line in lines):.0f}",
        number(min(isolation)) if isolation else "",
        error(lambda line: [(line.requester,)], [Prior.AVERAGE]),
        error(lambda line: [(line.requester,)], _WITH_WHAT_IT_HAS),
        error(lambda line: [(line.requester,)], [Prior.TRUE]),
        error(lambda line: [(site,) for site in line.weight], [Prior.TRUE]),
        error(lambda line: [(line.requester, site) for site in line.weight], [Prior.TRUE]),
        str(Spread.of(line.test_accuracy for line in lines)),
    )


def middle_error(line: AttackLine, parties: Iterable[tuple[str, ...]], priors: Sequence[Prior]) -> float | None:
    """The middle round's error of the site that is known best, by whichever party and prior does best."""
    tried = [one for party in parties for prior in priors if (one := line.by(party, prior)) is not None]
    found = [error for one in tried for site in one.errors if (error := one.median(site)) is not None]
    return min(found, default=None)


def _least_by_round(lines: Sequence[AttackLine], prior: Prior) -> list[Values]:
    """Return, by run, the requester's error for the site that it knows best in each round, cut at 1.5."""
    found: list[Values] = []
    for line in lines:
        one = line.by((line.requester,), prior)
        if one is not None:
            columns = zip(*one.errors.values(), strict=True)
            least = (min((error for error in column if error is not None), default=None) for column in columns)
            found.append(tuple(None if error is None else min(error, 1.5) for error in least))
    return found


def _errors_by_site(line: AttackLine) -> Series:
    """One run's errors, for the requester with what it has and with the true covariances."""
    rows: dict[str, list[float]] = {}
    for prior in (Prior.AVERAGE, Prior.FITTED, Prior.TRUE):
        one = line.by((line.requester,), prior)
        for site, errors in {} if one is None else one.errors.items():
            rows[f"{site}, {prior.value}"] = [math.nan if error is None else min(error, 1.0) for error in errors]
    return heat_rows(list(rows), [str(place) for place in line.rounds], list(rows.values()))


_ASKED: Final = {
    Question.NORM: "is its norm above a number (FedAvg with a norm bound)",
    Question.PROJECTION: "is a random projection of it below a number (any rule, nothing opened)",
    Question.GAP: "is a gap between multi-Krum's scores above a number",
}


def leak(runs: Path, data: Path | None) -> Found:
    """Tables of what a server that falsifies products reads from who stays in the sum."""
    lines = read_lines(runs / made.LEAKED, LeakLine)
    lengths = recipes()["leak"]["leaked"]["rounds"]
    clause: Table = [("question", "bits", "rounds asked in", "failed checks", "bits without the clause")]
    length: Table = [("question", *(f"{rounds} rounds" for rounds in lengths))]
    canaries: Table = [("question", "canaries", "bits before it is caught", "studies in which it is", "expected")]
    for question, words in _ASKED.items():
        found, without = leaked(lines, Asked(question)), leaked(lines, Asked(question, clause=False))
        counts = ("", "") if found is None else (f"{found.asked:.1f}", f"{found.failed:.1f}")
        clause.append((words, _bits(found), *counts, _bits(without)))
        length.append((words, *(_bits(leaked(lines, Asked(question, rounds=rounds))) for rounds in lengths)))
        for share in canary_shares():
            asked = f"1 of {1 / share:.0f}" if share else "none"
            canaries.append((words, asked, *_caught(lines, question, share)))
    length.append(("at most, with the clause", *(f"{most_bits(rounds, TIMES_LEFT_OUT):.1f}" for rounds in lengths)))
    yield "leak_clause", clause
    yield "leak_length", length
    yield "leak_canaries", canaries


def _caught(lines: Sequence[LeakLine], question: Question, share: float) -> tuple[str, str, str]:
    """Bits, how often the server was caught, and how often it would be if every question showed."""
    found = leaked(lines, Asked(question, canaries=share))
    without = None if found is None else leaked(lines, Asked(question), found.failures)
    if found is None or without is None:
        return "not run", "", ""
    expected = found.seeds * (1 - (1 - share) ** without.asked)
    return str(found), f"{found.caught} of {found.seeds}", f"{expected:.0f} of {found.seeds}"


def _bits(found: Leaked | None) -> str:
    return "not run" if found is None else str(found)


_WATCHED: Final = {
    "breast_cancer": "breast cancer, 5 sites, linear",
    "heart_disease": "heart disease, 4 hospitals, linear",
    "poisoning": "digits, 10 sites, linear",
    "digits": "digits, 10 sites, network",
}
_DIFFERENCED: Final = {
    "heart_disease": "heart disease, 4 hospitals, linear",
    "poisoning": "digits, 10 sites that differ",
    "poisoning_alike": "digits, 10 sites that are alike",
}
_MEMORISED: Final = {
    "linear_fedavg": "linear, FedAvg",
    "small_fedavg": "small, FedAvg",
    "small_noise_1": "small, FedAvg, noise 1",
    "small_noise_4": "small, FedAvg, noise 4",
    "large_fedavg": "large, FedAvg",
    "large_weight_erosion": "large, Weight Erosion",
    "large_mallows": "large, Mallows",
}
_BOUNDS: Final = {"noise_heart": "heart disease, four hospitals", "noise_mnist": "MNIST, ten sites"}


def privacy(runs: Path, data: Path | None) -> Found:
    """Records, membership, class mix and updates, by whoever could ask."""
    inverted = read_lines(runs / made.INVERTED, InversionLine)
    plain = [target for target in TARGETS if target.privacy is None]
    noisy = [target for target in TARGETS if target.privacy is not None]
    yield "privacy_records_exact", _records(inverted, plain, lambda one: number(one.exact))
    yield "privacy_records_close", _records(inverted, plain, lambda one: number(one.close))
    yield "privacy_records_quality", _records(inverted, [one for one in plain if one.is_image], _quality)
    yield "privacy_records_noised", _records(inverted, noisy, lambda one: number(one.close))
    yield "plots/privacy_records", _records_by_size(inverted, plain)
    watched = read_lines(runs / made.WATCHED, InferenceLine)
    membership: Table = [("study", "rule", "rounds", "loss", "reference", "averages")]
    heads = ("from distances: explained", "ranked", "from weights: explained", "ranked")
    mix: Table = [("study", "rule", "sites", *heads)]
    for asked in recipes()["privacy"]["watched"]:
        name = case_of(asked["case"]).name
        for variant in asked["variants"]:
            found = [line for line in watched if (line.study, line.variant) == (name, variant)]
            first = (_WATCHED[asked["case"]], variant)
            told = (told_cell([getattr(one, by) for one in found]) for by in ("by_loss", "by_reference", "by_averages"))
            membership.append((*first, f"{mean(line.released for line in found):.0f}", *told))
            mix.append((*first, str(len(found)), *_class_mix(found)))
    yield "privacy_membership", membership
    yield "privacy_class_mix", mix
    memorised = read_lines(runs / made.MEMORISED, MemorisedLine)
    yield "privacy_memorised", _memorised(memorised)
    yield "plots/privacy_membership", _membership_by_round(memorised)
    differenced = read_lines(runs / made.DIFFERENCED, DifferencedLine)
    attacked = [line for line in read_lines(runs / made.ATTACKED, AttackLine) if not line.setting.startswith("noise")]
    whole = [point for line in attacked if (point := whole_study(line)) is not None]
    yield "privacy_differenced", _differenced(differenced)
    yield "privacy_agreement", _agreements(differenced, whole)
    axis = "error achieved"
    yield (
        "plots/privacy_differencing",
        [
            (panel, axis, min(one.predicted, 1.2), min(getattr(one, error), 1.2), one.variant, one.setting)
            for panel, error in ((_BEST, "achieved"), (_TRUE, "true"))
            for one in differenced
        ],
    )
    yield (
        "plots/privacy_isolation",
        [
            (panel, up, min(one.predicted, 1.2), min(getattr(one, error), 1.2), one.rule, "")
            for panel, up, error in (
                (_BEST, "least error", "best"),
                (_TRUE, "least error", "true"),
                (_TRUE, "over the average's error", "over_average"),
            )
            for one in whole
        ],
    )
    epsilons = ("none", "clipped", "8", "1")
    rows = [
        (title, *(shown(Scores(lines_of(runs, case)).over_requesters(noised("fedavg", e)), "-") for e in epsilons))
        for case, title in _BOUNDS.items()
    ]
    yield "privacy_bound_cost", [("data", "none", "clipped", "epsilon 8", "epsilon 1"), *rows]


def _records(lines: Sequence[InversionLine], targets: Sequence[Target], cell: Callable[[Inverted], str]) -> Table:
    """Make, by model and batch, a column for every number of sites: rows / descent / guess."""
    asked = recipes()["privacy"]["inverted"]
    table: Table = [("data and model", "batch", *(f"{sites} site{'s' * (sites > 1)}" for sites in asked["sites"]))]
    for target in targets:
        for batch in asked["batches"]:
            cells = []
            for sites in asked["sites"]:
                of = [one for one in lines if (one.target, one.sites, one.batch) == (target.key, sites, batch)]
                each = (cell(averaged([line.by(how) for line in of])) for how in How) if of else ("not run",)
                cells.append(" / ".join(each))
            table.append((target.title, str(batch), *cells))
    return table


def averaged(found: Sequence[Inverted]) -> Inverted:
    """The mean over seeds. Requires: one at least"""
    first = found[0]
    return first.model_copy(
        update={
            "exact": mean(one.exact for one in found),
            "close": mean(one.close for one in found),
            "noise": None if first.noise is None else mean(one.noise or 0.0 for one in found),
            "alike": None if first.alike is None else mean(one.alike or 0.0 for one in found),
        }
    )


def _quality(found: Inverted) -> str:
    if not found.candidates or found.noise is None or found.alike is None:
        return "-"
    return f"{found.noise:.1f} ({number(found.alike, 2)})"


def _records_by_size(lines: Sequence[InversionLine], targets: Sequence[Target]) -> Series:
    """Shares read closely, by the number of records in the sum."""
    names = {How.ANALYTIC: "rows", How.OPTIMISED: "descent", How.GUESSED: "guess"}
    rows: Series = []
    for target in targets:
        of = [line for line in lines if line.target == target.key]
        for how, name in names.items():
            for size in sorted({line.sites * line.batch for line in of}):
                spread = Spread.of(line.by(how).close for line in of if line.sites * line.batch == size)
                rows.append((target.title, name, size, spread.mean, spread.error))
    return rows


def _class_mix(lines: Sequence[InferenceLine]) -> list[str]:
    cells: list[str] = []
    for what in ("distance", "weight"):
        found = guessed(lines, what)
        cells += ["nothing to see", ""] if found is None else [f"{found.explained:.2f}", f"{found.ranked:+.2f}"]
    return cells


def _memorised(lines: Sequence[MemorisedLine]) -> Table:
    """A row per model and rule."""
    heads = ("model", "parameters", "epsilon", "rounds", "accuracy on members", "on others", "last model: by loss")
    table: Table = [(*heads, "by shadows", "averages: best round", "all rounds")]
    for variant, name in _MEMORISED.items():
        of = [line for line in lines if line.variant == variant]
        if of:
            epsilons = [value for line in of for value in line.epsilon.values()]
            table.append(
                (
                    name,
                    f"{of[0].parameters:,}",
                    f"{min(epsilons):.3g} to {max(epsilons):.3g}" if epsilons else "none",
                    f"{mean(line.released for line in of):.0f}",
                    str(Spread.of(line.known for line in of)),
                    str(Spread.of(line.unknown for line in of)),
                    told_cell([line.by_loss[-1] for line in of], "not run"),
                    told_cell(shadowed(of), "not run"),
                    told_cell(best_round(of), "not run"),
                    told_cell([line.by_averages for line in of], "not run"),
                )
            )
    return table


def shadowed(lines: Sequence[MemorisedLine]) -> tuple[Told, ...]:
    """Every seed attacked with the others as shadows; nothing where there are fewer than three."""
    if len(lines) < 3:
        return ()
    return by_shadows([np.array(one.confidence) for one in lines], [np.array(one.members) for one in lines])


def best_round(lines: Sequence[MemorisedLine]) -> list[Told]:
    """Return, of the opened averages that all seeds have, the one that tells most in the mean."""
    shared = min(len(line.by_average) for line in lines)
    means = [np.mean([line.by_average[place].auc for line in lines]) for place in range(shared)]
    return [line.by_average[int(np.argmax(means))] for line in lines] if shared else []


def _membership_by_round(lines: Sequence[MemorisedLine]) -> Series:
    panels = {"the model after every round, by loss": "by_loss", "every opened average": "by_average"}
    return curve_rows(
        {
            (panel, name): curve("", [tuple(one.auc for one in getattr(line, by)) for line in of])
            for panel, by in panels.items()
            for variant, name in _MEMORISED.items()
            if (of := [line for line in lines if line.variant == variant])
        }
    )


_BEST: Final = "best, with what a requester has"
_TRUE: Final = "knowing how updates move (true)"


def _differenced(lines: Sequence[DifferencedLine]) -> Table:
    table: Table = [("data", "rule", "updates", "predicted", "difference", "best", "true")]
    for asked in recipes()["privacy"]["differenced"]:
        name = case_of(asked["case"]).name
        for rule in asked["rules"]:
            for batch in recipes()["privacy"]["batches"]:
                of = [one for one in lines if (one.study, one.variant, one.setting) == (name, rule, batch)]
                means = [
                    shown(spread_of([getattr(one, what) for one in of]), "not run")
                    for what in ("predicted", "difference", "achieved", "true")
                ]
                table.append((_DIFFERENCED[asked["case"]], rule, batch, *means))
    return table


@dataclass(frozen=True)
class WholeStudy:
    """One study's least isolation at its last sum, and the least errors of a requester."""

    rule: str
    predicted: float
    best: float
    true: float
    average: float

    @property
    def over_average(self) -> float:
        """The error of who knows how updates move, over the error that the average alone leaves."""
        return self.true / self.average


def whole_study(line: AttackLine) -> WholeStudy | None:
    """None where nothing was opened or no isolation worked out."""
    last = line.rounds[-1] - 1 if line.rounds else 0
    isolation = [value for one in line.isolation.values() if last < len(one) and (value := one[last]) is not None]
    asked = ((Prior.AVERAGE, *_WITH_WHAT_IT_HAS), (Prior.TRUE,), (Prior.AVERAGE,))
    best, true, average = (_least(line, priors) for priors in asked)
    if not line.rounds or not isolation or best is None or true is None or average is None:
        return None
    return WholeStudy(line.rule, min(isolation), best, true, average)


def _least(line: AttackLine, priors: Iterable[Prior]) -> float | None:
    """The smallest error of any site's update in any round, by the requester alone."""
    tried = [one for prior in priors if (one := line.by((line.requester,), prior)) is not None]
    return min((least for one in tried for site in one.errors if (least := one.least(site)) is not None), default=None)


def _agreements(lines: Sequence[DifferencedLine], whole: Sequence[WholeStudy]) -> Table:
    asked = {
        "two sums: best": [(one.predicted, one.achieved, one.average) for one in lines],
        "two sums: true": [(one.predicted, one.true, one.average) for one in lines],
        "whole studies: best of own, fitted": [(one.predicted, one.best, one.average) for one in whole],
        "whole studies: true": [(one.predicted, one.true, one.average) for one in whole],
    }
    heads = ("runs and attacker", "runs", "ranked", "held", "held, or average", "worst")
    return [heads, *((title, *agreement(runs)) for title, runs in asked.items())]


def agreement(runs: Iterable[tuple[float, float, float]]) -> tuple[str, ...]:
    """Compare prediction, error and the average's error: the number of runs; Spearman's correlation ("-" where
    either is one number); how often the error was no smaller than predicted (to a tenth); how often it was that or no
    smaller than the average's alone, which needs no attack; how far below the prediction it was at worst.
    """
    values = np.array([run for run in runs if not np.isnan(run).any()])
    if len(values) < 3:
        return ("not run", "", "", "", "")
    predicted, achieved, average = values.T
    held = achieved >= 0.9 * predicted
    either = held | (achieved >= 0.9 * average)
    constant = np.ptp(predicted) == 0 or np.ptp(achieved) == 0
    ranked = "-" if constant else f"{float(spearmanr(predicted, achieved).statistic):+.2f}"
    shares = (number(float(held.mean())), number(float(either.mean())))
    return str(len(values)), ranked, *shares, f"{float(np.min(achieved - predicted)):+.2f}"


_SITES: Final = 10
_POISONED: Final = {"poisoning": "differ", "poisoning_alike": "alike"}


def robustness(runs: Path, data: Path | None) -> Found:
    """Tables of what sites that poison or lie can do, and how well opened distances locate an update."""
    recipe = recipes()["robustness"]
    poisoned = read_lines(runs / made.POISONED, PoisonedLine)
    for case, title in _POISONED.items():
        name = case_of(case).name
        yield from _poisoning(case, f"robustness_{title}", [line for line in poisoned if line.study == name], recipe)
    lying = read_lines(runs / made.LYING, LyingLine)
    for asked in recipe["lying"]:
        name = case_of(asked["case"]).name
        yield from _lies(recipe, asked, [line for line in lying if line.study == name])
    yield "robustness_distances", _distances(recipe, read_lines(runs / made.LOCATED, LocatingLine))


def _poisoning(case: str, name: str, lines: Sequence[PoisonedLine], recipe: Recipe) -> Found:
    """One data set under every rule."""
    plain = [line for line in lines if line.protection == "plain"]
    rules = [rule for rule in dict.fromkeys(line.variant for line in plain) if rule != ALONE]
    numbers = recipe["poisoners"]
    shares = [f"{100 * count // _SITES} %" for count in numbers]

    def of(rule: str, count: int, poison: Poison | None) -> list[PoisonedLine]:
        return [one for one in plain if (one.variant, one.poisoners, one.poison) == (rule, count, poison)]

    nobody = [_accuracy(of(rule, 0, None)) for rule in rules]
    worst: Table = [("rule", "nobody", *shares)]
    for rule, honest in zip(rules, nobody, strict=True):
        cells = []
        for count in numbers:
            means = {p: Spread.of(one.accuracy for one in some) for p in Poison if (some := of(rule, count, p))}
            least = min(means, key=lambda poison: means[poison].mean, default=None)
            cells.append("not run" if least is None else f"{means[least]} ({least.value})")
        worst.append((rule, honest, *cells))
    yield f"{name}_worst", worst
    matrix: Series = []
    for count, share in zip(numbers, shares, strict=True):
        rows = [(poison.value, *(_accuracy(of(rule, count, poison)) for rule in rules)) for poison in Poison]
        yield f"{name}_{count}", [("poison", *rules), ("nobody", *nobody), *rows]
        matrix += [
            (f"{share} of sites", poison.value, rule, mean(one.accuracy for one in some))
            for poison in Poison
            for rule in rules
            if (some := of(rule, count, poison))
        ]
    yield f"plots/robustness_{case}_matrix", matrix
    weights = [
        [[one.weight for one in plain if (one.variant, one.poisoners) == (r, n)] for r in rules] for n in numbers
    ]
    turned = [[[one.triggered for one in of(rule, n, Poison.TRIGGER)] for rule in rules] for n in numbers]
    counts = [f"{count} of {_SITES}" for count in numbers]
    honest_turned = [[one.triggered for one in of(rule, 0, None)] for rule in rules]
    yield f"{name}_weights", _means(("poisoners", *rules), dict(zip(counts, weights, strict=True)))
    triggered = {"nobody": honest_turned, **dict(zip(counts, turned, strict=True))}
    yield f"{name}_backdoors", _means(("poisoners", *rules), triggered)
    twins = {(one.variant, one.poison, one.poisoners, one.seed): one for one in plain}
    checked = [
        (twins.get((one.variant, one.poison, one.poisoners, one.seed)), one)
        for one in lines
        if one.protection == "secure" and one.poison is not None
    ]
    yield (
        f"{name}_secure",
        [
            ("study", "accuracy, plain", "secure", "log-loss, plain", "secure"),
            *(
                (
                    f"{line.variant}, {line.poison}, {line.poisoners} of {_SITES}",
                    *(
                        f"{value:.4f}"
                        for what in ("accuracy", "log_loss")
                        for value in (getattr(twin, what), getattr(line, what))
                    ),
                )
                for twin, line in checked
                if twin is not None
            ),
        ],
    )


def _accuracy(lines: Sequence[PoisonedLine]) -> str:
    """And how many seeds went on alone."""
    alone = sum(line.end != "completed" for line in lines)
    return shown(spread_of([one.accuracy for one in lines]), "not run") + (f" ({alone} alone)" if alone else "")


def _means(heads: tuple[str, ...], rows: Mapping[str, Sequence[Sequence[float]]]) -> Table:
    return [heads, *((name, *(shown(spread_of(of), "not run") for of in cells)) for name, cells in rows.items())]


_RULES: Final = {
    "fedavg": "FedAvg",
    "multi_krum": "multi-Krum",
    "weight_erosion": "Weight Erosion",
    "mallows": "Mallows, plug-in",
    "mallows_raw": "Mallows, raw",
    "mallows_policy": "Mallows, plug-in, default policy",
}


def _lies(recipe: Recipe, asked: Recipe, lines: Sequence[LyingLine]) -> Found:
    """The liars' share, how far the model was moved against the way that it went, what it cost, and after a finish."""
    name, lies = f"robustness_{asked['case']}", lies_of(asked)

    def table(rules: Sequence[str], columns: Sequence[Any], setting: str, cell: Callable[[Any], str]) -> Table:
        rows: Table = [("rule", *("honest" if lie is None else lie.value for lie in columns))]
        for rule in rules:
            key = (setting, rule)
            found = [[one for one in lines if (one.setting, one.variant, one.lie) == (*key, lie)] for lie in columns]
            rows.append((_RULES[rule], *(cell(of) if of else "-" for of in found)))
        return rows

    rules, finished = recipe["rules"], recipe["finished"]
    after = (None, *(lie for lie in lies if lie.value in finished["lies"]))
    as_it_is = AS_IT_IS.name
    yield f"{name}_share", table(rules, (None, *lies), as_it_is, lambda of: f"{mean(one.weight for one in of):.2f}")
    yield f"{name}_moved", table(rules, lies, as_it_is, lambda of: f"{median(one.moved / one.path for one in of):.2f}")
    yield f"{name}_cost", table(rules, lies, as_it_is, lambda of: _cost(Spread.of(one.harm for one in of)))
    yield f"{name}_finished", table(finished["rules"], after, "finished", _log_loss)


def _log_loss(lines: Sequence[LyingLine]) -> str:
    return str(Spread.of(one.log_loss for one in lines))


def _cost(spread: Spread) -> str:
    return f"{spread.mean:+.2g}" + ("" if spread.error is None else f" ± {spread.error:.2g}")


_LOCATED: Final = {
    "heart-full": "heart disease, full batches, 30 rounds",
    "heart-tenth": "the same, every tenth round",
    "heart-fresh": "heart disease, fresh batches of 8, 30 rounds",
    "digits-full": "digits, full batches, 30 rounds",
    "digits-network": "digits, a network, an epoch, 15 rounds",
}


def _distances(recipe: Recipe, lines: Sequence[LocatingLine]) -> Table:
    """Tabulate how well updates are located, the middle over runs."""
    heads = ("updates", "D", "accomplices", "measured rounds", "one round", "with the sum", "all rounds", "true", "x")
    table: Table = [(*heads, "formula")]
    for asked in recipe["located"]:
        of = [line for line in lines if line.setting == asked["key"]]
        for kind in [(one.colluders, one.points) for one in of[0].located] if of else ():
            found = [one for line in of for one in line.located if (one.colluders, one.points) == kind]
            how = f" ({kind[1].value})" if kind[0] else ""
            errors = ("single", "summed", "together", "true", "offset", "expected")
            cells = (f"{median(getattr(one, what) for one in found):.3f}" for what in errors)
            first = (_LOCATED[asked["key"]], f"{of[0].parameters:,}", f"{kind[0]}{how}")
            table.append((*first, str(found[0].rounds), *cells))
    return table
