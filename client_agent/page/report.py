"""A study report, read from this site's own state folder; nothing is asked of a server or kept.

Its page is one self-contained file, no script, nothing loaded from elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, Literal

from client_agent.learning.scores import FIRST_SCORES, FinalScores, MetricName, first_scores, value_of, words_of
from client_agent.model.card import CardPrivacy, ModelCard, Named, card_markdown, card_of, privacy_of, versions_of
from client_agent.model.site_model import held_model
from client_agent.net.ledger import LedgerEntry, by_purpose, read_ledger
from client_agent.page.charts import document, figure, over_rounds
from client_agent.page.study_state import Federated, federated, of_sites, outcome_text, stand_of, sums_of
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
from client_agent.site.journal import FINAL_SCORES, Kept, KeptModel, StudyJournal, kept_model
from client_agent.site.privacy_budget import budget_memory
from client_agent.study.plain_words import in_plain_words, settings_words
from client_agent.study.privacy_spending import own_examples
from client_agent.study.results import RANKING_FILE, SUMMARY_FILE, Ranking, Summary
from host.frozen import Frozen
from host.web_page import SOURCE, environment_of
from protocol.errors import ConfigurationError
from protocol.messages.control import Roster, Study
from protocol.text import printable

_SHOWN_ROUNDS: Final = 500
_OPENED: Final = "Each contributor's, opened to the requester alone."


class Missed(Frozen):
    """The rounds that a site missed for one reason, and its own words in the last of them."""

    why: Absent
    rounds: int
    text: Shown = ""


class SiteStory(Frozen):
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


class Cost(Frozen):
    """All exchanges with one server for one purpose: bytes at the socket, TLS and headers among them."""

    server: str
    purpose: str
    exchanges: int
    sent_bytes: int
    received_bytes: int


class StudyReport(Frozen):
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
    stand = stand_of(settings, roster, name)
    study, folder = stand.asked, settings.state_dir / "studies" / name
    records = read_metrics(folder / METRICS)
    journal = StudyJournal(settings.state_dir, name) if folder.is_dir() else None
    card, no_card = _card(settings, roster, name)
    rewards = {one.site: one for one in rewards_of(records, settings.site, roster.requester)}
    entries = read_ledger(settings.state_dir / "ledger.jsonl")
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
        privacy=None
        if study.record_noise is None
        else privacy_of(study, budget_memory(settings.state_dir, came_with).trainings, settings.policy),
        costs=_costs(one for one in entries if one.study == name),
        costs_of_all=_costs(one for one in entries if one.study is None),
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
    from client_agent.data.transformation import load_transformation
    from client_agent.learning.data import TRANSFORMATION_FILE

    path = settings.data / TRANSFORMATION_FILE
    return load_transformation(path).digest if study.data_schema is not None and path.exists() else None


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


def _costs(entries: Iterable[LedgerEntry]) -> tuple[Cost, ...]:
    return tuple(
        Cost(
            server=server,
            purpose=purpose,
            exchanges=totals.entries,
            sent_bytes=totals.socket_sent_bytes,
            received_bytes=totals.socket_received_bytes,
        )
        for (server, purpose), totals in by_purpose(entries).items()
    )


def report_html(report: StudyReport) -> str:
    """The whole page; other parties' words are shown as they can be."""
    template = environment_of("client_agent.page", SOURCE).get_template("report.jinja")
    body = template.render(
        report=report,
        tested=next((record for record in reversed(report.rounds) if record.test_scores), None),
        figures=tuple(_figures(report)),
        shown_rounds=_SHOWN_ROUNDS,
        metric=_metric,
        first_scores=first_scores,
        card_markdown=card_markdown,
    )
    return document(f"Study {report.study}", body)


def _metric(name: str) -> str:
    """Return the metric for people; a plug-in's own metric under its own name."""
    return words_of(MetricName(name)) if name in set(MetricName) else printable(name)


_OF_SITES: Final[tuple[tuple[str, str, Callable[[RoundRecord], tuple[SiteValue, ...]]], ...]] = (
    (
        "Weights",
        "Each contributor's weight under the study's rule, in full precision, after every round.",
        lambda record: record.alphas,
    ),
    ("Distances", _OPENED, lambda record: record.distances),
    ("Lengths", _OPENED, lambda record: record.norms),
    ("Inner products", _OPENED, lambda record: record.inner_products),
)


def _figures(report: StudyReport) -> Iterator[str]:
    records = report.rounds
    for name in [score.name for record in records[-1:] for score in record.test_scores[:FIRST_SCORES]]:
        values = [(record.round, value_of(record.test_scores, name)) for record in records]
        metric, caption = _metric(name), "On this site's own test examples, after every round."
        shown = over_rounds(metric, ((metric, number, one) for number, one in values if one is not None), None)
        if shown:
            yield figure(metric[:1].upper() + metric[1:], caption, shown)
    for title, caption, take in _OF_SITES:
        shown = over_rounds(title.lower(), of_sites(records, take))
        if shown:
            yield figure(title, caption, shown)
    known = ((report.site, record.round, record.isolation) for record in records if record.isolation is not None)
    isolation = over_rounds("isolation", known)
    if isolation:
        caption = "How far off the best estimate of anybody's update would be, for one who has all sums and lists."
        yield figure("Isolation", caption, isolation)
