"""The tables and plots about simulated studies, from their runs: by page, the file's name and what goes into it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any, Final

from client_agent.learning.sampling import drawing_probability
from client_agent.learning.scores import MetricName, words_of
from client_agent.site.privacy_budget import Steps, epsilon_of
from harness.attack.membership import InferenceLine
from harness.datasets.titanic import FEATURES, SITES
from harness.engine.history import RoundKind
from harness.papers.recipes import case_of, folder_of, recipes
from harness.papers.scores import (
    BETTER,
    FEDAVG,
    FINISHED,
    FLAMBY,
    LOCAL,
    LOSS,
    MNIST_LAST,
    TITANIC,
    TITANIC_RATES,
    WORDS,
    Row,
    Scores,
    Table,
    is_better,
    is_worse,
    less_table,
    mnist_curve,
    scores_table,
    shown,
    signed,
    spread_of,
    squared_errors,
    tally,
    titanic_curve,
    with_rules_alone,
)
from harness.simulate.charts import (
    Series,
    Spread,
    curve,
    curve_rows,
    heat_rows,
    number,
    of_variant,
    relative_distances,
)
from harness.simulate.comparison import (
    PUBLISHED,
    ResultFolder,
    detections,
    read_personal_case,
    score_rows,
    summaries,
)
from harness.simulate.run_line import RunLine, Values
from harness.simulate.store import Results, read_lines
from harness.simulate.study_files import STUDIES

Lines = Sequence[RunLine]
Found = Iterator[tuple[str, Table | Series]]
"""Files below docs/results/data: tables, and ``plots/NAME``."""

THREE: Final = {"local": "Local", "fedavg": "FedAvg", "weight_erosion": "Weight Erosion"}
_TUNED: Final = ("local_tuned", "fedavg_tuned", "weight_erosion_tuned", "fedadam")
_TITANIC_RULES: Final = WORDS["titanic_rules"]
_TITANIC_FEATURES: Final = (
    "fare", "female", "from Cherbourg", "Queenstown", "alone", "first class", "second class", "age", "minor",
)  # fmt: skip
_HEART_RULES: Final = WORDS["heart_rules"]
_HEART_DRAWN: Final = ("local", "fedavg", "weight_erosion", "mallows", "fedavg_fine_tuned")
"""More curves than these cannot be told apart in one panel."""
_CLASSES: Final = (MetricName.ACCURACY, MetricName.LOG_LOSS, MetricName.AUROC)


def lines_of(runs: Path, case: str, protection: str = "plain") -> tuple[RunLine, ...]:
    return Results(runs / folder_of(case, protection)).lines()


def titanic(runs: Path, data: Path | None) -> Found:
    """Both splits, each site as the requester; rates are those of the report's loss, twice the ones of the files."""
    both = {split: lines_of(runs, f"titanic_{split}") for split in ("age_strict", "age_some")}
    scores = {split: Scores(lines) for split, lines in both.items()}
    for split, lines in both.items():
        name, users = f"titanic_{split.removeprefix('age_')}", SITES[split]
        rates = {variant: _report_rate(lines, variant) for variant in _TITANIC_RULES}
        quoted = [
            (f"*published: {title}*", f"{rate:g}", *(number(user[place]) for user in TITANIC[split]))
            for place, (title, rate) in enumerate(TITANIC_RATES.items())
        ]
        yield f"{name}_accuracy", scores_table(scores[split], _TITANIC_RULES, names=users, rates=rates, quoted=quoted)
        for metric in (MetricName.LOG_LOSS, MetricName.AUROC):
            yield f"{name}_{metric.value}", scores_table(scores[split], _TITANIC_RULES, metric)
            yield f"{name}_{metric.value}_less_local", less_table(scores[split], _TITANIC_RULES, metric)
        shown_rules = {"fedavg": "FedAvg", "local": "Local", "weight_erosion": "Weight Erosion"}
        yield f"plots/titanic_{split}_accuracy", _metric_curves(lines, shown_rules, users)
        published = {
            (f"{asks} asks", f"{site}, published"): found.means
            for user, asks in enumerate(users)
            for place, site in enumerate(users)
            if place != user and (found := titanic_curve(data, split, user, f"alpha_agent_{place}")) is not None
        }
        yield f"plots/titanic_{split}_weights", _weight_curves(lines, users) + curve_rows(published)
        yield f"plots/titanic_{split}_model", _linear_models(lines, users[0], shown_rules)
        yield f"plots/titanic_{split}_similarity", _similarity(lines)
    yield "titanic_all_requesters", _all_requesters(scores)
    yield "titanic_published_fedavg", _row_sums(both, data)


