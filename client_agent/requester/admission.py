"""Admit sites before a round: wait for them, hear who refuses, welcome the others (docs/protocol.md 3)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from client_agent.net.quiet_hours import LARGE_TRANSFER_BYTES
from client_agent.requester.plan import situation
from client_agent.requester.postbox import send_welcome
from client_agent.requester.study import RequesterStudy, RoundPlan, Welcomed
from client_agent.site.events import EventKind
from client_agent.site.journal import Awaited, AwaitedSite, keep_awaited, minute
from client_agent.site.letters import Attestation, Hindrance, StudyRefusal
from client_agent.study.contribution import contribution_bytes
from client_agent.study.mail import checkpoint_digest, contributors_of, fetched, needed, senders, stated
from protocol.errors import BadSignature, RefusedMessage
from protocol.messages.control import EndCause, Purpose, Signed, Study, StudyEndState, StudyView, require_signatures
from protocol.messages.letter import LetterKind, Topic
from protocol.parameters import Needs
from protocol.rounds.evidence import PastRelease
from protocol.rounds.planning import next_purpose
from protocol.rules.interface import SiteFacts
from protocol.sharing import Side
from protocol.text import printable

_LONGEST_WAIT_S: Final = 30.0


def welcome(owner: RequesterStudy, sites: list[str], *, longest_s: float = _LONGEST_WAIT_S) -> bool:
    """Send the sites' key and name the present model; sent again, it is the same letter.

    Version 0 is not sent, unless it is pretrained: every site derives it. Another one comes with the release that
    led to it and with its contributors' word; while too few of them gave it, False, and nobody is let in.
    """
    attestations = gathered(owner, sites, longest_s)
    if attestations is None:
        return False
    model = owner.require_kept().astype("<f4").tobytes()
    owner.retried(lambda: send_welcome(owner, sites, model, attestations))
    return True


def gathered(
    owner: RequesterStudy, waiting: Sequence[str], longest_s: float = _LONGEST_WAIT_S
) -> tuple[Signed[Attestation], ...] | None:
    """The contributors' word for the present model, of as many as a site needs; None when too few say it in time.

    ``waiting`` are the sites that want to be welcomed, for the record. Version 0 needs nobody's word.
    Raises: StudyOver, Stopped
    """
    past = owner.led_here()
    if past is None:
        return ()
    give_up = owner.context.clock.now() + min(longest_s, owner.study.round_deadline_s)
    read: dict[str, Signed[Attestation] | None] = {}

    def enough(a: StudyView, _: StudyView) -> bool | None:
        _read_new(owner, past, a, read)
        if sum(one is not None for one in read.values()) >= needed(owner, past):
            return True
        return False if owner.context.clock.now() >= give_up else None

    if owner.until(enough):
        return tuple(one for one in read.values() if one is not None)
    missing = [site for site in contributors_of(owner, past) if read.get(site) is None]
    owner.event(
        EventKind.PROBLEM,
        None,
        f"{', '.join(waiting)} cannot be let in yet: model {owner.state.model_version} needs the word of "
        f"{needed(owner, past)} of its contributors, and none came from {', '.join(missing)}",
    )
    return None


def _read_new(
    owner: RequesterStudy, past: PastRelease, view: StudyView, read: dict[str, Signed[Attestation] | None]
) -> None:
    """Letters that were not read yet; None for one that does not open, or names another model than this one."""
    for sender in senders(view, Topic(LetterKind.ATTESTED, owner.state.model_version or 0)):
        if sender in contributors_of(owner, past) and sender not in read:
            try:
                read[sender] = _read(owner, past, sender)
            except RefusedMessage as refused:
                read[sender] = None
                owner.problem(None, refused.detail)


def _read(owner: RequesterStudy, past: PastRelease, sender: str) -> Signed[Attestation]:
    version = owner.state.model_version or 0
    topic = Topic(LetterKind.ATTESTED, version)
    signed = owner.retried(lambda: fetched(owner, topic, sender, Signed[Attestation]))
    message = require_signatures(signed, owner.context.held.chain.newest_with(sender), (sender,))
    if message != stated(owner, sender, past, checkpoint_digest(owner)):
        raise BadSignature(f"site {sender!r} attests another model {version} than this one; it was served other bytes")
    return signed


_TELL_AGAIN_S: Final = 60.0
_DECLINED: Final = "it takes no part: its people declined the study"
_HINDERED: Final = (
    "it cannot begin: something there, its data or settings, must be mended by its people, whose agent's log says what"
)
_PAUSED: Final = "it is paused by its people, who resume it there"
_SILENT: Final = "does it run, have its people approved the study, is it among its 'studies'?"


class MissingSites:
    """Names them whenever that changes, and once a minute: since when, and why as far as the site says."""

    def __init__(self, owner: RequesterStudy) -> None:
        self._owner = owner
        self._since_s = owner.context.clock.now()
        self._told: tuple[str, float] = ("", 0.0)
        self._hindered: dict[str, str] = {}

    def tell(self, a: StudyView, b: StudyView) -> None:
        """One look at both servers' views."""
        self._read_hindrances(a)
        found = [(name, self._of(name, a, b)) for name in self._owner.contributors]
        sites = tuple(AwaitedSite(site=name, why=why) for name, why in found if why)
        awaited, now = Awaited(since_s=self._since_s, sites=sites), self._owner.context.clock.monotonic()
        if not sites or (awaited.text == self._told[0] and now < self._told[1] + _TELL_AGAIN_S):
            return
        if awaited.text != self._told[0]:
            keep_awaited(self._owner.journal, awaited)
        self._told = (awaited.text, now)
        self._owner.event(EventKind.STUDY, None, awaited.text)

    def over(self) -> None:
        keep_awaited(self._owner.journal, None)

    def _of(self, site: str, a: StudyView, b: StudyView) -> str:
        """Why it is not ready; empty where it is."""
        lacking = [f"server {side}" for side, view in ((Side.A, a), (Side.B, b)) if site not in view.ready]
        if not lacking:
            return ""
        if site in self._hindered:
            return self._hindered[site]
        if len(lacking) == 1:
            return f"not ready at {lacking[0]}"
        return f"nothing heard of its agent in this study: {_SILENT}"

    def _read_hindrances(self, view: StudyView) -> None:
        topic = Topic(LetterKind.HINDERED)
        for sender in sorted({*senders(view, topic)} & {*self._owner.contributors} - self._hindered.keys()):
            told = self._owner.heard(topic, sender, Signed[Hindrance], patient=False)
            if told is None:
                continue
            why = _DECLINED if told.declined else _PAUSED if told.paused else _HINDERED
            self._hindered[sender] = f"since {minute(told.since_s)} {why}"


