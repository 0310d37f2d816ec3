"""A study followed until it ends, lines about rounds for a terminal, and the log on stderr."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import stamina
import structlog

from client_agent.cli.tables import add_row, answer, console, json_line, table
from client_agent.learning.scores import FinalScores, first_scores, shown_score
from client_agent.page.study_state import federated, outcome_text, sums_of
from client_agent.settings import AgentSettings
from client_agent.site.connections import Site
from client_agent.site.events import METRICS, RoundEnd, RoundRecord, after_each, read_metrics
from client_agent.site.journal import FINAL_SCORES, STOPPED, Awaited, StudyJournal, finished_model, read_awaited
from client_agent.study.outbox import REFUSAL, queued
from host.log import configure
from protocol.errors import ConfigurationError, Unavailable, UnknownStudy
from protocol.messages.control import Purpose, StudyView
from protocol.sharing import Side
from protocol.text import printable

_POLL_S = 0.5
_WEIGHED: Final = frozenset({RoundEnd.RELEASED, RoundEnd.RANKED, RoundEnd.CLOSED})
_PURPOSES: Final = {
    Purpose.UPDATE: "",
    Purpose.COUNTS: " (class counts)",
    Purpose.RANKING: " (ranking)",
    Purpose.SUMMARY: " (summary)",
    Purpose.MEASURE: " (measured, nothing summed)",
}


def follow(settings: AgentSettings, name: str, *, json_output: bool) -> bool:
    """This site's rounds as they are recorded, and the servers' state, to standard output; tables at the end.

    Whether the study ended as its requester asked; what it came to otherwise is said last.
    """
    stamina.instrumentation.set_on_retry_hooks(())  # said once below, not at every try
    metrics = settings.state_dir / "studies" / name / METRICS
    shown, state, waits = 0, None, None
    with Site(settings) as site:
        views = _views(site, name)
        while True:
            view = next(views)
            records = read_metrics(metrics)
            for before, record in list(after_each(records))[shown:]:
                sys.stdout.write((record.model_dump_json() if json_output else round_line(record, before)) + "\n")
            shown = len(records)
            awaited = _awaited(settings, name)
            if awaited != waits:
                waits = awaited
                _print_awaited(name, awaited, json_output)
            if view is not None and (view.state, view.reason) != state:
                state = (view.state, view.reason)
                _print_state(view, json_output)
            sys.stdout.flush()
            if view is not None and view.state.ended and _is_finished(settings, name):
                break
            time.sleep(_POLL_S)
    records = read_metrics(metrics)
    if not json_output:
        _print_table(records)
        _print_finish(StudyJournal(settings.state_dir, name))
        _print_final_scores(metrics.with_name(FINAL_SCORES))
    text = outcome_text(view, records, at_requester=site.is_requester)
    if json_output:
        how = federated(view, records).value
        json_line({"study": name, "federated": how, "sums": sums_of(records), "outcome": text})
    elif text:
        sys.stdout.write(f"{text}\n")
    return not text


def _awaited(settings: AgentSettings, name: str) -> Awaited | None:
    """Whom the study waits for, as this site's agent, the requester's, wrote it down."""
    if not (settings.state_dir / "studies" / name).exists():
        return None
    return read_awaited(StudyJournal(settings.state_dir, name))


def _print_awaited(name: str, awaited: Awaited | None, json_output: bool) -> None:
    if json_output:
        sites = [] if awaited is None else [one.model_dump() for one in awaited.sites]
        json_line({"study": name, "since_s": None if awaited is None else awaited.since_s, "awaited": sites})
    elif awaited is not None:
        sys.stdout.write(f"study {name}: {printable(awaited.text)}\n")


def _views(site: Site, name: str) -> Iterator[StudyView | None]:
    """Server A's view at each step; None where it is away, which is said once, or has no such study yet."""
    away, state_dir = False, site.settings.state_dir
    while True:
        try:
            view = site.clients[Side.A].view(name)
        except Unavailable as later:
            if not away:
                sys.stderr.write(f"waiting for server: {later.detail}\n")
                sys.stderr.flush()
            away, view = True, None
        except UnknownStudy:
            _require_not_refused(site, name)
            if not ((state_dir / "studies" / name).exists() or queued(state_dir, name).exists()):
                raise
            away, view = False, None
        else:
            away = False
        yield view


def _require_not_refused(site: Site, name: str) -> None:
    """ConfigurationError with the agent's reason, where it refused the study or stopped before the servers had it."""
    reasons = (
        queued(site.settings.state_dir, name).with_suffix(REFUSAL),
        site.settings.state_dir / "studies" / name / STOPPED,
    )
    for path in reasons:
        if path.exists():
            text = printable(path.read_text(encoding="utf-8"))
            raise ConfigurationError(f"study {name!r} never reached the servers; this site's agent says: {text}")


def _is_finished(settings: AgentSettings, name: str) -> bool:
    """This site has done its last round of the study, going on alone included; true where it takes no part."""
    if not (settings.state_dir / "studies" / name).exists():
        return True
    state = StudyJournal(settings.state_dir, name).site_state()
    return state is not None and state.over


def _print_state(view: StudyView, json_output: bool) -> None:
    values = {"study": view.study, "state": view.state.value, "reason": view.reason, "ready": list(view.ready)}
    reason = f" ({printable(view.reason)})" if view.reason else ""
    answer(values, f"study {view.study}: {view.state.value}{reason}", json_output=json_output)


def _print_finish(journal: StudyJournal) -> None:
    facts = finished_model(journal)
    if facts is not None:
        kept = "" if facts.failed else "; the shared model is kept beside it (--unfinished)"
        console().print(f"{facts.text}{kept}", soft_wrap=True)


def _print_final_scores(path: Path) -> None:
    """The last model's metrics on this site's test part, with intervals."""
    if path.exists():
        final = FinalScores.model_validate_json(path.read_bytes())
        console().print(f"the last model on this site's {final.examples} test examples:")
        for score in final.scores:
            console().print(f"  {shown_score(score)}")


def _print_table(records: tuple[RoundRecord, ...]) -> None:
    shown = table("round", "state", "took part", "not in it", "isolation", "on its own test data", "seconds")
    for before, record in after_each(records):
        add_row(
            shown,
            str(record.round),
            record.state.value,
            ", ".join(record.took_part),
            record.missing_after(before) or ", ".join(record.failed_check),
            "" if record.isolation is None else f"{record.isolation:.3f}",
            first_scores(record.test_scores),
            f"{record.seconds:.2f}",
        )
    console().print(shown)


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
