"""A study report, read from this site's own state folder; nothing is asked of a server or kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from pydantic import BaseModel, ConfigDict

from client_agent.learning.scores import FinalScores
from client_agent.model.card import CardPrivacy, ModelCard, Named, card_of, privacy_of, versions_of
from client_agent.model.site_model import held_model
from client_agent.net.ledger import LedgerEntry, Totals, read_ledger, without_number
from client_agent.page.study_state import Federated, federated, outcome_text, stand_of, sums_of
from client_agent.settings import AgentSettings
from client_agent.site.events import (
    METRICS,
    Absence,
    Absent,
    Reward,
    RoundEnd,
    RoundRecord,
    Shown,
    SiteValue,
    read_metrics,
    rewards_of,
)
from client_agent.site.identity import load_identity
from client_agent.site.journal import FINAL_SCORES, StudyJournal
from client_agent.site.models import Kept, KeptModel, kept_model
from client_agent.site.privacy_budget import budget_memory
from client_agent.study.plain_words import in_plain_words, settings_words
from client_agent.study.privacy_spending import own_examples
from client_agent.study.ranking import RANKING_FILE, Ranking
from client_agent.study.summary import SUMMARY_FILE, Summary
from protocol.errors import ConfigurationError
from protocol.messages.control import Roster, Study


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Missed(_Frozen):
    """The rounds that a site missed for one reason, and its own words in the last of them."""

    why: Absent
    rounds: int
    text: Shown = ""


class SiteStory(_Frozen):
    """One contributor over the study: ``sums`` of updates it is in, the rule's first and last weight for it.

    ``weights`` is the sum of its weights in those sums; None where this site does not know them.

    ``distance`` is the last that was opened; None where the rule opens none, and at every site but the requester.
    """

    site: str
    sums: int
    first_weight: float | None
    last_weight: float | None
    weights: float | None
    distance: float | None
    missed: tuple[Missed, ...]


class Cost(_Frozen):
    """All exchanges with one server for one purpose: bytes at the socket, TLS and headers among them."""

    server: str
    purpose: str
    exchanges: int
    sent_bytes: int
    received_bytes: int


class StudyReport(_Frozen):
    """A study as this site knows it at ``made_s`` (seconds since 1970), in any state.

    ``state`` is a word or two, ``reason`` why; ``outcome`` says what a study that did not end as asked has come to.
    ``settings`` and ``statements`` are in words, by the signed study. ``rounds`` are this site's records; weights and
    what was opened about sites are in them at the requester alone. ``costs`` are the study's own exchanges,
    ``costs_of_all`` those that belong to no single study. Without ``card``, ``no_card`` says why.
    """

    report: Literal["moiety-study-report/1"] = "moiety-study-report/1"
    study: str
    study_digest: str
    roster_digest: str
    federation: str
    site: str
    requester: str
    made_s: float
    state: str
    reason: Shown
    outcome: str
    federated: Federated
    sums: int
    settings: tuple[Named, ...]
    statements: tuple[Named, ...]
    sites: tuple[SiteStory, ...]
    rounds: tuple[RoundRecord, ...]
    scores: FinalScores | None
    best: KeptModel | None
    ranking: Ranking | None
    summary: Summary | None
    privacy: CardPrivacy | None
    costs: tuple[Cost, ...]
    costs_of_all: tuple[Cost, ...]
    card: ModelCard | None
    no_card: Shown
    versions: tuple[Named, ...]

    @property
    def at_requester(self) -> bool:
        return self.site == self.requester


def study_report(settings: AgentSettings, name: str, now_s: float) -> StudyReport:
    """Whatever state the study is in. Raises: ConfigurationError where this site knows none of that name"""
    roster, came_with = load_identity(settings)
    stand = stand_of(settings, name)
    study, folder = stand.asked, settings.state_dir / "studies" / name
    records = read_metrics(folder / METRICS)
    journal = StudyJournal(settings.state_dir, name) if folder.is_dir() else None
    card, no_card = _card(settings, roster, name)
    rewards = {one.site: one for one in rewards_of(records, settings.site, roster.requester)}
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
        sites=tuple(_story(party.name, records, rewards.get(party.name)) for party in roster.contributors),
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
    from client_agent.data.schema_check import TRANSFORMATION_FILE
    from client_agent.data.transformation import load_transformation

    path = settings.data / TRANSFORMATION_FILE
    return load_transformation(path).digest if study.data_schema is not None and path.exists() else None


def _privacy(settings: AgentSettings, came_with: str, study: Study) -> CardPrivacy | None:
    if study.record_noise is None:
        return None
    return privacy_of(study, budget_memory(settings.state_dir, came_with).trainings, settings.policy)


def _story(site: str, records: tuple[RoundRecord, ...], reward: Reward | None) -> SiteStory:
    weights = [value for record in records for value in _of(record.alphas, site)]
    distances = [value for record in records for value in _of(record.distances, site)]
    summed = [r for r in records if r.state is RoundEnd.RELEASED and r.purpose.plan.steps_model]
    return SiteStory(
        site=site,
        sums=sum(site in record.took_part for record in summed),
        first_weight=weights[0] if weights else None,
        last_weight=weights[-1] if weights else None,
        weights=0.0 if reward is None else reward.weights,
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
