"""The report's curves, as SVG to be put into a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from client_agent.drawn.curves import Curve, chart
from client_agent.report.settings_words import RULE_NAMES
from client_agent.scoring.score import MetricName, value_of
from harness.demo.results import StudyResult
from harness.engine.history import RunHistory, Series, alpha_series, distance_series, isolation_series
from protocol.wire.messages import RuleName


@dataclass(frozen=True)
class Plot:
    """A chart with its title and what it shows in a sentence."""

    title: str
    caption: str
    svg: str


def plots_of(study: StudyResult) -> tuple[Plot, ...]:
    """Accuracy and log-loss of every rule; where it ran, weights and distances of every site under Weight Erosion."""
    accuracy = [
        Series(RULE_NAMES[result.rule], tuple(record.test_accuracy for record in result.federated.history.rounds))
        for result in study.rules
    ]
    first = study.first.federated.history
    shown = Plot(
        "Test accuracy",
        f"The requester's test accuracy after every round, seed {first.seed}, as the processes computed it.",
        _chart(accuracy, "accuracy"),
    )
    erosion = _erosion(first) if study.first.rule is RuleName.WEIGHT_EROSION else ()
    return (shown, *_log_loss(study), *erosion, *_isolation(first))


def _log_loss(study: StudyResult) -> tuple[Plot, ...]:
    """Nothing where no round has one."""
    series = [
        Series(
            RULE_NAMES[of.rule],
            tuple(value_of(record.test_scores, MetricName.LOG_LOSS) for record in of.federated.history.rounds),
        )
        for of in study.rules
    ]
    if all(value is None for one in series for value in one.values):
        return ()
    caption = "The same of the log-loss: how sure the model is of what is right; smaller is better."
    return (Plot("Test log-loss", caption, _chart(series, "log-loss", floor=0.0)),)


def _isolation(first: RunHistory) -> tuple[Plot, ...]:
    series = isolation_series(first)
    if all(value is None for one in series for value in one.values):
        return ()
    caption = (
        "What each site worked out before it contributed: how far off the best estimate of anybody's update would be, "
        "for one who has all sums and lists. Below its policy's limit it declines."
    )
    return (Plot("Isolation", caption, _chart(series, "isolation", floor=0.0)),)


def _erosion(erosion: RunHistory) -> tuple[Plot, ...]:
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


def _chart(series: Sequence[Series], label: str, floor: float | None = None) -> str:
    """A line for each of the series that has a number, round 1 first."""
    curves = [
        Curve(one.site, tuple((n, value) for n, value in enumerate(one.values, start=1) if value is not None))
        for one in series
    ]
    return chart(curves, label, floor)
