"""``report.html`` of a study: one self-contained file, no script, nothing loaded from elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from html import escape
from typing import Final

from client_agent.learning.scores import MetricName, Score, shown_score, words_of
from client_agent.model.card import CardPrivacy, card_markdown
from client_agent.page.charts import Curve, chart, document, figure, table
from client_agent.page.report import Cost, SiteStory, StudyReport
from client_agent.site.events import RoundRecord, SiteValue
from protocol.text import printable


def noise_html(own: CardPrivacy | None) -> str:
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


_FOLLOWED: Final = 2
"""The number of metrics that get a curve: the first ones of the study's task."""
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
            noise_html(report.privacy),
            "<h2>Costs</h2>",
            _costs(report),
            "<h2>Model card</h2>",
            _card(report),
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


def _curves(report: StudyReport) -> Iterator[str]:
    names = [score.name for record in report.rounds[-1:] for score in record.test_scores[:_FOLLOWED]]
    for name in names:
        curve = Curve(_metric(name), _points(report, partial(_score_of, name)))
        shown = chart([curve], curve.name)
        yield figure(
            curve.name[:1].upper() + curve.name[1:], "On this site's own test examples, after every round.", shown
        )
    if any(record.alphas for record in report.rounds):
        caption = "Each contributor's weight under the study's rule, in full precision, after every round."
        yield figure("Weights", caption, _of_sites(report, lambda record: record.alphas, "weight"))
    for title, take in _OPENED:
        if any(take(record) for record in report.rounds):
            caption = "Each contributor's, opened to the requester alone."
            yield figure(title, caption, _of_sites(report, take, title.lower()))
    isolation = Curve(report.site, _points(report, lambda record: record.isolation))
    if isolation.points:
        caption = "How far off the best estimate of anybody's update would be, for one who has all sums and lists."
        yield figure("Isolation", caption, chart([isolation], "isolation", floor=0.0))


_OPENED: Final[tuple[tuple[str, Callable[[RoundRecord], tuple[SiteValue, ...]]], ...]] = (
    ("Distances", lambda record: record.distances),
    ("Lengths", lambda record: record.norms),
    ("Inner products", lambda record: record.inner_products),
)


def _score_of(name: str, record: RoundRecord) -> float | None:
    return next((score.value for score in record.test_scores if score.name == name), None)


def _points(report: StudyReport, take: Callable[[RoundRecord], float | None]) -> tuple[tuple[int, float], ...]:
    found = [(record.round, take(record)) for record in report.rounds]
    return tuple((number, value) for number, value in found if value is not None)


def _of_sites(report: StudyReport, take: Callable[[RoundRecord], tuple[SiteValue, ...]], label: str) -> str:
    curves = [
        Curve(
            one.site,
            tuple((record.round, v.value) for record in report.rounds for v in take(record) if v.site == one.site),
        )
        for one in report.sites
    ]
    return chart(curves, label, floor=0.0)


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
        ", ".join(shown_score(score) for score in record.test_scores[:_FOLLOWED]),
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


def _costs(report: StudyReport) -> str:
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


def _card(report: StudyReport) -> str:
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