def _report_rate(lines: Lines, variant: str) -> str:
    found = of_variant(lines, variant) if variant in _TUNED else ()
    rate = found[0].settings.get("training.server_learning_rate") if found else None
    return f"{3.0 if rate is None else 2.0 * float(rate):g}"


def _linear_models(lines: Lines, requester: str, rules: Mapping[str, str]) -> Series:
    """The survived row less the died row of the linear layer: what raises the odds of survival."""
    rows: Series = []
    size = len(FEATURES)
    for variant, title in rules.items():
        models = [run.final_model for run in of_variant(lines, variant, requester) if run.final_model is not None]
        spreads = [Spread.of(model[size + i] - model[i] for model in models) for i in range(size)] if models else []
        rows += [("", title, name, one.mean, one.error) for name, one in zip(_TITANIC_FEATURES, spreads, strict=False)]
    return rows


def _all_requesters(scores: Mapping[str, Scores]) -> Table:
    """Means over both splits, and the accuracy less the better of FedAvg and Local, chosen with hindsight."""
    rows = []
    for variant, title in _TITANIC_RULES.items():
        means = [spread.mean for of in scores.values() if (spread := of.over_requesters(variant)) is not None]
        if len(means) == len(scores):
            counts = (
                tally(
                    {
                        f"{split}, {name}": one
                        for split, of in scores.items()
                        for name, one in of.less(variant, LOCAL, metric).items()
                    },
                    metric,
                )
                for metric in _CLASSES
            )
            rows.append((title, number(mean(means)), *counts, signed(_less_hindsight(scores, variant))))
    return [("rule", "mean accuracy", "accuracy", "log-loss", "AUROC", "less the better of two"), *rows]


def _less_hindsight(scores: Mapping[str, Scores], variant: str) -> Spread:
    """Over requesters, whose errors are taken as independent."""
    apart = []
    for of in scores.values():
        for name in of.requesters:
            known = [(spread.mean, base) for base in (FEDAVG, LOCAL) if (spread := of.spread(base, name)) is not None]
            best = max(known, key=lambda one: one[0])[1]
            apart.append(of.less(variant, best).get(name, Spread(0.0, 0.0, 0)))
    error = math.sqrt(sum((gain.error or 0.0) ** 2 for gain in apart)) / len(apart)
    return Spread(mean(gain.mean for gain in apart), error, min(gain.count for gain in apart))


def _row_sums(both: Mapping[str, Lines], data: Path | None) -> Table:
    """The published FedAvg beside runs with its mistake."""
    rows: Table = []
    for split, lines in both.items():
        for user, name in enumerate(SITES[split]):
            runs, right = of_variant(lines, "fedavg_as_published", name), of_variant(lines, FEDAVG, name)
            if runs:
                last, published = [run.last_accuracy for run in runs], titanic_curve(data, split, user, "global_fedavg")
                rows.append(
                    (
                        f"{split}, {name}",
                        "no data" if published is None else number(published.means[-1]),
                        f"{number(mean(last))} ({number(min(last))} to {number(max(last))})",
                        "no data" if published is None else number(_jump(published.means)),
                        shown(spread_of([_jump(run.test_accuracy) for run in runs])),
                        shown(spread_of([_jump(run.test_accuracy) for run in right]), "not run"),
                    )
                )
    heads = ("requester", "published, round 30", "row sums, mean (lowest to highest)", "published, jump")
    return [(*heads, "row sums, jump", "FedAvg, jump"), *rows]


