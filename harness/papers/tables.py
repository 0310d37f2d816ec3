"""Tables and plots about simulated studies, from their runs: each rule beside training alone and beside FedAvg."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, Final

import pandas as pd

from client_agent.learning.scores import MetricName, value_of, words_of
from harness.datasets.titanic import SITES
from harness.simulate.charts import (
    Series,
    Spread,
    curve,
    curve_rows,
    number,
    of_variant,
    similarity_rows,
)
from harness.simulate.run_line import RunLine
from harness.simulate.store import Results

WORDS: Final[Mapping[str, Any]] = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
"""Names in tables, by table, and numbers that papers published."""
LOSS: Final = "loss"
LOCAL: Final = "local"
FEDAVG: Final = "fedavg"
BETTER: Final = "better_of_both"
_FINISHED: Final = "_finished"
Lines = Sequence[RunLine]
Row = tuple[str, ...]
Table = list[Row]
"""The heads, then the rows, as they are printed."""
Found = Iterator[tuple[str, Table | Series]]
"""Files below docs/results/data: tables, and ``plots/NAME``."""
_TUNED: Final = ("local_tuned", "fedavg_tuned", "weight_erosion_tuned", "fedadam")
_CLASSES: Final = (MetricName.ACCURACY, MetricName.LOG_LOSS, MetricName.AUROC)


# --- the runs of one case ---------------------------------------------------------------------------------------------


class Scores:
    """The runs of one case by variant, requester and seed."""

    def __init__(self, lines: Lines) -> None:
        self.requesters = tuple(sorted({line.requester for line in lines}))
        self.variants = dict.fromkeys(line.variant for line in lines)
        frame = pd.DataFrame(
            {
                "variant": [line.variant for line in lines],
                "requester": [line.requester for line in lines],
                "seed": [line.seed for line in lines],
                "failed": [line.end == "failed" for line in lines],
                LOSS: [_last_loss(line) for line in lines],
                **{metric.value: [_last(line, metric) for line in lines] for metric in MetricName},
            }
        )
        self._nobody = frame[:0].set_index("seed")
        self._of = {key: of.set_index("seed").sort_index() for key, of in frame.groupby(["variant", "requester"])}

    def seeds(self, variant: str) -> int:
        """With how many a variant has run."""
        return len({seed for (name, _), of in self._of.items() if name == variant for seed in of.index})

    def values(self, variant: str, requester: str, metric: str = MetricName.ACCURACY) -> pd.Series:
        """A series by seed. A run that failed is NaN and shows; one whose test part has no such metric is left out."""
        of = self._of.get((variant, requester), self._nobody)
        return of[metric] if metric == LOSS else of[metric][of.failed | of[metric].notna()]

    def spread(self, variant: str, requester: str, metric: str = MetricName.ACCURACY) -> Spread | None:
        """Over seeds; None where no run has the metric."""
        return spread_of(self.values(variant, requester, metric))

    def over_requesters(self, variant: str, metric: str = MetricName.ACCURACY) -> Spread | None:
        """Mean over requesters, the standard error over seeds; seeds that lack a requester are left out."""
        return _over_common_seeds([self.values(variant, requester, metric) for requester in self.requesters])

    def better_of_both(self, requester: str) -> pd.Series:
        """Losses of training alone or of FedAvg, whichever has the smaller mean over the seeds of both.

        A rule that failed once is not the better one.
        """
        alone, averaged = (self.values(variant, requester, LOSS) for variant in (LOCAL, FEDAVG))
        seeds = alone.index.intersection(averaged.index)
        means = [of[seeds].mean(skipna=False) for of in (alone, averaged)]
        chosen = averaged if (math.inf if math.isnan(means[0]) else means[0]) > means[1] else alone
        return chosen[seeds]

    def differences(self, variant: str, other: str, metric: str = MetricName.ACCURACY) -> dict[str, pd.Series]:
        """Subtract, by requester, another variant's metric, same seed from same seed, so that the split cancels.

        ``other``: a variant, or ``better_of_both``, of losses.
        """
        found = {}
        for name in self.requesters:
            own = self.values(variant, name, metric)
            base = self.better_of_both(name) if other == BETTER else self.values(other, name, metric)
            seeds = own.index.intersection(base.index)
            if len(seeds):
                found[name] = own[seeds] - base[seeds]
        return found

    def less(self, variant: str, other: str, metric: str = MetricName.ACCURACY) -> dict[str, Spread]:
        """The differences over seeds."""
        return {name: Spread.of(of.tolist()) for name, of in self.differences(variant, other, metric).items()}


def spread_of(values: pd.Series | Sequence[float]) -> Spread | None:
    """None for no value."""
    return Spread.of(list(values)) if len(values) else None


def _over_common_seeds(each: Sequence[pd.Series]) -> Spread | None:
    """The mean over series by seed; seeds that one of them lacks are left out."""
    seeds = sorted(set.intersection(*(set(of.index) for of in each))) if each else []
    return spread_of([mean(of[seed] for of in each) for seed in seeds])


def _last(line: RunLine, metric: MetricName) -> float:
    value = line.last_of(metric)
    if math.isnan(value) and line.final_scores is not None:
        final = value_of(line.final_scores.scores, metric)
        return math.nan if final is None else final
    return value


def _last_loss(line: RunLine) -> float:
    last = line.test_loss[-1] if line.test_loss and line.end != "failed" else None
    return math.nan if last is None else last


_BY_ROUND: Final = ("test_accuracy", "test_loss", "test_log_loss", "test_auroc", "test_c_index", "test_rmse", "kind")


def with_rules_alone(lines: Lines) -> tuple[RunLine, ...]:
    """The lines, and for every rule that has run only with a finish its rounds before that.

    For finishes that hold nothing out of the rounds: these are then what they would be without a finish.
    """
    ran = {line.variant for line in lines}
    finished = [line for line in lines if line.variant.endswith(_FINISHED)]
    return (*lines, *(unfinished(line) for line in finished if line.variant.removesuffix(_FINISHED) not in ran))


def unfinished(line: RunLine) -> RunLine:
    """The run up to its last round, under the rule's own name; a run that failed before its finish has none to cut."""
    cut = len(line.kind) - (line.kind[-1:] == ("finished",))
    shorter = {name: getattr(line, name)[:cut] for name in _BY_ROUND}
    metrics = {name: values[:cut] for name, values in line.test_metrics.items()}
    name = line.variant.removesuffix(_FINISHED)
    return line.model_copy(update={**shorter, "variant": name, "test_metrics": metrics, "final_scores": None})


