"""A study report, read from this site's own state folder; nothing is asked of a server or kept.

Its page is one self-contained file, no script, nothing loaded from elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from html import escape
from typing import Final, Literal

from client_agent.learning.scores import FIRST_SCORES, FinalScores, MetricName, Score, first_scores, value_of, words_of
from client_agent.model.card import CardPrivacy, ModelCard, Named, card_markdown, card_of, privacy_of, versions_of
from client_agent.model.site_model import held_model
from client_agent.net.ledger import LedgerEntry, by_purpose, read_ledger
from client_agent.page.charts import document, figure, over_rounds, table
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
from client_agent.site.journal import FINAL_SCORES, StudyJournal
from client_agent.site.models import Kept, KeptModel, kept_model
from client_agent.site.privacy_budget import budget_memory
from client_agent.study.plain_words import in_plain_words, settings_words
from client_agent.study.privacy_spending import own_examples
from client_agent.study.ranking import RANKING_FILE, Ranking
from client_agent.study.summary import SUMMARY_FILE, Summary
from host.frozen import Frozen
from protocol.errors import ConfigurationError
from protocol.messages.control import Roster, Study
from protocol.text import printable

_SHOWN_ROUNDS: Final = 500
_ROUND: Final = (
    "round",
    "purpose",
    "how it ended",
    "took part",
    "not in it, and why",
    "isolation",
    "tested here",
    "s",
    "kB",
)


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
    from client_agent.data.schema_check import TRANSFORMATION_FILE
    from client_agent.data.transformation import load_transformation

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
    body = "".join(
        [
            _head(report),
            "<h2>Settings</h2>",
            table(("setting", "value"), [(one.name, one.value) for one in report.settings]),
            "<h2>How well the model does here</h2>",
            _scores(report),
            *_curves(report),
            "<h2>Sites</h2>",
            _sites(report),
            "<h2>Rounds</h2>",
            _rounds(report),
            _ranking(report),
            _summary(report),
            "<h2>What was opened, and to whom</h2>",
            table(("about", "by the signed study"), [(one.name, one.value) for one in report.statements]),
            "<h2>Noise and privacy budget</h2>",
            _noise(report.privacy),
            "<h2>Costs</h2>",
            _costs_html(report),
            "<h2>Model card</h2>",
            _card_html(report),
            "<h2>Versions and digests</h2>",
            _facts(report),
        ]
    )
    return document(f"Study {report.study}", body)


def _head(report: StudyReport) -> str:
    reason = f" ({printable(report.reason)})" if report.reason else ""
    alarm = f'<p class="alarm">{escape(report.outcome)}</p>' if report.outcome else ""
    made = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(report.made_s))
    who = "its requester" if report.at_requester else f"a contributor; its requester is {report.requester}"
    return (
        f"<h1>Study {escape(printable(report.study))}</h1>"
        f"<p><b>{escape(report.state + reason)}</b>: {report.sums} sums, {len(report.rounds)} rounds on record.</p>"
        f"{alarm}<p class=note>As {escape(report.site)} knows it, {escape(who)}, in federation "
        f"{escape(report.federation)}; made {made} from this site's own state folder. It holds what only this site may "
        "know: give it to nobody who may not.</p>"
    )


def _scores(report: StudyReport) -> str:
    if report.scores is None:
        last = next((record for record in reversed(report.rounds) if record.test_scores), None)
        if last is None:
            return "<p>No metrics yet: no round has a model that this site could test.</p>"
        said = f"After round {last.round}, on this site's own test examples, without intervals: the study is not over."
        return f"<p>{said}</p>{_score_table(last.test_scores)}"
    final = report.scores
    drawn = f", 95 % intervals over {final.samples} bootstrap draws" if final.samples else ""
    best = "" if report.best is None else _best(report)
    return (
        f"<p>The last model on this site's {final.examples} test examples{drawn}. They say nothing about other "
        f"patients.</p>{_score_table(final.scores)}{best}"
    )


def _score_table(scores: tuple[Score, ...]) -> str:
    rows = [
        (_metric(score.name), _number(score.value, 4), _interval(score), printable(score.reason)) for score in scores
    ]
    return table(("metric", "value", "95 % interval", ""), rows)


def _metric(name: str) -> str:
    """Return the metric for people; a plug-in's own metric under its own name."""
    return words_of(MetricName(name)) if name in set(MetricName) else printable(name)


def _interval(score: Score) -> str:
    return "" if score.low is None or score.high is None else f"{score.low:.4f} to {score.high:.4f}"


def _best(report: StudyReport) -> str:
    if report.best is None or report.best.validation_loss is None:
        return ""
    return (
        f"<p class=note>By this site's validation examples the shared model of version {report.best.version} is the "
        f"best (loss {report.best.validation_loss:.4f}): moiety model export {escape(report.study)} --best.</p>"
    )


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


def _curves(report: StudyReport) -> Iterator[str]:
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


def _sites(report: StudyReport) -> str:
    head = ("site", "sums it is in", "sum of weights", "first", "last", "last distance", "left out, and why")
    return table(head, [_site_row(one) for one in report.sites])