def _jump(accuracies: Values) -> float:
    """Mean size of the change from a round to the next."""
    known = [value for value in accuracies if value is not None]
    return mean(abs(after - before) for before, after in pairwise(known))


def heart_disease(runs: Path, data: Path | None) -> Found:
    """Four hospitals, all rules."""
    lines = lines_of(runs, "heart_disease")
    scores = Scores(lines)
    quoted = [
        (f"*FLamby: {title}*", *(number(of[name]) if name in of else "" for name in scores.requesters))
        for title, of in FLAMBY.items()
    ]
    for metric in _CLASSES:
        quotes = quoted if metric is MetricName.ACCURACY else ()
        yield f"heart_disease_{metric.value}", scores_table(scores, _HEART_RULES, metric, quoted=quotes)
        yield f"heart_disease_{metric.value}_less_local", less_table(scores, _HEART_RULES, metric)
    for metric in (MetricName.ACCURACY, MetricName.LOG_LOSS):
        drawn = {name: _HEART_RULES[name] for name in _HEART_DRAWN}
        yield f"plots/heart_disease_{metric.value}", _metric_curves(lines, drawn, metric=metric, asks="")
    yield "plots/heart_disease_weights", _weight_curves(lines)
    yield "plots/heart_disease_similarity", _similarity(lines)


def survival(runs: Path, data: Path | None) -> Found:
    """A Cox model, every hospital as the requester."""
    return _task(runs, "survival", (MetricName.C_INDEX, MetricName.INTEGRATED_BRIER))


def regression(runs: Path, data: Path | None) -> Found:
    """A linear model, every practice as the requester."""
    return _task(runs, "regression", (MetricName.RMSE, MetricName.R2))


def _task(runs: Path, case: str, metrics: Sequence[MetricName]) -> Found:
    lines = lines_of(runs, case)
    scores = Scores(lines)
    for metric in metrics:
        yield f"{case}_{metric.value}", scores_table(scores, THREE, metric)
        yield f"{case}_{metric.value}_less_local", less_table(scores, THREE, metric)
    yield f"plots/{case}_{metrics[0].value}", _metric_curves(lines, THREE, metric=metrics[0], asks="")
    yield f"plots/{case}_weights", _weight_curves(lines)


def _metric_curves(
    lines: Lines,
    rules: Mapping[str, str],
    names: Sequence[str] = (),
    metric: MetricName = MetricName.ACCURACY,
    asks: str = " asks",
) -> Series:
    """A metric over rounds, a panel per requester."""
    found = {}
    for name in names or sorted({line.requester for line in lines}):
        for variant, title in rules.items():
            if of := of_variant(lines, variant, name):
                found[f"{name}{asks}", title] = curve(title, [run.test_of(metric) for run in of])
    return curve_rows(found)


def _weight_curves(lines: Lines, names: Sequence[str] = ()) -> Series:
    """Every contributor's weight under Weight Erosion, a panel per requester."""
    found = {}
    for name in names or sorted({line.requester for line in lines}):
        of = of_variant(lines, "weight_erosion", name)
        for site in sorted({site for run in of for site in run.alpha}):
            found[f"{name} asks", site] = curve(site, [run.alpha[site] for run in of if site in run.alpha])
    return curve_rows(found)


def _similarity(lines: Lines) -> Series:
    names, found = relative_distances(lines, "weight_erosion")
    return heat_rows([f"{name} asks" for name in names], names, found)