# --- cells and tables -------------------------------------------------------------------------------------------------


def counts(found: Sequence[Spread], metric: str) -> tuple[int, int]:
    """Count the differences that are better, and worse, by more than two standard errors."""
    smaller = metric == LOSS or MetricName(metric).smaller_is_better
    below, above = sum(one.clearly_negative for one in found), sum(one.clearly_positive for one in found)
    return (below, above) if smaller else (above, below)


def tally(found: Mapping[str, Spread], metric: str) -> str:
    """Better / not clearly different / worse; none where no run has the metric."""
    if not found:
        return "none"
    better, worse = counts(list(found.values()), metric)
    return f"{better} / {len(found) - better - worse} / {worse}"


def signed(spread: Spread) -> str:
    """+.012 ± .003, bold where it is further than two standard errors from nothing."""
    error = "" if spread.error is None else f" ± {spread.error:.3f}"
    text = f"{spread.mean:+.3f}{error}"
    return f"**{text}**" if spread.clearly_positive or spread.clearly_negative else text


def shown(spread: Spread | None, nothing: str = "none") -> str:
    return nothing if spread is None else str(spread)


def scores_table(
    scores: Scores,
    rules: Mapping[str, str],
    metric: MetricName = MetricName.ACCURACY,
    names: Sequence[str] = (),
    rates: Mapping[str, str] | None = None,
    quoted: Sequence[Row] = (),
) -> Table:
    """A row for every rule that has run, the best of a column in bold; quoted rows are not compared.

    ``names``: the requesters in this order; ``rates``: the rules' rates, in a column of their own.
    """
    names = names or scores.requesters
    ran = [variant for variant in rules if variant in scores.variants]
    columns = [[scores.spread(variant, name, metric) for variant in ran] for name in names]
    columns.append([scores.over_requesters(variant, metric) for variant in ran])
    cells = [_best_in_bold(column, metric.smaller_is_better) for column in columns]
    rows = [
        (rules[variant], *((rates[variant],) if rates else ()), *of)
        for variant, of in zip(ran, zip(*cells, strict=True), strict=True)
    ]
    return [("rule", *(["rate"] if rates else []), *names, "mean"), *rows, *((*row, "") for row in quoted)]


