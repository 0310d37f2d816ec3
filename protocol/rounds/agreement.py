"""Checks of an announcement, agreement on contributions, and the coin toss (docs/protocol.md 3, 4, 8, 11)."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from protocol.channel.sealing import Octets
from protocol.errors import (
    AnnouncementMismatch,
    ConflictingMessage,
    MalformedMessage,
    ProtocolViolation,
    TranscriptMismatch,
    WrongRound,
)
from protocol.messages.control import (
    AgreedSet,
    Announcement,
    ChallengeTranscript,
    CollectedContribution,
    Purpose,
    Roster,
    RoundState,
    Study,
    StudyState,
)
from protocol.messages.purpose import OutcomeCause
from protocol.parameters import PROTOCOL_VERSION
from protocol.rounds.states import Attempt, StudyEvent, study_step


def _hash(label: str, *parts: bytes) -> str:
    digest = hashlib.sha256(f"{PROTOCOL_VERSION} {label}\x00".encode())
    for part in parts:
        digest.update(len(part).to_bytes(4, "big") + part)
    return digest.hexdigest()


def agree(
    announcement: Announcement,
    attempt: int,
    roster: Roster,
    mine: Sequence[CollectedContribution],
    theirs: Sequence[CollectedContribution],
) -> AgreedSet:
    """The contributions both servers hold, with equal commitments, bound to this announcement, in roster order.

    Both servers compute it from both lists and get the same set, whichever list is called mine.
    """
    here, there = ({c.site: c for c in held} for held in (mine, theirs))
    expected, bound_to = {*announcement.listed, roster.requester}, announcement.digest()
    agreed = tuple(
        here[p.name]
        for p in roster.sites
        if p.name in expected
        and p.name in here
        and here[p.name] == there.get(p.name)
        and here[p.name].announcement_digest == bound_to
    )
    return AgreedSet(
        study_digest=announcement.study_digest,
        round=announcement.round,
        attempt=attempt,
        announcement_digest=bound_to,
        contributions=agreed,
    )


@dataclass(frozen=True)
class Shortfall:
    """Why a round must be skipped; ``found`` and ``needed`` count contributors, ``site`` is whose share was lost."""

    cause: OutcomeCause
    found: int | None = None
    needed: int | None = None
    site: str | None = None

    @property
    def reason(self) -> str:
        return self.cause.said(self.found, self.needed, self.site)


def shortfall(agreed: AgreedSet, announcement: Announcement, requester: str) -> Shortfall | None:
    """Why the round must be skipped, or None: too few contributors, or the requester's own share is missing."""
    if requester not in agreed.sites:
        return Shortfall(OutcomeCause.REQUESTER_MISSING)
    contributors = len(agreed.sites) - 1
    if contributors < announcement.least_contributors:
        return Shortfall(OutcomeCause.TOO_FEW_CONTRIBUTORS, contributors, announcement.least_contributors)
    return None


def still_awaited(announcement: Announcement, requester: str, absent: frozenset[str]) -> frozenset[str]:
    """Return the sites that can still be in the round's set: the requester, and the listed sites less ``absent``.

    ``absent`` holds the sites that declined, whose letter of this round is at the server that asks, and those that a
    change of the roster removed. Each server goes by its own letters, so neither picks the set for the other.
    """
    return frozenset(announcement.listed) - absent | {requester}


def beyond_hope(announcement: Announcement, contributors: frozenset[str], absent: frozenset[str]) -> Shortfall | None:
    """Why side A need not wait for a round's time: every listed site has contributed or is absent, too few contributed.

    Of a decline A sees that it is there, not why. It waits for the last site, so that the requester has heard
    everybody's reasons before it plans the next round.
    """
    listed, least = frozenset(announcement.listed), announcement.least_contributors
    held = contributors & listed
    if len(held) >= least or not listed <= held | absent:
        return None
    return Shortfall(OutcomeCause.TOO_FEW_CONTRIBUTORS, len(held), least)