def mnist(runs: Path, data: Path | None) -> Found:
    """Weight Erosion, FedAvg and Local on label-skewed sites; settings without a run are left out."""
    cases = [name for kind in ("simulate", "on_gpu") for one in recipes()["mnist"][kind] for name in one["cases"]]
    settings = sorted({case.removeprefix("mnist_") for case in cases}, key=lambda name: (name[0], int(name[2:])))
    found = {name: lines for name in settings if (lines := lines_of(runs, f"mnist_{name}"))}
    rules = {"weight_erosion": "Weight Erosion", "fedavg": "FedAvg", "local": "Local"}
    heads = [head for title in rules.values() for head in (title, "published")]
    last: Table = [("setting", *heads, "rounds shared under WE", "seeds")]
    best: Table = [("setting", *rules.values())]
    curves: dict[tuple[str, str], Any] = {}
    weights: dict[tuple[str, str], Any] = {}
    for name, lines in found.items():
        title = f"{name[0].upper()}, {name[2:]} sites"
        by_rule = {variant: of_variant(lines, variant) for variant in rules}
        quoted = MNIST_LAST.get(name)
        cells: list[str] = []
        tops = []
        for place, (variant, of) in enumerate(by_rule.items()):
            cells += [_over([run.last_accuracy for run in of]), "" if quoted is None else number(quoted[place])]
            published = mnist_curve(data, name, variant)
            top = "" if published is None else f" ({number(max(published.means))} published)"
            tops.append(_over([run.best_accuracy for run in of]) + (top if of else ""))
            if of:
                curves[title, rules[variant]] = curve("", [run.test_accuracy for run in of])
            if published is not None:
                curves[title, f"{rules[variant]}, published"] = published
        eroded = by_rule["weight_erosion"]
        shared = ", ".join(str(run.released_rounds) for run in eroded)
        last.append((title, *cells, shared or "not run", str(max(len(of) for of in by_rule.values()))))
        best.append((title, *tops))
        weights[title, "Weight Erosion"] = curve("", [mean_weight(run) for run in eroded])
        mean_alpha = mnist_curve(data, name, "weight_erosion", "mean_alpha")
        if mean_alpha is not None:
            weights[title, "Weight Erosion, published"] = mean_alpha
    yield "mnist_last", last
    yield "mnist_best", best
    yield "mnist_secure", _mnist_secure(lines_of(runs, "mnist_b_10", "secure"), found.get("b_10", ()))
    yield "plots/mnist_accuracy", curve_rows(curves)
    yield "plots/mnist_weights", curve_rows(weights)


def _over(values: Sequence[float]) -> str:
    return shown(spread_of(values), "not run")


def _mnist_secure(protected: Lines, plain: Lines) -> Table:
    """B at 10 sites through the protocol, beside the plain run with the same seed."""
    by_seed = {line.seed: line for line in of_variant(plain, "weight_erosion")}
    pairs = [(line, by_seed[line.seed]) for line in of_variant(protected, "weight_erosion") if line.seed in by_seed]
    rows = [
        (title, f"{line.last_accuracy:.4f}", f"{line.best_accuracy:.4f}", f"{line.seconds:.0f}")
        for pair in pairs[:1]
        for title, line in zip(("secure", "plain"), pair, strict=True)
    ]
    return [("run", "last round", "best round", "seconds"), *rows]


def mean_weight(run: RunLine) -> tuple[float | None, ...]:
    """Over all sites and the requester's 1."""
    rounds = zip(*run.alpha.values(), strict=True)
    return tuple((1 + sum(value or 0.0 for value in values)) / (1 + len(run.alpha)) for values in rounds)


_STRATEGIES: Final = WORDS["strategies"]
_TUNED_STRATEGIES: Final = {f"{name}_tuned": f"{title}, tuned" for name, title in _STRATEGIES.items()}
_ACTIVITIES: Final = ("walking", "upstairs", "downstairs", "sitting", "standing", "lying")


