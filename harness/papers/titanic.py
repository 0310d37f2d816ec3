"""The Titanic pages: both splits by age, each site as the requester (Grimberg 2020, figures 6 and 9)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Final

from client_agent.scoring.score import MetricName, words_of
from harness.datasets.titanic import FEATURES, SITES
from harness.papers import titanic_row_sums
from harness.papers.page import Page
from harness.papers.published import titanic_curve
from harness.papers.tables.against import HOW_TO_READ, against_table, signed, tally
from harness.papers.tables.by_requester import gains, metric_panels, over_requesters, spread_of, weight_curves
from harness.papers.tables.by_rule import RuleRow, cells_of, metric_table, rules_table
from harness.simulate.charts import Curve, Panel, Spread, bars_chart, curves_chart, number, of_variant, similarity_chart
from harness.simulate.run_line import RunLine

CASES: Final = {"titanic_age_strict": "age_strict", "titanic_age_some": "age_some"}
AT_THE_REPORTS_RATE: Final = {
    "local": "Local",
    "fedavg": "FedAvg",
    "fedavg_by_samples": "FedAvg by samples",
    "wfedavg": "WFedAvg",
    "multi_krum": "multi-Krum",
    "influence": "Influence, on 75 % of the half",
    "weight_erosion": "Weight Erosion (WE)",
    "weight_erosion_same_round": "WE, same round",
    "fedavg_fine_tuned": "FedAvg, last 10 rounds alone",
    "weight_erosion_fine_tuned": "WE, last 10 rounds alone",
}
CHOSEN: Final = {
    "local_tuned": "Local, tuned",
    "fedavg_tuned": "FedAvg, tuned",
    "weight_erosion_tuned": "WE, tuned",
    "fedadam": "FedAdam, tuned",
}
RULES: Final = AT_THE_REPORTS_RATE | CHOSEN
PROBABILITIES: Final = (MetricName.LOG_LOSS, MetricName.AUROC)
"""What accuracy does not see: how sure the model is, and in which order it puts the passengers."""
FEATURE_LABELS: Final = (
    "fare", "female", "from Cherbourg", "Queenstown", "alone", "first class", "second class", "age", "minor",
)  # fmt: skip
RATE_KEY: Final = "training.server_learning_rate"
REPORT_RATE: Final = 3.0
LOSS_RATIO: Final = 2.0
"""The report's loss is half of the NLL that sites train on here: a rate of 1.5 here is its rate 3."""
PUBLISHED: Final = {
    "age_strict": ((0.672, 0.784, 0.720), (0.606, 0.780, 0.783), (0.298, 0.922, 0.922), (0.553, 0.735, 0.727)),
    "age_some": ((0.637, 0.776, 0.781), (0.576, 0.775, 0.771), (0.592, 0.850, 0.809), (0.470, 0.727, 0.727)),
}
"""Round 30, users 0 to 3: FedAvg (its code adds row sums), WE, Local; means over test batches, not pooled."""
PUBLISHED_RATES: Final = {"FedAvg, row sums": 0.07, "WE": REPORT_RATE, "Local": REPORT_RATE}


def write(page: Page, runs: Mapping[str, Sequence[RunLine]], data: Path | None) -> None:
    """Both splits on one page."""
    page.text(
        "1309 passengers over four sites by age. Linear model, 30 rounds, one batch per site and round. Pooled "
        "accuracy, log-loss and AUROC on the requester's test half after round 30; mean ± standard error over random "
        "halves; the best of a column in bold. Rates are those of the report's loss, which is half of the usual one: "
        "its rate 3 is 1.5 in the study files. All rules take that rate, but those called tuned, so that their rows "
        "can be compared. Tuned ones chose rate and penalties on validation examples, never on the test half of a "
        "run; the tuning seeds are other halves of the same 1309 rows. The report chose its rates by the test "
        "accuracy that it plots. Its accuracies are means over test batches, of which the last may have a single row, "
        "so they are not the same measure; and its FedAvg is none ([see below](#the-published-fedavg))."
    )
    for case, split in CASES.items():
        lines = tuple(runs.get(case, ()))
        page.heading(split.upper())
        if lines:
            _split(page, split, lines, data)
        else:
            page.text("**Not run yet.**")
    _both_splits(page, runs)
    titanic_row_sums.write(page, {split: tuple(runs.get(case, ())) for case, split in CASES.items()}, data)


