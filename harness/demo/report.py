"""``report.html``: one self-contained file, no script, nothing loaded from elsewhere."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Final

from client_agent.drawn.document import document, figure, table
from client_agent.report.settings_words import protection_words, rule_words, training_words
from client_agent.scoring.score import MetricName
from harness.demo.plots import Plot, plots_of
from harness.demo.results import Accuracy, DemoResult, RuleResult, StudyResult, shared_round_seconds
from host.placed_files import rewrite
from protocol.wire.messages import Study

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
    """The whole page."""
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
            table(("program", "version"), [(version.name, version.version) for version in result.versions]),
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
            table(("process", "id"), [(process.name, str(process.pid)) for process in study.processes]),
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
    """Mean and standard error as printed."""
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