def nonce_commitment(round_number: int, agreed_set_digest: str, nonce_a: bytes) -> str:
    """H("A", round, set digest, n_A): A's move, before it sees n_B."""
    return _hash("A", str(round_number).encode(), bytes.fromhex(agreed_set_digest), nonce_a)


def transcript(round_number: int, agreed_set_digest: str, nonce_a: bytes, nonce_b: bytes) -> ChallengeTranscript:
    """challenge = H(set digest, n_A, n_B): no agent could choose its input after seeing it."""
    return ChallengeTranscript(
        agreed_set_digest=agreed_set_digest,
        commitment_a=nonce_commitment(round_number, agreed_set_digest, nonce_a),
        nonce_b=nonce_b.hex(),
        nonce_a=nonce_a.hex(),
        challenge=_hash("challenge", bytes.fromhex(agreed_set_digest), nonce_a, nonce_b),
    )


def check_transcript(round_number: int, agreed: AgreedSet, stated: ChallengeTranscript) -> bytes:
    """The 32-byte challenge, after recomputing every field; TranscriptMismatch otherwise."""
    if agreed.round != round_number:
        raise ProtocolViolation(f"the agreed set is of round {agreed.round}, expected {round_number}")
    expected = transcript(round_number, agreed.digest(), bytes.fromhex(stated.nonce_a), bytes.fromhex(stated.nonce_b))
    if not hmac.compare_digest(expected.canonical(), stated.canonical()):
        raise TranscriptMismatch("the challenge does not follow from the agreed set and the two nonces")
    return bytes.fromhex(stated.challenge)


def model_digest(site_key: bytes, study_digest: str, round_number: int, model: Octets) -> str:
    """HMAC of the model's float32 bytes under a key that only sites hold, derived per round (docs/protocol.md 3)."""
    label = f"{PROTOCOL_VERSION} model digest {study_digest} {round_number}".encode()
    round_key = hmac.new(site_key, label, hashlib.sha256).digest()
    return hmac.new(round_key, model, hashlib.sha256).hexdigest()


_CLOCK_SLACK_S: Final = 300


def check_said(
    announcement: Announcement,
    number: int,
    study: Study,
    study_digest: str,
    roster: Roster,
    last: Attempt | None,
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


def _check_purpose(announcement: Announcement, study: Study, last: Attempt | None) -> None:
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


def _check_follows(purpose: Purpose, last: Attempt) -> None:
    """Sites are ranked after rankings alone that were all skipped; two measurements have a sum between them.

    What sites remember says the same of all rounds, not of the last one alone.
    """
    before, state = last.announcement.purpose, last.state
    if purpose is Purpose.RANKING and not (before is Purpose.RANKING and state is not RoundState.RANKED):
        raise WrongRound("the sites are ranked once, before the first update; this study is beyond that")
    if purpose is before is Purpose.MEASURE and state is RoundState.CLOSED:
        raise WrongRound("a model's updates are measured once, and nothing was summed since the last measurement")


def _check_key(announcement: Announcement, study: Study, last: Attempt | None) -> None:
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
    last: Attempt | None,
    study_state: StudyState,
    contributors: frozenset[str],
    least_contributors: int,
) -> bool:
    """Return whether this announcement opens a new round; False for the same one again.

    WrongRound, ConflictingMessage or MalformedMessage otherwise; one announcement per round number, for ever. A
    paused study goes on with the requester's next announcement.
    """
    if last is not None and announcement.round == last.key.round:
        if announcement == last.announcement:
            return False
        raise ConflictingMessage(f"round {announcement.round} has another announcement; a round is announced once")
    study_step(study_state, StudyEvent.ANNOUNCED)
    expected = 1 if last is None else last.key.round + 1
    if announcement.round != expected or (last is not None and not last.final):
        found = "no round was announced yet"
        if last is not None:
            found = f"round {last.key.round} is {last.state}"
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