def _split(page: Page, split: str, lines: Sequence[RunLine], data: Path | None) -> None:
    users = SITES[split]
    _split_table(page, split, lines)
    for metric in PROBABILITIES:
        page.text(f"**{words_of(metric)}**, {split}:")
        metric_table(page, lines, RULES, metric)
        page.text(HOW_TO_READ.format(baseline="Local"))
        against_table(page, lines, RULES, "local", metric)
    shown = {"fedavg": "FedAvg", "local": "Local", "weight_erosion": "Weight Erosion"}
    panels = sorted(metric_panels(lines, shown), key=lambda panel: users.index(panel.title))
    page.figure(
        f"{split}_accuracy",
        curves_chart([replace(panel, title=f"{panel.title} asks") for panel in panels], "test accuracy"),
        f"{split}: the requester's test accuracy over rounds, with bands of one standard error over the halves.",
    )
    weights = [_weights_panel(lines, split, place, name, data) for place, name in enumerate(users)]
    page.figure(
        f"{split}_weights",
        curves_chart(weights, "weight (requester: 1)", floor=0.0),
        f"{split}: the contributors' weights under Weight Erosion; dashed: published, of one half.",
    )
    page.figure(
        f"{split}_model",
        _model_chart(lines, users[0]),
        f"{split}: what the linear model of {users[0]} weighs, fare and age per standard deviation; black: one "
        "standard error over the halves.",
    )
    page.figure(
        f"{split}_similarity",
        similarity_chart(lines, "weight_erosion", written=True),
        f"{split}: distance between two sites' updates in lengths of the requester's own, mean over rounds and "
        "halves; a row is one requester's view.",
    )


def _split_table(page: Page, split: str, lines: Sequence[RunLine]) -> None:
    users = SITES[split]
    rows = [_row(lines, name, title, users) for name, title in RULES.items() if of_variant(lines, name)]
    quoted = [
        RuleRow(f"*published: {title}*", (f"{rate:g}",), tuple(number(user[place]) for user in PUBLISHED[split]))
        for place, (title, rate) in enumerate(PUBLISHED_RATES.items())
    ]
    rules_table(page, users, rows, quoted, ("rate",))
    choices = [_choice(lines, name, title) for name, title in CHOSEN.items() if of_variant(lines, name)]
    if choices:
        page.text(f"Chosen on validation examples: {'; '.join(choices)}.")
    missing = [title for name, title in RULES.items() if not of_variant(lines, name)]
    if missing:
        page.text(f"**Not run yet:** {'; '.join(missing)}.")


def _row(lines: Sequence[RunLine], name: str, title: str, users: Sequence[str]) -> RuleRow:
    rate = of_variant(lines, name)[0].settings.get(RATE_KEY) if name in CHOSEN else None
    shown = REPORT_RATE if rate is None else LOSS_RATIO * float(rate)
    return RuleRow(title + _halves(lines, name), (f"{shown:g}",), cells_of(lines, name, users))


def _halves(lines: Sequence[RunLine], name: str) -> str:
    """Said where a rule has run on fewer halves than others."""
    most = len({line.seed for line in lines})
    found = len({line.seed for line in of_variant(lines, name)})
    return "" if found == most else f" ({found} of {most} halves so far)"


def _choice(lines: Sequence[RunLine], name: str, title: str) -> str:
    """The settings, in the report's units."""
    settings = of_variant(lines, name)[0].settings
    shown = [f"rate {LOSS_RATIO * float(settings[RATE_KEY]):g}"]
    shown += [f"{key.removeprefix('rule.').replace('_', ' ')} {settings[key]}" for key in settings if key != RATE_KEY]
    return f"{title.removesuffix(', tuned')} {', '.join(shown)}"


def _weights_panel(lines: Sequence[RunLine], split: str, user: int, name: str, data: Path | None) -> Panel:
    published: list[Curve] = []
    for place, site in enumerate(SITES[split]):
        found = titanic_curve(data, split, user, f"alpha_agent_{place}")
        if found is not None and place != user:
            published.append(replace(found, label=site))
    return Panel(f"{name} asks", weight_curves(lines, "weight_erosion", name), tuple(published))


def _model_chart(lines: Sequence[RunLine], requester: str) -> str:
    """The survived row less the died row of the linear layer: what raises the odds of survival."""
    names = {"fedavg": "FedAvg", "local": "Local", "weight_erosion": "Weight Erosion"}
    series = []
    for variant, title in names.items():
        models = [run.final_model for run in of_variant(lines, variant, requester) if run.final_model is not None]
        size = len(FEATURES)
        spreads = [Spread.of(model[size + i] - model[i] for model in models) for i in range(size)] if models else []
        if spreads:
            series.append((title, spreads))
    return bars_chart(FEATURE_LABELS, series, "weight: log odds of survival\nper unit of the feature")