def _best_in_bold(column: Sequence[Spread | None], smallest: bool) -> list[str]:
    """Among those over the most runs."""
    most = max((cell.count for cell in column if cell), default=0)
    best = (min if smallest else max)((cell.mean for cell in column if cell and cell.count == most), default=None)
    return [f"**{cell}**" if cell and cell.mean == best else shown(cell) for cell in column]


def less_table(scores: Scores, rules: Mapping[str, str], metric: MetricName) -> Table:
    """Each rule less training alone: a column per requester, and for how many the rule is better and worse."""
    rows = []
    for variant, title in rules.items():
        found = scores.less(variant, LOCAL, metric) if variant != LOCAL else {}
        if found:
            cells = (signed(found[name]) if name in found else "none" for name in scores.requesters)
            rows.append((title, *cells, tally(found, metric)))
    best = "smaller is better" if metric.smaller_is_better else "larger is better"
    return [(f"{words_of(metric)} ({best})", *scores.requesters, "better / same / worse"), *rows]


# --- pages about one case, or one with two splits ---------------------------------------------------------------------


def _lines_of(runs: Path, case: str) -> tuple[RunLine, ...]:
    return Results(runs / case).lines()


def titanic(runs: Path) -> Found:
    """Both splits, each site as the requester; rates are those of the report's loss, twice the ones of the files."""
    for split, users in SITES.items():
        lines, name, rules = _lines_of(runs, f"titanic_{split}"), f"titanic_{split[4:]}", WORDS["titanic_rules"]
        if not lines:
            continue
        scores, rates = Scores(lines), {variant: _report_rate(lines, variant) for variant in rules}
        quoted = [
            (f"*published: {title}*", rate, *(number(user[place]) for user in WORDS["published_titanic"][split]))
            for place, (title, rate) in enumerate(WORDS["published_titanic"]["rates"].items())
        ]
        yield f"{name}_accuracy", scores_table(scores, rules, names=users, rates=rates, quoted=quoted)
        for metric in _CLASSES[1:]:
            yield f"{name}_{metric.value}", scores_table(scores, rules, metric)
            yield f"{name}_{metric.value}_less_local", less_table(scores, rules, metric)
        drawn = {name: WORDS["three"][name] for name in (FEDAVG, LOCAL, "weight_erosion")}
        yield f"plots/titanic_{split}_accuracy", _metric_curves(lines, drawn, MetricName.ACCURACY, users, " asks")
        yield f"plots/titanic_{split}_similarity", similarity_rows(lines, "weight_erosion")


def _report_rate(lines: Lines, variant: str) -> str:
    found = of_variant(lines, variant) if variant in _TUNED else ()
    rate = found[0].settings.get("training.server_learning_rate") if found else None
    return f"{3.0 if rate is None else 2.0 * float(rate):g}"


def heart_disease(runs: Path) -> Found:
    """Four hospitals, all rules."""
    if lines := _lines_of(runs, "heart_disease"):
        scores, rules = Scores(lines), WORDS["heart_rules"]
        quoted = [
            (f"*FLamby: {title}*", *(number(of[name]) if name in of else "" for name in scores.requesters))
            for title, of in WORDS["published_flamby"].items()
        ]
        for metric in _CLASSES:
            quotes = quoted if metric is MetricName.ACCURACY else ()
            yield f"heart_disease_{metric.value}", scores_table(scores, rules, metric, quoted=quotes)
            yield f"heart_disease_{metric.value}_less_local", less_table(scores, rules, metric)
        drawn = {name: rules[name] for name in ("local", "fedavg", "weight_erosion", "mallows", "fedavg_fine_tuned")}
        for metric in _CLASSES[:2]:
            yield f"plots/heart_disease_{metric.value}", _metric_curves(lines, drawn, metric)
        yield "plots/heart_disease_weights", _weight_curves(lines)
        yield "plots/heart_disease_similarity", similarity_rows(lines, "weight_erosion")


def survival(runs: Path) -> Found:
    """A Cox model, every hospital as the requester."""
    return _task(runs, "survival", (MetricName.C_INDEX, MetricName.INTEGRATED_BRIER))


