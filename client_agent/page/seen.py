"""The contents of a site's page, read from its journal; nothing here is kept or sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from client_agent.network.ledger import read_ledger, without_number
from client_agent.page.models import models_at
from client_agent.page.picture import lines_over_rounds
from client_agent.scoring.score import shown_score
from client_agent.settings import AgentSettings
from client_agent.site.events import METRICS, RoundRecord, SiteValue, after_each, last_metrics, read_metrics
from client_agent.study.asked.at_hand import KnownStudy, known_study
from client_agent.study.asked.foreseen_epsilon import own_examples
from client_agent.study.asked.plain_words import Statement, in_plain_words
from client_agent.study.asked.standing import SiteStanding, StudyStanding, own_weight, study_standing
from protocol.messages.control import Roster

_SHOWN_ROUNDS: Final = 200
_KILO: Final = 1000


@dataclass(frozen=True)
class StudyRow:
    """A study in the list of all; ``last`` are its last model's metrics at this site."""

    standing: StudyStanding
    last: str


@dataclass(frozen=True)
class RoundRow:
    """A round as a person reads it."""

    number: int
    state: str
    reason: str
    purpose: str
    took_part: str
    missing: str
    own_weight: str
    opened: str
    weights: str
    isolation: str
    scores: str
    kilobytes: str


@dataclass(frozen=True)
class Sent:
    """The traffic with one server for one purpose, all bytes at the socket."""

    server: str
    purpose: str
    sent_bytes: int
    received_bytes: int


@dataclass(frozen=True)
class SeenStudy:
    """One study with everything that this site knows of it."""

    known: KnownStudy
    standing: StudyStanding
    statements: tuple[Statement, ...]
    rounds: tuple[RoundRow, ...]
    metrics: Markup
    weights: Markup
    distances: Markup
    models: tuple[str, ...]
    opens: str
    may_say: bool
    may_leave: bool

    @property
    def digest(self) -> str:
        return self.known.study.digest()


def all_studies(settings: AgentSettings, site: SiteStanding) -> tuple[StudyRow, ...]:
    """Those that wait for a person first, those that are over last."""
    rows = [StudyRow(one, _last(settings, one.study)) for one in site.studies]
    return tuple(sorted(rows, key=lambda row: (row.standing.over, not row.standing.waits, row.standing.study)))


def _last(settings: AgentSettings, name: str) -> str:
    record = last_metrics(settings.state_dir / "studies" / name / METRICS)
    return "" if record is None else _scores(record)


def one_study(settings: AgentSettings, roster: Roster, name: str) -> SeenStudy:
    """Raises: ConfigurationError, also for a study that this site does not know"""
    known = known_study(settings, roster, name)
    records = read_metrics(known.journal.folder / METRICS)
    contributes = settings.site != roster.requester
    opens = known.study.rule.needs.value if any(_opened(record) for record in records) else ""
    return SeenStudy(
        known=known,
        standing=study_standing(settings, known),
        statements=in_plain_words(known.study, roster, settings.policy, own_examples(settings.data)),
        rounds=tuple(_round(*pair) for pair in reversed(list(after_each(records[-_SHOWN_ROUNDS:])))),
        metrics=_metrics(records),
        weights=_lines("each site's weight", records, lambda record: record.alphas),
        distances=_lines(opens, records, _opened),
        models=models_at(known),
        opens=opens,
        may_say=known.waits and not known.over,
        may_leave=contributes and not (known.waits or known.over) and known.left is None,
    )


def _round(before: RoundRecord | None, record: RoundRecord) -> RoundRow:
    missing = record.missing_after(before) or ", ".join((*record.failed_check, *record.declined))
    weight = own_weight(record)
    return RoundRow(
        number=record.round,
        state=record.state.value,
        reason=record.reason_after(before),
        purpose=record.purpose.value,
        took_part=", ".join(record.took_part),
        missing=missing,
        own_weight="" if weight is None else f"{weight:.3f}",
        opened=_listed(_opened(record)),
        weights=_listed(record.alphas),
        isolation="" if record.isolation is None else f"{record.isolation:.3f}",
        scores=_scores(record),
        kilobytes=f"{(record.bytes_up + record.bytes_down) / _KILO:.0f}",
    )


def _listed(values: tuple[SiteValue, ...]) -> str:
    return ", ".join(f"{one.site} {one.value:.3g}" for one in values)


def _opened(record: RoundRecord) -> tuple[SiteValue, ...]:
    """The numbers about single sites that the requester opened; contributors' records have none."""
    return record.distances or record.norms or record.inner_products


def _scores(record: RoundRecord) -> str:
    return ", ".join(shown_score(score) for score in record.test_scores[:2])


def _metrics(records: tuple[RoundRecord, ...]) -> Markup:
    lines: dict[str, list[tuple[int, float]]] = {}
    for record in records:
        for score in record.test_scores[:2]:
            if score.value is not None:
                lines.setdefault(str(score.name), []).append((record.round, score.value))
    return lines_over_rounds("the model on this site's own test examples", lines)


def _lines(
    title: str, records: tuple[RoundRecord, ...], values: Callable[[RoundRecord], tuple[SiteValue, ...]]
) -> Markup:
    """A line for each site, of what the requester alone has in its records."""
    lines: dict[str, list[tuple[int, float]]] = {}
    for record in records:
        for one in values(record):
            lines.setdefault(one.site, []).append((record.round, one.value))
    return lines_over_rounds(title, lines)


def what_left(settings: AgentSettings) -> tuple[Sent, ...]:
    """Sums of the ledger, by server and purpose."""
    sent: Counter[tuple[str, str]] = Counter()
    received: Counter[tuple[str, str]] = Counter()
    for entry in read_ledger(settings.state_dir / "ledger.jsonl"):
        key = entry.server, without_number(entry.purpose)
        sent[key] += entry.socket_sent_bytes
        received[key] += entry.socket_received_bytes
    return tuple(Sent(*key, sent[key], received[key]) for key in sorted(sent))