def har_strategies(runs: Path, data: Path | None) -> Found:
    """Four splits, five strategies, and what protection costs."""
    splits = ("random", "majority_even", "majority", "pick_two")
    done = {split: lines for split in splits if (lines := lines_of(runs, f"har_strategies_{split}"))}
    there = {line.variant for lines in done.values() for line in lines}
    strategies = {name: title for name, title in (_STRATEGIES | _TUNED_STRATEGIES).items() if name in there}
    lasts = {
        (name, split): spread_of([run.last_accuracy for run in of_variant(lines, name)])
        for split, lines in done.items()
        for name in strategies
    }
    curves = {
        (split, title): curve(title, [_updates(run) for run in of])
        for split, lines in done.items()
        for name, title in strategies.items()
        if (of := of_variant(lines, name))
    }
    head = ("strategy", *done)
    rows = [(title, *(shown(lasts[name, split], "not run") for split in done)) for name, title in strategies.items()]
    yield "har_strategies_last", [head, *rows]
    soon: Table = [head]
    for title in strategies.values():
        cells = []
        for split in done:
            goal = max(spread.mean for (_, of), spread in lasts.items() if of == split and spread) - 0.01
            means = curves[split, title].means if (split, title) in curves else None
            reached = [place for place, value in enumerate(means or (), 1) if value >= goal]
            cells.append("not run" if means is None else str(reached[0]) if reached else "never")
        soon.append((title, *cells))
    yield "har_strategies_rounds_needed", soon
    yield "plots/har_strategies_accuracy", curve_rows(curves)
    for split, lines in done.items():
        rows_of = {
            title: [_mean_of(values) for values in zip(*classes, strict=True)]
            for name, title in strategies.items()
            if (classes := [run.class_accuracy[-1] for run in of_variant(lines, name) if run.class_accuracy])
        }
        yield f"plots/har_strategies_{split}_classes", heat_rows(list(rows_of), _ACTIVITIES, list(rows_of.values()))
    protected = [
        (f"{split}, {_STRATEGIES[name]}, {title}", f"{line.last_accuracy:.4f}", f"{_seconds_a_round(line):.2f}")
        for split in splits
        for name in ("fedavg", "wfedavg")
        for protection, title in (("plain", "none"), ("secure", "shares"), ("ckks", "CKKS"))
        for line in of_variant(lines_of(runs, f"har_strategies_{split}", protection), name)
        if line.seed == 0
    ]
    yield "har_strategies_protection", [("split, strategy, protection", "accuracy", "seconds per round"), *protected]


def _seconds_a_round(line: RunLine) -> float:
    return line.seconds / max(1, len(line.test_accuracy))


def _updates(run: RunLine) -> Values:
    """The accuracies after rounds of updates; WFedAvg's round of class counts comes before the first."""
    return tuple(value for value, kind in zip(run.test_accuracy, run.kind, strict=True) if kind != RoundKind.COUNTED)


def _mean_of(values: Sequence[float | None]) -> float:
    there = [value for value in values if value is not None]
    return mean(there) if there else math.nan


_PERSONAL: Final = WORDS["personal"]


def har_ifedavg(runs: Path, data: Path | None) -> Found:
    """Personal affine layers on thirty people, and tampered data found by them."""
    lines = ResultFolder(runs / "har_ifedavg").lines()
    table: Table = [("method", "mean F1", "published", "worst F1", "published", "rounds", "seeds")]
    for one in summaries(lines):
        quoted = tuple(map(number, PUBLISHED[one.variant])) if one.variant in PUBLISHED else ("", "")
        cells = (str(one.mean_f1), quoted[0], str(one.worst_f1), quoted[1], str(one.rounds), str(one.seeds))
        table.append((_PERSONAL.get(one.variant, one.variant), *cells))
    yield "har_ifedavg_scores", table
    yield "plots/har_ifedavg_scores", score_rows(lines)
    for name, title in (("shifted", "shifted features"), ("swapped", "relabelled examples")):
        case = read_personal_case(STUDIES / f"har_ifedavg_{name}.toml")
        rows = [
            (
                f"{one.variant}, {one.seed}",
                one.site,
                one.layer,
                f"{one.found} of {one.changed}",
                f"{100 * one.elsewhere:.1f} %",
                str(one.rank),
            )
            for one in detections(case, ResultFolder(runs / f"har_ifedavg_{name}"))
        ]
        heads = (f"{title}: variant, seed", "site", "layer", "changed columns marked", "marked elsewhere")
        yield f"har_ifedavg_{name}", [(*heads, "rank of the strongest"), *rows]