def _site_row(one: SiteStory) -> tuple[str, ...]:
    numbers = (_number(value, 4) for value in (one.weights, one.first_weight, one.last_weight, one.distance))
    missed = "; ".join(
        f"{kind.why.value.replace('_', ' ')} in {kind.rounds} rounds{': ' if kind.text else ''}{kind.text}"
        for kind in one.missed
    )
    return (one.site, str(one.sums), *numbers, missed)


def _rounds(report: StudyReport) -> str:
    if not report.rounds:
        return "<p>No round has ended here yet.</p>"
    shown = report.rounds[-_SHOWN_ROUNDS:]
    earlier = len(report.rounds) - len(shown)
    note = f"<p class=note>{earlier} earlier rounds are in the JSON form.</p>" if earlier else ""
    return table(_ROUND, [_round_row(record) for record in shown]) + note


def _round_row(record: RoundRecord) -> tuple[str, ...]:
    reason = f" ({record.reason})" if record.reason else ""
    missing = "; ".join(one.said for one in record.absences) or ", ".join((*record.failed_check, *record.declined))
    return (
        str(record.round),
        record.purpose.value,
        f"{record.state.value}{reason}",
        ", ".join(record.took_part),
        missing,
        _number(record.isolation, 3),
        first_scores(record.test_scores),
        f"{record.seconds:.1f}",
        f"{(record.bytes_up + record.bytes_down) / 1000:,.0f}",
    )


def _ranking(report: StudyReport) -> str:
    ranking = report.ranking
    if ranking is None:
        return ""
    if ranking.problem or ranking.judged_on is None:
        return f"<h2>Ranking</h2><p>The sites were not ranked: {escape(printable(ranking.problem))}</p>"
    ranked = [
        (str(place), one.site, "failed its range check" if one.loss is None else f"{one.loss:.4f}")
        for place, one in enumerate(ranking.sites, start=1)
    ]
    absent = [("", one.site, f"not ranked: {one.reason}") for one in ranking.unranked]
    own = ("", f"{ranking.requester} itself{ranking.judged_on.caveat}", _number(ranking.own_loss, 4))
    return "<h2>Ranking</h2>" + table(("rank", "site", "transfer loss"), [*ranked, *absent, own])


def _summary(report: StudyReport) -> str:
    found = report.summary
    if found is None:
        return ""
    said = printable(found.problem) or (
        f"{len(found.sites)} sites were summed: {', '.join(found.sites)}; moiety study summary {report.study} shows it."
    )
    return f"<h2>Summary of the sites' tables</h2><p>{escape(said)}</p>"


def _noise(own: CardPrivacy | None) -> str:
    """A table and a note; None is a study whose sites added none."""
    if own is None:
        return (
            "<p>The sites added no noise: no bound is known on what this study's model and its sums tell about a "
            "single record.</p>"
        )
    rows = [
        ("epsilon of this study, per record of this site", f"{own.epsilon:.3f}"),
        ("epsilon of all this site's studies, per record of this site", f"{own.spent:.3f}"),
        ("delta", f"{own.delta:g}"),
        ("budget", _budget(own)),
        ("noise multiplier, record clip", f"{own.noise_multiplier:g}, {own.record_clip or 0:g}"),
        ("trainings", str(own.trainings)),
        ("accountant", own.accountant),
    ]
    return table(("what", "at this site"), rows) + "<p class=note>Other sites have their own numbers.</p>"


def _budget(own: CardPrivacy) -> str:
    if own.budget is None:
        return "none is set"
    return f"{own.budget:g}, of which {own.used or 0:.0%} is used"


def _costs_html(report: StudyReport) -> str:
    head = ("server", "purpose", "exchanges", "bytes sent", "bytes received")
    seconds = sum(record.seconds for record in report.rounds)
    return (
        f"<p>Seconds of all rounds at this site: {seconds:,.1f}. Bytes at the socket, from this site's ledger.</p>"
        f"<h3>Of this study</h3>{table(head, _cost_rows(report.costs))}"
        "<h3>Of no single study</h3><p class=note>Handshakes and lists, and what earlier versions wrote without a "
        f"study's name.</p>{table(head, _cost_rows(report.costs_of_all))}"
    )


def _cost_rows(costs: tuple[Cost, ...]) -> list[tuple[str, ...]]:
    rows = [
        (one.server, one.purpose, f"{one.exchanges:,}", f"{one.sent_bytes:,}", f"{one.received_bytes:,}")
        for one in costs
    ]
    sent, received = sum(one.sent_bytes for one in costs), sum(one.received_bytes for one in costs)
    return [*rows, ("all", "", f"{sum(one.exchanges for one in costs):,}", f"{sent:,}", f"{received:,}")]


def _card_html(report: StudyReport) -> str:
    if report.card is None:
        return f"<p>There is none yet: {escape(report.no_card)}.</p>"
    said = f"As moiety model export writes it; sites are pseudonyms there. Model {report.card.model_version}."
    return f"<p class=note>{said}</p><pre>{escape(card_markdown(report.card))}</pre>"


def _facts(report: StudyReport) -> str:
    digests = [("study", report.study_digest), ("roster that it names", report.roster_digest)]
    card = report.card
    if card is not None and card.transformation_digest is not None:
        digests.append(("transformation", card.transformation_digest))
    return table(("program", "version"), [(one.name, one.value) for one in report.versions]) + table(
        ("SHA-256 of", ""), digests
    )


def _number(value: float | None, places: int) -> str:
    return "" if value is None else f"{value:.{places}f}"
