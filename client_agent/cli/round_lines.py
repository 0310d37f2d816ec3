"""Lines about rounds for a terminal, and the log on stderr."""

from __future__ import annotations

import logging
from typing import Final

import stamina
import structlog

from client_agent.learning.scores import first_scores
from client_agent.site.events import RoundEnd, RoundRecord
from host.log import configure
from protocol.messages.control import Purpose

_WEIGHED: Final = frozenset({RoundEnd.RELEASED, RoundEnd.RANKED, RoundEnd.CLOSED})
_PURPOSES: Final = {
    Purpose.UPDATE: "",
    Purpose.COUNTS: " (class counts)",
    Purpose.RANKING: " (ranking)",
    Purpose.SUMMARY: " (summary)",
    Purpose.MEASURE: " (measured, nothing summed)",
}


def round_line(record: RoundRecord, before: RoundRecord | None) -> str:
    """State, cost, scores on this site's test data, weights; reasons that the line ``before`` gave are not repeated."""
    weighed = record.alphas if record.state in _WEIGHED else ()  # nobody's weight counts where nothing was shared
    alphas = " ".join(f"{entry.site}={entry.value:.3f}" for entry in weighed)
    scored = f", {first_scores(record.test_scores)}" if record.test_scores else ""
    kilobytes = (record.bytes_up + record.bytes_down) / 1000
    reason = f" ({record.reason_after(before)})" if record.reason else ""
    what = record.state.value + _PURPOSES[record.purpose]
    cost = f"{record.seconds:.2f} s, {kilobytes:.0f} kB"
    isolated = "" if record.isolation is None else f", isolation {record.isolation:.3f}"
    taken = f", took part: {' '.join(record.took_part)}" if record.took_part else ""
    weights = f", weights: {alphas}" if alphas else ""
    without = record.missing_after(before)
    left = f", without: {without}" if without else ""
    return f"round {record.round} {what}{reason}: {cost}{scored}{isolated}{taken}{left}{weights}"


def log_to_stderr() -> None:
    """Structured log lines on stderr: standard output belongs to results."""
    configure(logging.INFO)
    stamina.instrumentation.set_on_retry_hooks([_log_retry])


def _log_retry(details: stamina.instrumentation.RetryDetails) -> None:
    structlog.get_logger("agent").warning("retry", number=details.retry_num, detail=str(details.caused_by))