_PAYS: Final = {
    "heart_disease": ("loss", MetricName.ACCURACY, MetricName.AUROC),
    "titanic_strict": ("loss", MetricName.ACCURACY, MetricName.AUROC),
    "titanic_some": ("loss", MetricName.ACCURACY, MetricName.AUROC),
    "breast_cancer": ("loss", MetricName.ACCURACY, MetricName.AUROC),
    "breast_cancer_fifth": ("loss", MetricName.ACCURACY, MetricName.AUROC),
    "regression": ("loss", MetricName.RMSE),
    "survival": ("loss", MetricName.C_INDEX),
    "har": ("loss", MetricName.ACCURACY, MetricName.AUROC),
    "mnist_a": ("loss", MetricName.ACCURACY),
    "mnist_b": ("loss", MetricName.ACCURACY),
    "mnist_f": ("loss", MetricName.ACCURACY),
}
"""Counts by study. The first seven have few examples and linear models, which the page's goal is about."""
_FEW: Final = tuple(_PAYS)[:7]
_ALONE: Final = WORDS["alone"]
_PAYS_RULES: Final = {
    **_ALONE,
    "mallows_sums": "Mallows averaging, sums",
    **{f"{name}{FINISHED}": f"{title} + finish" for name, title in _ALONE.items()},
    "ditto": "Ditto",
    "pfedme": "pFedMe",
}
_PAYS_DRAWN: Final = (
    "weight_erosion", "shrinkage", "fedavg_finished", "mallows", "mallows_sums", "mallows_finished",
)  # fmt: skip


def _paying(runs: Path, studies: Sequence[str]) -> dict[str, Scores]:
    found = {study: with_rules_alone(lines_of(runs, f"pays_{study}")) for study in studies}
    return {study: Scores(lines) for study, lines in found.items() if lines}


def does_it_pay(runs: Path, data: Path | None) -> Found:
    """Every rule beside the better of training alone and FedAvg, which is chosen with hindsight."""
    found = _paying(runs, tuple(_PAYS))
    for name, few in (("few", True), ("many", False)):
        chosen = {study: scores for study, scores in found.items() if (study in _FEW) is few}
        rows = [row for rule in _PAYS_RULES if (row := _over_studies(chosen, rule))]
        heads = ("rule", "requesters", "studies", "seeds", "clearly above the better of both", "clearly below it")
        yield f"does_it_pay_{name}", [(*heads, "clearly above Local", "clearly below Local"), *rows]
    yield "does_it_pay_missed", _missed()
    for study, scores in found.items():
        yield f"does_it_pay_{study}", _one_study(study, scores)
    dots: Series = []
    for rule in _PAYS_DRAWN:
        for study, scores in found.items():
            dots += [(_PAYS_RULES[rule], *dot, _shape(study)) for dot in _ratios(scores, rule)]
    yield "plots/does_it_pay_ratios", dots


def _shape(study: str) -> str:
    return "few examples" if study in _FEW else "more parameters"


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


def _shares(found: Sequence[Spread]) -> tuple[str, str]:
    """Return the shares for which it was clearly above, and below: 7 (23 %)."""
    above, below = (sum(count(one, LOSS) for one in found) for count in (is_better, is_worse))
    return f"{above} ({100 * above / len(found):.0f} %)", f"{below} ({100 * below / len(found):.0f} %)"