def _both_splits(page: Page, runs: Mapping[str, Sequence[RunLine]]) -> None:
    """Averages over all eight requesters, and against the better of two baselines."""
    lines = {case: tuple(runs[case]) for case in CASES if runs.get(case)}
    if len(lines) < len(CASES):
        return
    page.heading("All eight requesters")
    page.text(
        "Requesters for whom a rule is clearly better than Local, not clearly different, clearly worse: on accuracy, "
        "log-loss and AUROC. The better of FedAvg and Local for each requester, chosen with hindsight, has a mean "
        f"accuracy of {number(mean(spread.mean for _, spread in _better_of_two(lines).values()))}: a rule that beats "
        "it would be worth having. The last column is a rule's accuracy less that, over the same halves; hindsight "
        "flatters it a little."
    )
    columns = ("rule", "mean accuracy", "accuracy", "log-loss", "AUROC", "less the better of two")
    page.table(columns, [row for name, title in RULES.items() if (row := _over_all(lines, name, title)) is not None])
    page.text(_verdict(lines))
    page.text("\n".join(_erosion_sentences(lines)))


def _over_all(lines: Mapping[str, Sequence[RunLine]], name: str, title: str) -> tuple[str, ...] | None:
    """A rule's row over both splits, None where it has not run in both."""
    found = [over_requesters(of_case, name) for of_case in lines.values()]
    both = [spread.mean for spread in found if spread is not None]
    if len(both) < len(CASES):
        return None
    counts = (
        tally([gain for of_case in lines.values() for gain in gains(of_case, name, "local", metric)])
        for metric in (MetricName.ACCURACY, *PROBABILITIES)
    )
    return title, number(mean(both)), *counts, signed(_against_hindsight(lines, name))


def _better_of_two(lines: Mapping[str, Sequence[RunLine]]) -> dict[tuple[str, str], tuple[str, Spread]]:
    """By case and requester: FedAvg or Local, whichever has the larger mean accuracy, and its accuracy."""
    found = {}
    for case, of_case in lines.items():
        for requester in SITES[CASES[case]]:
            pair = [(name, spread_of(of_case, name, requester)) for name in ("fedavg", "local")]
            known = [(name, spread) for name, spread in pair if spread is not None]
            found[case, requester] = max(known, key=lambda one: one[1].mean)
    return found


def _differences(lines: Sequence[RunLine], name: str, baseline: str) -> dict[str, Spread]:
    """Accuracy less the baseline's, by requester."""
    return {gain.requester: gain.difference for gain in gains(lines, name, baseline)}


def _against_hindsight(lines: Mapping[str, Sequence[RunLine]], name: str) -> Spread:
    """A rule less the better of two, mean over requesters, whose errors are taken as independent."""
    apart = [
        _differences(lines[case], name, baseline).get(requester, Spread(0.0, 0.0, 0))
        for (case, requester), (baseline, _) in _better_of_two(lines).items()
    ]
    error = math.sqrt(sum((gain.error or 0.0) ** 2 for gain in apart)) / len(apart)
    return Spread(mean(gain.mean for gain in apart), error, min(gain.count for gain in apart))


def _verdict(lines: Mapping[str, Sequence[RunLine]]) -> str:
    known = [name for name in RULES if all(of_variant(of_case, name) for of_case in lines.values())]
    above = [RULES[name] for name in known if _against_hindsight(lines, name).clearly_positive]
    if above:
        return f"Clearly above it: {', '.join(above)}."
    best = max(known, key=lambda name: _against_hindsight(lines, name).mean)
    return f"No rule here is clearly above it; the nearest is {RULES[best]}."


def _erosion_sentences(lines: Mapping[str, Sequence[RunLine]]) -> list[str]:
    """What is true of Weight Erosion, requester by requester."""
    sentences = []
    for case, of_case in lines.items():
        for requester in SITES[CASES[case]]:
            pairs = [
                (title, _differences(of_case, "weight_erosion", base).get(requester))
                for base, title in (("local", "Local"), ("fedavg", "FedAvg"))
            ]
            said = ", ".join(f"{signed(gain)} against {title}" for title, gain in pairs if gain is not None)
            sentences.append(f"- {CASES[case]}, {requester}: Weight Erosion {said}.")
    return sentences
