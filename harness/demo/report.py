"""``report.html``: one self-contained file with its curves as SVG, no script, nothing loaded from elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final, Self

from rich.console import Console
from rich.table import Table
from rich.text import Text

from client_agent.learning.scores import MetricName, shown_score, value_of
from client_agent.page.charts import Curve, chart, document, figure, table
from client_agent.site.events import RoundEnd, RoundRecord, after_each
from client_agent.study.plain_words import RULE_NAMES, protection_words, rule_words, training_words
from harness.datasets.site_data import Federation, describe
from harness.demo.results import Accuracy, DemoResult, RuleResult, StudyResult, shared_round_seconds
from harness.engine.history import RunHistory, Series, alpha_series, distance_series, isolation_series
from host.output_files import rewrite
from protocol.messages.control import RuleName, Study

_REVEALED: Final = (
    (
        "each server",
        "who took part and when, the vector's length, the set that was summed",
        "every share is uniform by itself; weights, distances and sums never reach a server",
    ),
    (
        "each contributor",
        "every released round's average update, and the list of weights of the listed sites",
        "no other site's update",
    ),
    (
        "the requester",
        "the same, each contributor's distance in rounds that open them, and who failed the range check",
        "no contributor's update",
    ),
)

_REVEALED_UNDER_CKKS: Final = (
    (
        "server A",
        "who took part and when, the vector's length, the set that was summed",
        "updates, weights and sums are under a key that no server has; with the key of any one site it could open "
        "every update that it holds",
    ),
    ("server B", "which sites were listed and summed", "it gets nothing of an update; class counts are shares"),
    (
        "each site",
        "every released round's average update, the class counts' sum, and the key of the study",
        "no other site's update: ciphertexts are sealed to server A",
    ),
)


_HELD: Final = "The servers held shares and masked values only."
_HELD_UNDER_KEY: Final = "Server A held ciphertexts, no server a key."


def write_report(result: DemoResult, path: Path) -> None:
    rewrite(path, report(result))


def report(result: DemoResult) -> str:
    keyed = result.studies[0].first.study.protection.plan.keyed
    body = "".join(
        [
            "<h1>Moiety: what the demo found</h1>",
            "<p>Two servers and every site ran as separate processes on one machine, over TLS. "
            f"{_HELD_UNDER_KEY if keyed else _HELD} Accuracies are printed as they are, whichever rule wins.</p>",
            *(_study(study) for study in result.studies),
            "<h2>What was revealed to whom</h2>",
            table(("party", "learnt", "did not learn"), _REVEALED_UNDER_CKKS if keyed else _REVEALED),
            '<p class="note">Against passive parties, and two servers that do not collude; '
            "<code>docs/threat_model.md</code> says what changes otherwise. A seeded demo predicts every secret: it is "
            "for looking at, never for real data.</p>",
            "<h2>Versions</h2>",
            table(("program", "version"), [*result.versions.items()]),
            f'<p class="note">The demo took {result.seconds:.0f} seconds.</p>',
        ]
    )
    return document("Moiety demo", body)


_SCORED: Final = (
    "rule",
    "accuracy",
    "standard error",
    "log-loss",
    "standard error",
    "AUROC",
    "standard error",
    "accuracy, every seed",
)


def _study(study: StudyResult) -> str:
    first = study.first
    seeds = ", ".join(str(seed) for seed in first.seeds)
    return "".join(
        [
            f"<h2>{escape(study.title)}</h2>",
            f"<p>{escape(study.why_this_split)}</p>",
            _split(study),
            "<h3>On the requester's test part</h3>",
            table(_SCORED, [_accuracy_row(r) for r in study.rules]),
            f'<p class="note">Means over seeds {seeds}: the first over the processes, the others in one process with '
            "the same protocol functions and a dealer's correlations. Log-loss: smaller is better. AUROC needs every "
            "class in the test part; - where a seed lacks one.</p>",
            *(_figure(plot) for plot in plots_of(study)),
            "<h3>Secure against plain, same seed</h3>",
            table(
                (
                    "rule",
                    "end",
                    "released rounds",
                    "weights equal",
                    "largest model difference",
                    "distance error",
                ),
                [_comparison_row(r) for r in study.rules],
            ),
            "<h3>Costs</h3>",
            table(("what", "measured"), _costs(study)),
            "<h3>Settings</h3>",
            table(("setting", "value"), _settings(study)),
            "<h3>Processes</h3>",
            table(("process", "id"), [(name, str(pid)) for name, pid in study.processes.items()]),
        ]
    )


def _split(study: StudyResult) -> str:
    head = ("site", "train", "validation", "test", *(f"train: {name}" for name in study.class_names), "")
    rows = [
        (row.site, str(row.train), str(row.validation), str(row.test), *(str(n) for n in row.class_counts), row.note)
        for row in study.split
    ]
    return table(head, rows)


def accuracy_text(accuracy: Accuracy) -> tuple[str, str]:
    error = "" if accuracy.standard_error is None else f"{accuracy.standard_error:.4f}"
    return f"{accuracy.mean:.4f}", error


def _accuracy_row(result: RuleResult) -> tuple[str, ...]:
    accuracy = Accuracy.of(result.accuracies)
    every_seed = ", ".join(f"{value:.3f}" for value in accuracy.values)
    others = (result.scores(name) for name in (MetricName.LOG_LOSS, MetricName.AUROC))
    shown = (text for values in others for text in (accuracy_text(Accuracy.of(values)) if values else ("-", "")))
    return (rule_words(result.rule), *accuracy_text(accuracy), *shown, every_seed)


def _comparison_row(result: RuleResult) -> tuple[str, ...]:
    history, error = result.federated.history, result.distance_error
    return (
        rule_words(result.rule),
        f"{history.end.value}: {history.reason}",
        f"{history.shared_rounds} of {len(history.rounds)}",
        "yes" if result.weights_equal_plain else "no",
        f"{result.difference_to_plain:.2e}",
        "" if error is None else f"{error:.2e}",
    )


def _costs(study: StudyResult) -> list[tuple[str, str]]:
    traffic, seconds = study.traffic, shared_round_seconds(study)
    lock = "not measured" if traffic.lock_to_release_s is None else f"{traffic.lock_to_release_s:.3f} s"
    between = traffic.between_servers_per_contributor_round
    return [
        ("parameters", f"{traffic.parameters:,}"),
        ("bytes up per parameter, contributor and round, all at the socket", f"{traffic.up_per_parameter:.1f}"),
        ("bytes down, likewise", f"{traffic.down_per_parameter:.1f}"),
        ("of these, sealed shares up", f"{traffic.up_body_per_parameter:.1f}"),
        ("of these, sealed outputs down", f"{traffic.down_body_per_parameter:.1f}"),
        (
            "bytes between the servers per contributor and round",
            f"{between:,.0f}",
        ),
        ("seconds per shared round, mean", f"{sum(seconds) / len(seconds):.2f}" if seconds else "none"),
        ("from lock to release, mean", lock),
        ("TLS", ", ".join(traffic.tls_versions)),
    ]


def _settings(study: StudyResult) -> list[tuple[str, str]]:
    spec = study.first.study
    return [
        *training_words(spec),
        *protection_words(spec),
        *_erosion(spec),
        ("least contributors", str(spec.parameters.least_contributors)),
        ("correlations", "oblivious transfer between the servers" if spec.correlation_source == "ot" else "dealer"),
        ("random draws", "reproducible from the seed" if study.seeded else "from the operating system"),
    ]


def _erosion(spec: Study) -> list[tuple[str, str]]:
    """Not under a key, where the rule cannot run."""
    if spec.protection.plan.keyed:
        return []
    return [("Weight Erosion", f"p_d = {spec.rule.distance_penalty}, p_s = {spec.rule.size_penalty}")]


def _figure(plot: Plot) -> str:
    return figure(plot.title, plot.caption, plot.svg)


@dataclass(frozen=True)
class Plot:
    """A chart with its title and what it shows in a sentence."""

    title: str
    caption: str
    svg: str


def plots_of(study: StudyResult) -> tuple[Plot, ...]:
    """Accuracy and log-loss of every rule; where it ran, weights and distances of every site under Weight Erosion."""
    accuracy: Series = {
        RULE_NAMES[result.rule]: tuple(record.test_accuracy for record in result.federated.history.rounds)
        for result in study.rules
    }
    first = study.first.federated.history
    shown = Plot(
        "Test accuracy",
        f"The requester's test accuracy after every round, seed {first.seed}, as the processes computed it.",
        _chart(accuracy, "accuracy"),
    )
    erosion = _weights_and_distances(first) if study.first.rule is RuleName.WEIGHT_EROSION else ()
    return (shown, *_log_loss(study), *erosion, *_isolation(first))


def _log_loss(study: StudyResult) -> tuple[Plot, ...]:
    """Nothing where no round has one."""
    series = {
        RULE_NAMES[of.rule]: tuple(
            value_of(record.test_scores, MetricName.LOG_LOSS) for record in of.federated.history.rounds
        )
        for of in study.rules
    }
    if all(value is None for values in series.values() for value in values):
        return ()
    caption = "The same of the log-loss: how sure the model is of what is right; smaller is better."
    return (Plot("Test log-loss", caption, _chart(series, "log-loss", floor=0.0)),)


def _isolation(first: RunHistory) -> tuple[Plot, ...]:
    series = isolation_series(first)
    if all(value is None for values in series.values() for value in values):
        return ()
    caption = (
        "What each site worked out before it contributed: how far off the best estimate of anybody's update would be, "
        "for one who has all sums and lists. Below its policy's limit it declines."
    )
    return (Plot("Isolation", caption, _chart(series, "isolation", floor=0.0)),)


def _weights_and_distances(erosion: RunHistory) -> tuple[Plot, ...]:
    return (
        Plot(
            "Weights",
            "Each contributor's weight under Weight Erosion, in full precision, after every round. "
            "Only the requester knows it; sites get it rounded to the grid.",
            _chart(alpha_series(erosion), "weight", floor=0.0),
        ),
        Plot(
            "Distances",
            "Each contributor's distance from the requester's update, opened to the requester alone.",
            _chart(distance_series(erosion), "distance", floor=0.0),
        ),
    )


def _chart(series: Series, label: str, floor: float | None = None) -> str:
    curves = [
        Curve(name, tuple((n, value) for n, value in enumerate(values, start=1) if value is not None))
        for name, values in series.items()
    ]
    return chart(curves, label, floor)


class LiveRun:
    """Progress of one study: at a terminal one line that updates, otherwise a line per round."""

    def __init__(self, console: Console, title: str, rounds: int) -> None:
        self._console, self._title, self._rounds = console, title, rounds
        self._printed = 0
        self._status = console.status(f"{title}: round 1 of {rounds}") if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def show(self, records: tuple[RoundRecord, ...]) -> None:
        for before, record in list(after_each(records))[self._printed :]:
            line = _line(self._title, self._rounds, record, before)
            if self._status is not None:
                self._status.update(Text(line))
            else:
                self._console.print(line, soft_wrap=True, highlight=False)
        self._printed = len(records)


def print_split(console: Console, federation: Federation, why: str) -> None:
    """The split as it was fixed beforehand."""
    console.print(Text(f"\n{federation.title}", style="bold"))
    table = Table(box=None)
    for name in ("site", "train", "validation", "test", *federation.class_names, ""):
        table.add_column(name, no_wrap=True)
    for row in describe(federation):
        counts = (str(n) for n in (row.train, row.validation, row.test, *row.class_counts))
        table.add_row(row.site, *counts, row.note)
    console.print(table)
    console.print(Text(why), soft_wrap=True)


def print_accuracies(console: Console, study: StudyResult) -> None:
    seeds = len(study.rules[0].seeds)
    console.print(Text(f"\n{study.title}: the requester's test accuracy over {seeds} seeds", style="bold"))
    table = Table("rule", "mean", "standard error", box=None)
    for result in study.rules:
        table.add_row(RULE_NAMES[result.rule], *accuracy_text(Accuracy.of(result.accuracies)))
    console.print(table)


def print_run(console: Console, history: RunHistory) -> None:
    last = history.rounds[-1]
    scored = ", ".join(shown_score(score) for score in last.test_scores) or f"test loss {last.test_loss:.4f}"
    text = f"seed {history.seed}: {scored}, {history.end.value}: {history.reason}"
    console.print(text, soft_wrap=True, highlight=False)


def _line(title: str, rounds: int, record: RoundRecord, before: RoundRecord | None) -> str:
    sites = ", ".join(f"{alpha.site} {alpha.value:.3f}/{_distance(record, alpha.site)}" for alpha in record.alphas)
    alone = record.state is RoundEnd.ALONE
    shown = "" if alone or not sites else f", weight/distance: {sites}"
    isolation = "" if record.isolation is None else f", isolation {record.isolation:.2f}"
    accuracy = "" if record.test_accuracy is None else f", accuracy {record.test_accuracy:.3f}"
    traffic = "" if alone else f", {record.bytes_up + record.bytes_down:,} bytes"
    reason = f" ({record.reason_after(before)})" if record.reason and not alone else ""
    head = f"{title}: round {record.round}/{rounds} {record.state}{reason}"
    return f"{head}{accuracy}{isolation}{shown}{traffic}, {record.seconds:.2f} s"


def _distance(record: RoundRecord, site: str) -> str:
    return next((f"{entry.value:.3f}" for entry in record.distances if entry.site == site), "-")