_QUIET_PAUSE_S: Final = 60.0
_START_TIMEOUT_S: Final = 3600.0
"""The time for agents to start; where not all ever will, ``start_when`` says how many are enough at once."""


def await_contributors(owner: RequesterStudy) -> None:
    """Until everybody (or as many as this agent's settings say) is ready; after a while, the least number.

    A site whose policy forbids the study's protection, or what its rule opens, ends the study instead.
    """
    everybody = len(owner.contributors)
    wanted = everybody if owner.context.start_when is None else min(owner.context.start_when, everybody)
    least = owner.study.parameters.least_contributors
    give_up = owner.context.clock.now() + _START_TIMEOUT_S
    owner.event(EventKind.STUDY, None, f"waiting for {wanted} of {everybody} contributors")
    missing = MissingSites(owner)

    def enough(a: StudyView, b: StudyView) -> bool | None:
        if _hear_refusal(owner, a):
            return False
        ready = len(_ready(owner, a, b))
        missing.tell(a, b)
        late = owner.context.clock.now() >= give_up
        return True if ready >= wanted or (late and ready >= least) else None

    try:
        owner.until(enough)
    finally:
        missing.over()


def wait_for_quiet_hours(owner: RequesterStudy) -> None:
    """No round is begun in which this site could not send its own part. Raises: Stopped, StudyOver"""
    context = owner.context
    while contribution_bytes(owner.study) > LARGE_TRANSFER_BYTES:
        now_s = context.clock.now()
        wait_s = context.quiet.remaining_s(now_s)
        if wait_s <= 0:
            return
        owner.problem_once(None, f"quiet hours until {context.quiet.said(now_s + wait_s)}: the next round waits")
        seen = owner.watch.serial
        owner.until(lambda a, b: True)  # an end that somebody signed meanwhile
        owner.watch.wait(seen, min(wait_s, _QUIET_PAUSE_S))


def admit(owner: RequesterStudy) -> None:
    """Welcome the sites that became ready since the last round."""
    a, b = owner.until(partial(_with_roster, owner))
    known = {entry.site for entry in owner.progress.welcomed}
    newcomers = [site for site in _ready(owner, a, b) if site not in known]
    if not newcomers:
        return
    version = owner.state.model_version or 0
    if not welcome(owner, newcomers):
        return
    facts = tuple(
        SiteFacts(name=party.name, samples=party.samples or 1)
        for party in owner.context.roster.contributors
        if party.name in newcomers
    )
    entries = tuple(Welcomed(site=site, version=version) for site in newcomers)
    owner.keep(
        rule_state=owner.rule.admit(owner.progress.rule_state, facts), welcomed=(*owner.progress.welcomed, *entries)
    )
    owner.event(EventKind.STUDY, None, f"welcomed {', '.join(newcomers)}")