def _one_study(study: str, scores: Scores) -> Table:
    """A row per rule: its mean loss, how far from the better of both, for how many, and the metrics beside it."""
    metrics = _PAYS[study][1:]
    rows: Table = []
    for rule, title in _PAYS_RULES.items():
        gap = _mean_less_better(scores, rule)
        if gap is not None:
            each = [of for name in scores.requesters if len(of := scores.values(rule, name, LOSS))]
            beside = "" if rule == LOCAL else tally(scores.less(rule, LOCAL, LOSS), LOSS)
            cells = (shown(scores.over_requesters(rule, metric), "not at every requester") for metric in metrics)
            counts = (tally(scores.less(rule, BETTER, LOSS), LOSS), beside)
            rows.append((title, str(scores.seeds(rule)), _mean_loss(each), signed(gap), *counts, *cells))
    best = [of for name in scores.requesters if len(of := scores.better_of_both(name))]
    rows.append(("*better of both*", "", _mean_loss(best) if best else "none", "", "", "", *("" for _ in metrics)))
    first = (f"requesters: {len(scores.requesters)}", "seeds", "loss", "less the better of both")
    heads = (*first, "above / same / below it", "above / same / below Local")
    return [(*heads, *map(words_of, metrics)), *rows]


def _mean_loss(each: Sequence[Any]) -> str:
    """The mean over requesters of their means over seeds."""
    return number(sum(mean(of.tolist()) for of in each) / len(each))


def _mean_less_better(scores: Scores, rule: str) -> Spread | None:
    """The mean over requesters; the error is over seeds, of which those that lack a requester are left out."""
    gaps = [scores.values(rule, name, LOSS) - scores.better_of_both(name) for name in scores.requesters]
    common = [set(scores.values(rule, n, LOSS).index) & set(scores.better_of_both(n).index) for n in scores.requesters]
    seeds = sorted(set.intersection(*common)) if common else []
    return spread_of([mean(gap[seed] for gap in gaps) for seed in seeds])


def _ratios(scores: Scores, rule: str) -> Iterator[tuple[float, float, str]]:
    """Return, by requester, FedAvg's and the rule's loss over that of training alone, and if it is clear of both."""
    for name, less in scores.less(rule, BETTER, LOSS).items():
        of = [scores.values(variant, name, LOSS) for variant in (LOCAL, FEDAVG, rule)]
        seeds = sorted(set.intersection(*(set(one.index) for one in of)))
        alone, averaged, own = (mean(one[seed] for seed in seeds) for one in of)
        clear = "clearly better" if is_better(less, LOSS) else "clearly worse" if is_worse(less, LOSS) else "not clear"
        yield averaged / alone, own / alone, clear


def _missed() -> Table:
    """Tabulate what the estimate of risk behind Mallows averaging misses, by parameters and the sites' squared bias."""
    biases = (0.0, 0.5, 1.0, 2.0, 4.0, 16.0)
    rows = [
        (
            f"{parameters}{'' if factor == 2.0 else f', b = {factor:g}'}",
            *(f"{squared_errors(parameters, bias, bias_factor=factor).missed:+.2f}" for bias in biases),
        )
        for factor in (2.0, 1.0)
        for parameters in (10, 30, 100, 1000)
    ]
    return [("parameters", *(f"bias {bias:g} v_0" for bias in biases)), *rows]


_CLINICIANS: Final = WORDS["clinicians"]


def clinicians(runs: Path, data: Path | None) -> Found:
    """Count the requesters for which a rule was clearly better than training alone, by study and together."""
    found = _paying(runs, _FEW)
    for study, scores in found.items():
        rows = [
            (f"**{title}**", *(tally(scores.less(rule, LOCAL, metric), metric) for metric in _PAYS[study]))
            for rule, title in _CLINICIANS.items()
            if scores.less(rule, LOCAL, LOSS)
        ]
        heads = (LOSS, *(words_of(MetricName(metric)) for metric in _PAYS[study][1:]))
        yield f"clinicians_{study}", [("rule: better / same / worse", *heads), *rows]
    together = []
    for rule, title in _CLINICIANS.items():
        each = [less for scores in found.values() if (less := scores.less(rule, LOCAL, LOSS))]
        counted = [spread for less in each for spread in less.values()]
        if counted:
            better, worse = (sum(count(one, LOSS) for one in counted) for count in (is_better, is_worse))
            numbers = (len(counted), len(each), better, len(counted) - better - worse, worse)
            together.append((f"**{title}**", *map(str, numbers)))
    heads = ("rule", "requesters", "studies", "clearly better", "not clear", "clearly worse")
    yield "clinicians_together", [heads, *together]


