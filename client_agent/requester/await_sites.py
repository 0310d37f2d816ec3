"""Before a round: the requester waits for sites, hears who refuses, welcomes the others (docs/protocol.md 3)."""

from __future__ import annotations

from functools import partial
from typing import Final

from client_agent.quiet_hours import LARGE_TRANSFER_BYTES
from client_agent.requester.absent.missing_sites import MissingSites
from client_agent.requester.attestations import welcome
from client_agent.requester.plan import situation
from client_agent.requester.state import RoundPlan, Welcomed
from client_agent.requester.study import RequesterStudy
from client_agent.site.events import EventKind
from client_agent.study.asked.foreseen_transfers import contribution_bytes
from client_agent.study.refusals import public_text, read_refusal, refusing_sites
from protocol.errors import RefusedMessage, UnknownResource
from protocol.messages import paths
from protocol.messages.control import EndCause, Purpose, StudyEndState, StudyView
from protocol.rounds.planning import next_purpose
from protocol.rules.interface import SiteFacts
from protocol.sharing import Side
from protocol.text import printable

_QUIET_PAUSE_S: Final = 60.0


def await_contributors(owner: RequesterStudy) -> None:
    """Until everybody (or as many as this agent's settings say) is ready; after a while, the least number.

    A site whose policy forbids the study's protection, or what its rule opens, ends the study instead.
    """
    everybody = len(owner.context.roster.contributors)
    wanted = everybody if owner.context.start_when is None else min(owner.context.start_when, everybody)
    least = owner.study.parameters.least_contributors
    give_up = owner.context.clock.now() + owner.context.start_timeout_s
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
        rule_state=owner.rule.admit(owner.progress.rule_state, facts),
        welcomed=(*owner.progress.welcomed, *entries),
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
    """Contributors that are ready at both servers, in roster order."""
    both = set(a.ready) & set(b.ready)
    return tuple(party.name for party in owner.context.roster.contributors if party.name in both)


def _hear_refusal(owner: RequesterStudy, view: StudyView) -> bool:
    """Return whether a refusal ended the study before it started; a letter that does not open counts for nothing."""
    contributors = {party.name for party in owner.context.roster.contributors}
    for sender in refusing_sites(view):
        entry = f"{paths.REFUSAL_TOPIC}/{sender}"
        if sender not in contributors or entry in owner.progress.unreadable:
            continue
        try:
            refusal = owner.retried(partial(read_refusal, owner, sender))
        except UnknownResource:
            continue
        except RefusedMessage as refused:
            owner.put_aside(entry, paths.REFUSAL_TOPIC, refused.detail)
            continue
        public = public_text(owner.study, sender)
        why = f"site {sender!r} refuses the study: {printable(refusal.reason)}"
        owner.end_study(StudyEndState.FAILED, EndCause.STUDY_REFUSED, public, why, clause=refusal.clause, site=sender)
        return True
    return False