def _with_roster(owner: RequesterStudy, a: StudyView, b: StudyView) -> tuple[StudyView, StudyView] | None:
    """Both views, once both servers have every link of the roster that the next announcement would name."""
    held = owner.context.held.chain.number
    for side, view in zip(Side, (a, b), strict=True):
        if view.roster_changes < held:
            owner.problem_once(
                None,
                f"server {owner.context.roster.operator(side).name!r} has change {view.roster_changes} of the roster, "
                f"this site has change {held}: the next round waits until its operator has the newest file in place",
            )
            return None
    return a, b


def bring_up_to_date(owner: RequesterStudy) -> None:
    """Before a measurement, the model for sites that the last sum's list left out: they are measured with the others.

    A site that was on that list has seen the sum, or fetches it; one that lacks the model all the same says so.
    """
    if next_purpose(situation(owner)) is Purpose.MEASURE:
        wanted = [one.site for one in owner.progress.welcomed if one.site not in owner.progress.dropped]
        _send_model(owner, wanted, "to be measured again")


def show_model(owner: RequesterStudy, plan: RoundPlan) -> None:
    """Before a planned sum, the model for those on its list whom the last sum's left out: without it they would
    decline, for which a rule that measures has one more try with a model, and then none.
    """
    announcement = plan.announcement.message
    if announcement.purpose.plan.steps_model:
        wanted = list(announcement.listed)
        _send_model(owner, wanted, "who were not in the last sum", longest_s=owner.study.round_deadline_s / 4)


def _send_model(owner: RequesterStudy, wanted: list[str], why: str, **within: float) -> None:
    """To those of them that the last sum's list left out and that have an older one."""
    past, version = owner.led_here(), owner.state.model_version or 0
    if past is None:
        return
    older = {one.site for one in owner.progress.welcomed if one.version < version} - {*past.announcement.listed}
    behind = [site for site in wanted if site in older]
    if behind and welcome(owner, behind, **within):
        entries = tuple(Welcomed(site=site, version=version) for site in behind)
        kept = tuple(one for one in owner.progress.welcomed if one.site not in behind)
        owner.keep(welcomed=(*kept, *entries))
        owner.event(EventKind.STUDY, None, f"sent model {version} to {', '.join(behind)}, {why}")


def _ready(owner: RequesterStudy, a: StudyView, b: StudyView) -> tuple[str, ...]:
    return tuple(name for name in owner.contributors if name in a.ready and name in b.ready)


def _hear_refusal(owner: RequesterStudy, view: StudyView) -> bool:
    """Return whether a refusal ended the study before it started; a letter that does not open counts for nothing."""
    topic = Topic(LetterKind.REFUSAL)
    for sender in senders(view, topic):
        refusal = owner.heard(topic, sender, Signed[StudyRefusal]) if sender in owner.contributors else None
        if refusal is None:
            continue
        public = public_text(owner.study, sender)
        why = f"site {sender!r} refuses the study: {printable(refusal.reason)}"
        owner.end_study(StudyEndState.FAILED, EndCause.STUDY_REFUSED, public, why, clause=refusal.clause, site=sender)
        return True
    return False


def public_text(study: Study, site: str) -> str:
    """Why the study ends, as the servers may read it: from the study alone, nothing of the site's letter.

    A rule of a study under CKKS opens nothing about single sites, so there only the protection can be refused.
    """
    if not study.protection.plan.opens:
        return f"site {site!r} takes no part in a study under CKKS; no round was begun"
    needs = (study.rule.needs, study.rule.name.declared.measures)
    opens = " and ".join(one.value for one in needs if one is not Needs.NOTHING)
    opened = f"rule open {opens or Needs.NOTHING.value}"
    if study.ranking is not None:
        ranks = "ranking open inner_products"
        opened = f"{opened} or its {ranks}" if opens else ranks
    if study.summary is not None:
        opened = f"{opened}, or its summary sums,"
    if study.privacy is not None:
        asked = f"let the study's {opened} about it, or asks for other noise, or its privacy budget is too small"
        return f"site {site!r} does not {asked}; no round was begun"
    return f"site {site!r} does not let the study's {opened} about it; no round was begun"