EPSILONS: Final = ("none", "clipped", "8", "4", "2", "1")
NOISED: Final[Mapping[str, tuple[float, Mapping[str, int]]]] = WORDS["noised"]
"""A case's delta, and the numbers of training examples of its sites."""


def differential_privacy(runs: Path, data: Path | None) -> Found:
    """Accuracy under noise at the sites, what each site spends, and guessing who was trained on."""
    rules = {"fedavg": "FedAvg", "weight_erosion": "Weight Erosion"}
    metrics = (MetricName.ACCURACY, MetricName.LOG_LOSS)
    for case_name, (_, samples) in NOISED.items():
        name, case = case_name.removeprefix("noise_"), case_of(case_name)
        scores = Scores(lines_of(runs, case_name))
        heads = [f"{title}: {metric.value.replace('_', '-')}" for title in rules.values() for metric in metrics]
        table: Table = [("epsilon", "noise multiplier", *heads)]
        for epsilon in EPSILONS:
            privacy = case.variant(noised(FEDAVG, epsilon)).study.privacy
            multiplier = "no noise, no clipping" if privacy is None else f"{privacy.noise_multiplier:g}"
            cells = (scores.over_requesters(noised(rule, epsilon), metric) for rule in rules for metric in metrics)
            table.append((epsilon, multiplier, *(shown(cell, "not run") for cell in cells)))
        yield f"differential_privacy_{name}", table
        spent = [
            (site, str(count), *(f"{spent_of(case_name, epsilon, count):.2f}" for epsilon in EPSILONS[2:]))
            for site, count in samples.items()
        ]
        heads = [f"at {epsilon}" for epsilon in EPSILONS[2:]]
        yield f"differential_privacy_{name}_spent", [("site", "records", *heads), *spent]
        bars: Series = []
        for rule, title in rules.items():
            for epsilon in EPSILONS:
                spread = scores.over_requesters(noised(rule, epsilon))
                group = f"epsilon {epsilon}" if epsilon in EPSILONS[2:] else epsilon
                bars += [("", title, group, spread.mean, spread.error)] if spread else []
        yield f"plots/differential_privacy_{name}", bars
    yield "differential_privacy_membership", _noised_membership(runs)


def noised(rule: str, epsilon: str) -> str:
    """The case's variant of a rule under an epsilon."""
    return rule if epsilon == "none" else f"{rule}_{epsilon}"


def spent_of(case: str, epsilon: str, examples: int) -> float:
    """Epsilon that all rounds of the variant spend at a site with so many records."""
    study = case_of(case).variant(noised(FEDAVG, epsilon)).study
    assert study.privacy is not None
    drawn = drawing_probability(examples, study.training.batch_size)
    return epsilon_of([Steps(drawn, study.privacy.noise_multiplier, study.rounds)], NOISED[case][0])


def _noised_membership(runs: Path) -> Table:
    (asked,) = recipes()["differential_privacy"]["watched"]
    lines, scores = read_lines(runs / asked["file"], InferenceLine), Scores(lines_of(runs, asked["case"]))
    table: Table = [("epsilon", "accuracy", "loss", "reference", "averages")]
    for epsilon, variant in zip(("none", "8", "1"), asked["variants"], strict=True):
        found = [line for line in lines if line.variant == variant]
        if found:
            attacks = ("by_loss", "by_reference", "by_averages")
            cells = (told_cell([getattr(line, attack) for line in found]) for attack in attacks)
            table.append((epsilon, shown(scores.over_requesters(variant), "not run"), *cells))
    return table


def told_cell(found: Sequence[Any], nothing: str = "nothing opened") -> str:
    """The area under the ROC curve, and the share found at one false alarm in a hundred."""
    told = [one for one in found if one is not None]
    areas, rates = spread_of([one.auc for one in told]), spread_of([one.at_one_percent for one in told])
    return f"{areas}, {rates}" if told else nothing
