"""Whether a rule did better than another for the requesters: paired differences, and how many are clear."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from client_agent.scoring.score import MetricName, words_of
from harness.papers.page import Page
from harness.papers.tables.by_requester import Gain, Lines, gains, requesters
from harness.simulate.charts import Spread

HOW_TO_READ = (
    "A rule less {baseline}, same seed against same seed; bold where it is more than two standard errors from "
    "nothing. The last column counts the requesters for whom the rule is clearly better, not clearly different, "
    "clearly worse."
)


def against_table(page: Page, lines: Lines, variants: Mapping[str, str], baseline: str, metric: MetricName) -> None:
    """A row per variant that has run, a column per requester."""
    names = requesters(lines)
    rows = []
    for variant, title in variants.items():
        found = gains(lines, variant, baseline, metric)
        if variant != baseline and found:
            by_name = {gain.requester: signed(gain.difference) for gain in found}
            rows.append((title, *(by_name.get(name, "none") for name in names), tally(found)))
    best = "smaller is better" if metric.smaller_is_better else "larger is better"
    page.table((f"{words_of(metric)} ({best})", *names, "better / same / worse"), rows)


def tally(found: Sequence[Gain]) -> str:
    """2 / 1 / 1; none where no run has the metric."""
    if not found:
        return "none"
    better, worse = sum(gain.better for gain in found), sum(gain.worse for gain in found)
    return f"{better} / {len(found) - better - worse} / {worse}"


def signed(spread: Spread) -> str:
    """+.012 ± .003, bold where it is further than two standard errors from nothing."""
    error = "" if spread.error is None else f" ± {spread.error:.3f}"
    text = f"{spread.mean:+.3f}{error}"
    return f"**{text}**" if spread.clearly_positive or spread.clearly_negative else text