def regression(runs: Path) -> Found:
    """A linear model, every practice as the requester."""
    return _task(runs, "regression", (MetricName.RMSE, MetricName.R2))


def _task(runs: Path, case: str, metrics: Sequence[MetricName]) -> Found:
    if lines := _lines_of(runs, case):
        for metric in metrics:
            yield f"{case}_{metric.value}", scores_table(Scores(lines), WORDS["three"], metric)
            yield f"{case}_{metric.value}_less_local", less_table(Scores(lines), WORDS["three"], metric)
        yield f"plots/{case}_{metrics[0].value}", _metric_curves(lines, WORDS["three"], metrics[0])
        yield f"plots/{case}_weights", _weight_curves(lines)


def _metric_curves(
    lines: Lines, rules: Mapping[str, str], metric: MetricName, names: Sequence[str] = (), asks: str = ""
) -> Series:
    """A metric over rounds, a panel per requester."""
    found = {}
    for name in names or sorted({line.requester for line in lines}):
        for variant, title in rules.items():
            if of := of_variant(lines, variant, name):
                found[f"{name}{asks}", title] = curve(title, [run.test_of(metric) for run in of])
    return curve_rows(found)


def _weight_curves(lines: Lines) -> Series:
    """Every contributor's weight under Weight Erosion, a panel per requester."""
    found = {}
    for name in sorted({line.requester for line in lines}):
        of = of_variant(lines, "weight_erosion", name)
        for site in sorted({site for run in of for site in run.alpha}):
            found[f"{name} asks", site] = curve(site, [run.alpha[site] for run in of if site in run.alpha])
    return curve_rows(found)


# --- does it pay? -----------------------------------------------------------------------------------------------------

_PAYS: Final[Mapping[str, Sequence[str]]] = WORDS["pays"]
"""Metrics beside the loss, by study."""
_FEW: Final = tuple(_PAYS)[:7]
"""They have few examples and linear models, which the page's goal is about."""
_PAYS_RULES: Final = {
    **WORDS["alone"],
    "mallows_sums": "Mallows averaging, sums",
    **{f"{name}{_FINISHED}": f"{title} + finish" for name, title in WORDS["alone"].items()},
    "ditto": "Ditto",
    "pfedme": "pFedMe",
}
_PAYS_DRAWN: Final = (
    "weight_erosion", "shrinkage", "fedavg_finished", "mallows", "mallows_sums", "mallows_finished",
)  # fmt: skip


def _paying(runs: Path, studies: Sequence[str]) -> dict[str, Scores]:
    found = {study: with_rules_alone(_lines_of(runs, f"pays_{study}")) for study in studies}
    return {study: Scores(lines) for study, lines in found.items() if lines}


def does_it_pay(runs: Path) -> Found:
    """Every rule beside the better of training alone and FedAvg, which is chosen with hindsight."""
    found = _paying(runs, tuple(_PAYS))
    for name, few in (("few", True), ("many", False)):
        chosen = {study: scores for study, scores in found.items() if (study in _FEW) is few}
        rows = [row for rule in _PAYS_RULES if (row := _over_studies(chosen, rule))]
        heads = ("rule", "requesters", "studies", "seeds", "clearly above the better of both", "clearly below it")
        if rows:
            yield f"does_it_pay_{name}", [(*heads, "clearly above Local", "clearly below Local"), *rows]
    dots: Series = []
    for study, scores in found.items():
        yield f"does_it_pay_{study}", _one_study(study, scores)
    for rule in _PAYS_DRAWN:
        for study, scores in found.items():
            shape = "few examples" if study in _FEW else "more parameters"
            dots += [(_PAYS_RULES[rule], *dot, shape) for dot in _ratios(scores, rule)]
    if dots:
        yield "plots/does_it_pay_ratios", dots


def _over_studies(found: Mapping[str, Scores], rule: str) -> Row | None:
    """Count the requesters for which a rule was clear of the better of both, and of training alone."""
    better, alone = (
        [spread for scores in found.values() for spread in scores.less(rule, other, LOSS).values()]
        for other in (BETTER, LOCAL)
    )
    if not better:
        return None
    seeds = sorted(count for scores in found.values() if (count := scores.seeds(rule)))
    counted = str(seeds[0]) if seeds[0] == seeds[-1] else f"{seeds[0]} to {seeds[-1]}"
    own = ("", "") if rule == LOCAL else _shares(alone)
    return f"**{_PAYS_RULES[rule]}**", str(len(better)), str(len(seeds)), counted, *_shares(better), *own


