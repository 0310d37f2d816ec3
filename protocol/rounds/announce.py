"""A server's checks of an announcement besides its signature (docs/protocol.md 3, 4, 8, 11)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocol.errors import AnnouncementMismatch, ConflictingMessage, MalformedMessage, WrongRound
from protocol.rounds.transitions import RoundProgress, StudyEvent, study_step
from protocol.wire.messages import Announcement, Purpose, Roster, RoundState, Study, StudyState

_CLOCK_SLACK_S: Final = 300


@dataclass(frozen=True)
class LastRound:
    """The last round that a study has at this server."""

    progress: RoundProgress
    announcement: Announcement


def check_said(
    announcement: Announcement,
    number: int,
    study: Study,
    study_digest: str,
    roster: Roster,
    last: LastRound | None,
    now_s: float,
) -> None:
    """It says what the study lets its rounds say. Raises: AnnouncementMismatch, WrongRound, MalformedMessage"""
    if announcement.study_digest != study_digest:
        raise AnnouncementMismatch("the announcement is for a study with another digest")
    if announcement.round != number:
        raise WrongRound(f"the announcement is for round {announcement.round}, the address names round {number}")
    _check_purpose(announcement, study, last)
    _check_key(announcement, study, last)
    if announcement.tagged is not study.tagged(announcement.purpose):
        raise MalformedMessage(
            f"the announcement names {'a' if announcement.tagged else 'no'} seed of tags; by the study the round "
            f"{'has' if study.tagged(announcement.purpose) else 'has no'} tags"
        )
    places = [p.name for p in roster.contributors]
    order = [places.index(site) for site in announcement.listed if site in places]
    if order != sorted(order):
        raise MalformedMessage("the listed sites must be in the roster's order")
    if announcement.closes_at_s > now_s + study.round_deadline_s + _CLOCK_SLACK_S:
        raise MalformedMessage(
            f"closes_at_s {announcement.closes_at_s} is later than the study's round_deadline_s "
            f"{study.round_deadline_s} allows from now; check the clock"
        )


def _check_purpose(announcement: Announcement, study: Study, last: LastRound | None) -> None:
    """A round opens what the study says, and comes when such rounds do.

    Raises: MalformedMessage, WrongRound
    """
    purpose, number = announcement.purpose, announcement.round
    most = study.last_round(purpose)
    if not most:
        raise MalformedMessage(f"the round {purpose.plan.does}, which this study does not; announce another purpose")
    if not purpose.plan.summed and last is not None and last.announcement != announcement:
        _check_follows(purpose, last)
    if purpose.plan.summed and announcement.measured and announcement.opens is not study.rule.needs:
        raise MalformedMessage(
            f"the round would open {announcement.opens.value}, the rule {study.rule.name.value!r} needs "
            f"{study.rule.needs.value}; announce that"
        )
    if number > most:
        raise WrongRound(
            f"the study has at most {most} rounds of {purpose.value}, found an announcement for round {number}"
        )


def _check_follows(purpose: Purpose, last: LastRound) -> None:
    """Sites are ranked after rankings alone that were all skipped; two measurements have a sum between them.

    What sites remember says the same of all rounds, not of the last one alone.
    """
    before, state = last.announcement.purpose, last.progress.state
    if purpose is Purpose.RANKING and not (before is Purpose.RANKING and state is not RoundState.RANKED):
        raise WrongRound("the sites are ranked once, before the first update; this study is beyond that")
    if purpose is before is Purpose.MEASURE and state is RoundState.CLOSED:
        raise WrongRound("a model's updates are measured once, and nothing was summed since the last measurement")


def _check_key(announcement: Announcement, study: Study, last: LastRound | None) -> None:
    """Updates are encrypted exactly where the study says so, and under one key."""
    if announcement.protection is not study.protection.of(announcement.purpose):
        raise MalformedMessage(
            f"the study has protection {study.protection.value!r}: rounds of updates name a CKKS key exactly "
            "under 'ckks', rounds of class counts never do"
        )
    before = None if last is None else last.announcement.ckks_key_id
    if announcement.ckks_key_id is not None and before is not None and announcement.ckks_key_id != before:
        raise MalformedMessage(f"the study's CKKS key is {before}, found {announcement.ckks_key_id}; it has one key")


def opens_round(
    announcement: Announcement,
    last: LastRound | None,
    study_state: StudyState,
    contributors: frozenset[str],
    least_contributors: int,
) -> bool:
    """Return whether this announcement opens a new round; False for the same one again.

    WrongRound, ConflictingMessage or MalformedMessage otherwise; one announcement per round number, for ever. A
    paused study goes on with the requester's next announcement.
    """
    if last is not None and announcement.round == last.progress.round:
        if announcement == last.announcement:
            return False
        raise ConflictingMessage(f"round {announcement.round} has another announcement; a round is announced once")
    study_step(study_state, StudyEvent.ANNOUNCED)
    expected = 1 if last is None else last.progress.round + 1
    if announcement.round != expected or (last is not None and not last.progress.final):
        found = "no round was announced yet"
        if last is not None:
            found = f"round {last.progress.round} is {last.progress.state}"
        raise WrongRound(f"{found}; the next announcement is for round {expected}, found {announcement.round}")
    strangers = sorted(set(announcement.listed) - contributors)
    if strangers:
        allowed = ", ".join(sorted(contributors))
        raise MalformedMessage(f"listed, but no contributor of the roster: {', '.join(strangers)} (allowed: {allowed})")
    if announcement.least_contributors < least_contributors:
        raise MalformedMessage(
            f"least_contributors {announcement.least_contributors} is below the study's {least_contributors}"
        )
    return True
