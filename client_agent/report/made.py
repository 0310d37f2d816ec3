"""A study report from the journal, the ledger and the models of this site."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from client_agent.network.ledger import LedgerEntry, Totals, read_ledger, without_number
from client_agent.product.card import CardPrivacy, ModelCard, Named, card_of, privacy_of, versions_of
from client_agent.product.held import held_model
from client_agent.report.facts import Cost, Missed, SiteStory, StudyReport
from client_agent.report.outcome import federated, outcome_text, sums_of
from client_agent.report.settings_words import settings_words
from client_agent.report.standing import stand_of
from client_agent.scoring.score import FinalScores
from client_agent.settings import AgentSettings
from client_agent.site.budget.spent_budget import budget_memory
from client_agent.site.events import METRICS, Absence, Absent, RoundEnd, RoundRecord, SiteValue, read_metrics
from client_agent.site.identity import load_identity
from client_agent.site.journal import FINAL_SCORES, StudyJournal
from client_agent.site.models.kept_model import Kept, kept_model
from client_agent.study.asked.foreseen_epsilon import own_examples
from client_agent.study.asked.plain_words import in_plain_words
from client_agent.study.ranking import RANKING_FILE, Ranking
from client_agent.study.summarising import SUMMARY_FILE, Summary
from protocol.errors import ConfigurationError
from protocol.messages.control import Roster, Study


def study_report(settings: AgentSettings, name: str, now_s: float) -> StudyReport:
    """Whatever state the study is in. Raises: ConfigurationError where this site knows none of that name"""
    roster, came_with = load_identity(settings)
    stand = stand_of(settings, name)
    study, folder = stand.asked, settings.state_dir / "studies" / name
    records = read_metrics(folder / METRICS)
    journal = StudyJournal(settings.state_dir, name) if folder.is_dir() else None
    card, no_card = _card(settings, roster, name)
    own, others = _costs(read_ledger(settings.state_dir / "ledger.jsonl"), name)
    return StudyReport(
        study=name,
        study_digest=study.digest(),
        roster_digest=study.roster_digest,
        federation=roster.federation,
        site=settings.site,
        requester=roster.requester,
        made_s=now_s,
        state=stand.words,
        reason=stand.reason,
        outcome=outcome_text(stand, records, at_requester=settings.site == roster.requester) if stand.end else "",
        federated=federated(stand, records),
        sums=sums_of(records),
        settings=tuple(Named(name=about, value=words) for about, words in settings_words(study)),
        statements=tuple(
            Named(name=one.about, value=one.words)
            for one in in_plain_words(study, roster, settings.policy, own_examples(settings.data))
        ),
        sites=tuple(_story(party.name, records) for party in roster.contributors),
        rounds=records,
        scores=None if journal is None else journal.read(folder / FINAL_SCORES, FinalScores),
        best=None if journal is None else kept_model(journal, Kept.BEST),
        ranking=None if journal is None else journal.read(folder / RANKING_FILE, Ranking),
        summary=None if journal is None else journal.read(folder / SUMMARY_FILE, Summary),
        privacy=_privacy(settings, came_with, study),
        costs=own,
        costs_of_all=others,
        card=card,
        no_card=no_card,
        versions=versions_of(study.model),
    )


def _card(settings: AgentSettings, roster: Roster, name: str) -> tuple[ModelCard | None, str]:
    """The card of the last model, and why there is none."""
    try:
        held = held_model(settings, name)
    except ConfigurationError as none:
        return None, none.detail
    is_requester = settings.site == roster.requester
    return card_of(
        held, is_requester=is_requester, transformation_digest=_transformation(settings, held.study), files={}
    ), ""


def _transformation(settings: AgentSettings, study: Study) -> str | None:
    """None where the study has no schema, or the data are not at hand."""
    from client_agent.data.kept import TRANSFORMATION_FILE
    from client_agent.data.transformation import load_transformation

    path = settings.data / TRANSFORMATION_FILE
    return load_transformation(path).digest if study.data_schema is not None and path.exists() else None


def _privacy(settings: AgentSettings, came_with: str, study: Study) -> CardPrivacy | None:
    if study.record_noise is None:
        return None
    return privacy_of(study, budget_memory(settings.state_dir, came_with).trainings, settings.policy)


def _story(site: str, records: tuple[RoundRecord, ...]) -> SiteStory:
    weights = [value for record in records for value in _of(record.alphas, site)]
    distances = [value for record in records for value in _of(record.distances, site)]
    summed = [r for r in records if r.state is RoundEnd.RELEASED and r.purpose.plan.steps_model]
    return SiteStory(
        site=site,
        sums=sum(site in record.took_part for record in summed),
        first_weight=weights[0] if weights else None,
        last_weight=weights[-1] if weights else None,
        distance=distances[-1] if distances else None,
        missed=_missed(one for record in records for one in record.absences if one.site == site),
    )


def _of(values: tuple[SiteValue, ...], site: str) -> Iterator[float]:
    return (one.value for one in values if one.site == site)


def _missed(absences: Iterable[Absence]) -> tuple[Missed, ...]:
    counts: dict[Absent, int] = {}
    texts: dict[Absent, str] = {}
    for one in absences:
        counts[one.why] = counts.get(one.why, 0) + 1
        texts[one.why] = one.text or texts.get(one.why, "")
    return tuple(Missed(why=why, rounds=rounds, text=texts[why]) for why, rounds in counts.items())


def _costs(entries: tuple[LedgerEntry, ...], study: str) -> tuple[tuple[Cost, ...], tuple[Cost, ...]]:
    """The study's own exchanges, and those that are of no single study, such as handshakes."""
    own = [one for one in entries if one.study == study]
    return _summed(own), _summed(one for one in entries if one.study is None)


def _summed(entries: Iterable[LedgerEntry]) -> tuple[Cost, ...]:
    found: dict[tuple[str, str], Totals] = {}
    for one in entries:
        key = (one.server, without_number(one.purpose))
        found[key] = found.get(key, Totals()).with_entry(one)
    return tuple(
        Cost(
            server=server,
            purpose=purpose,
            exchanges=totals.entries,
            sent_bytes=totals.socket_sent_bytes,
            received_bytes=totals.socket_received_bytes,
        )
        for (server, purpose), totals in sorted(found.items())
    )