def _shares(found: Sequence[Spread]) -> Row:
    """Return the shares for which it was clearly above, and below: 7 (23 %)."""
    return tuple(f"{count} ({100 * count / len(found):.0f} %)" for count in counts(found, LOSS))


def _one_study(study: str, scores: Scores) -> Table:
    """A row per rule: its mean loss, how far from the better of both, for how many, and the metrics beside it."""
    rows: Table = []
    for rule, title in _PAYS_RULES.items():
        gaps = scores.differences(rule, BETTER, LOSS)
        gap = _over_common_seeds(list(gaps.values())) if len(gaps) == len(scores.requesters) else None
        if gap is not None:
            each = [of for name in scores.requesters if len(of := scores.values(rule, name, LOSS))]
            beside = "" if rule == LOCAL else tally(scores.less(rule, LOCAL, LOSS), LOSS)
            cells = (shown(scores.over_requesters(rule, metric), "not at every requester") for metric in _PAYS[study])
            pair = (tally(scores.less(rule, BETTER, LOSS), LOSS), beside)
            rows.append((title, str(scores.seeds(rule)), _mean_loss(each), signed(gap), *pair, *cells))
    best = [of for name in scores.requesters if len(of := scores.better_of_both(name))]
    rows.append(("*better of both*", "", _mean_loss(best) if best else "none", "", "", "", *("" for _ in _PAYS[study])))
    first = (f"requesters: {len(scores.requesters)}", "seeds", "loss", "less the better of both")
    heads = (*first, "above / same / below it", "above / same / below Local")
    return [(*heads, *(words_of(MetricName(metric)) for metric in _PAYS[study])), *rows]


def _mean_loss(each: Sequence[pd.Series]) -> str:
    """The mean over requesters of their means over seeds."""
    return number(sum(mean(of.tolist()) for of in each) / len(each))


def _ratios(scores: Scores, rule: str) -> Iterator[tuple[float, float, str]]:
    """Return, by requester, FedAvg's and the rule's loss over that of training alone, and if it is clear of both."""
    for name, less in scores.less(rule, BETTER, LOSS).items():
        of = [scores.values(variant, name, LOSS) for variant in (LOCAL, FEDAVG, rule)]
        seeds = sorted(set.intersection(*(set(one.index) for one in of)))
        alone, averaged, own = (mean(one[seed] for seed in seeds) for one in of)
        clear = "clearly better" if less.clearly_negative else "clearly worse" if less.clearly_positive else "not clear"
        yield averaged / alone, own / alone, clear


def clinicians(runs: Path) -> Found:
    """Count the requesters for which a rule was clearly better than training alone, by study and together."""
    found, rules = _paying(runs, _FEW), WORDS["clinicians"]
    for study, scores in found.items():
        rows = [
            (f"**{title}**", *(tally(scores.less(rule, LOCAL, metric), metric) for metric in (LOSS, *_PAYS[study])))
            for rule, title in rules.items()
            if scores.less(rule, LOCAL, LOSS)
        ]
        heads = (LOSS, *(words_of(MetricName(metric)) for metric in _PAYS[study]))
        yield f"clinicians_{study}", [("rule: better / same / worse", *heads), *rows]
    together = []
    for rule, title in rules.items():
        each = [less for scores in found.values() if (less := scores.less(rule, LOCAL, LOSS))]
        counted = [spread for less in each for spread in less.values()]
        if counted:
            better, worse = counts(counted, LOSS)
            numbers = (len(counted), len(each), better, len(counted) - better - worse, worse)
            together.append((f"**{title}**", *map(str, numbers)))
    heads = ("rule", "requesters", "studies", "clearly better", "not clear", "clearly worse")
    if together:
        yield "clinicians_together", [heads, *together]


FROM_RUNS: Final[Mapping[str, Callable[[Path], Found]]] = {
    page.__name__: page for page in (titanic, heart_disease, survival, regression, does_it_pay, clinicians)
}
"""The tables and plots that ``moiety simulate``'s runs of a page come to, by page."""
