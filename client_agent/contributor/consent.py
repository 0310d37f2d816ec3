"""A site's decision to begin a study: by its policy and budget, and by its people's word; else the requester is told.

A site whose policy forbids what a study opens, or CKKS, says so before the first round (docs/protocol.md 9): the
requester starts no study that a site refuses. A site whose people declined or paused the study, or must mend something,
says so too; that letter is moot as soon as the site says that it is ready.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from client_agent.net.watch import Stopped
from client_agent.site.events import EventKind
from client_agent.site.letters import Hindrance, StudyRefusal
from client_agent.site.notifications import Notice
from client_agent.study.approval import allowed_by_policy, approval_of
from client_agent.study.mail import tell_requester
from client_agent.study.participant import Participant
from client_agent.study.privacy_spending import require_room_for
from host.audit_log import Action
from protocol.errors import MoietyError, PolicyRefusal
from protocol.messages.letter import LetterKind, Topic, told
from protocol.policy.site_policy import check_study_allowed
from protocol.text import printable

_ASK_AGAIN_S: Final = 1.0


def refused_study(owner: Participant) -> PolicyRefusal | None:
    """Why this site's policy forbids the study, or its privacy budget does not hold it; None where neither does.

    Raises: ConfigurationError, where data that a budget is asked about do not fit
    """
    context = owner.context
    try:
        check_study_allowed(owner.study, context.policy)
        if owner.study.privacy is not None:
            require_room_for(owner.study, owner.learner.sample_count(), context.budget, context.policy)
    except PolicyRefusal as refusal:
        return refusal
    return None


def send_refusal(owner: Participant, refusal: PolicyRefusal) -> None:
    """Tell the requester that this site takes no part. Raises: Unavailable; what the server refuses with"""

    def write() -> StudyRefusal:
        return StudyRefusal(
            study_digest=owner.study_digest,
            site=owner.context.site,
            code=refusal.code,
            clause=refusal.clause,
            reason=told(refusal.told),
        )

    tell_requester(owner, owner.journal.folder / "refusal.sealed", Topic(LetterKind.REFUSAL), write)


def approved(owner: Participant) -> bool:
    """Wait for a person's word where this site asks for one; a no ends this site's part. Raises: Stopped"""
    word = approval_of(owner.journal, owner.study_digest)
    if word is None and owner.context.asks_people and owner.journal.left is None:
        name = owner.study.name
        owner.event(EventKind.STUDY, None, f"waits for a person: moiety agent show {name}, approve {name}")
        _tell_people(owner)
    while word is None and owner.context.asks_people:
        if not _waited(owner):
            return False
        word = approval_of(owner.journal, owner.study_digest)
    if word is not None and not word.approved:
        return _declined(owner, f"declined by {printable(word.person)}: {printable(word.reason)}")
    if word is None:
        allowed_by_policy(owner.journal, owner.context.policy, partial(owner.note, Action.APPROVED))
    return True


def resumed(owner: Participant) -> bool:
    """Wait while a person has paused this site, before it says that it is ready. Raises: Stopped

    A site that is welcome is awaited in every round, and declines each while it is paused.
    """
    if owner.journal.paused is None or owner.state.model_version is not None:
        return True
    owner.event(EventKind.STUDY, None, f"paused by a person here: moiety agent resume {owner.study.name}")
    tell_hindrance(owner, paused=True)
    while owner.journal.paused is not None:
        if not _waited(owner):
            return False
    return True


def _waited(owner: Participant) -> bool:
    """Wait a little for a person; False where one took this site out of the study. Raises: Stopped"""
    if owner.journal.left is not None:
        return _declined(owner, "a person took this site out of the study")
    if owner.context.pause(_ASK_AGAIN_S):
        raise Stopped
    return True


def tell_hindrance(owner: Participant, *, declined: bool = False, paused: bool = False) -> None:
    """``declined``: its people take no part in the study; ``paused``: for now; else they must mend something.

    Once; whether it arrives or not, this site's own log has the reason.
    """

    def write() -> Hindrance:
        since_s, site = int(owner.context.clock.now()), owner.context.site
        digest = owner.study_digest
        return Hindrance(study_digest=digest, site=site, since_s=since_s, declined=declined, paused=paused)

    try:
        tell_requester(owner, owner.journal.folder / "hindered.sealed", Topic(LetterKind.HINDERED), write)
    except MoietyError as later:
        owner.problem(None, f"the requester was not told that this site cannot begin: {later.detail}")


def _declined(owner: Participant, why: str) -> bool:
    tell_hindrance(owner, declined=True)
    owner.note(Action.STUDY_ENDED, why)
    owner.save(finished=why, refused=True)
    owner.event(EventKind.FINISHED, None, why)
    return False


def _tell_people(owner: Participant) -> None:
    context = owner.context
    context.tell_people(
        Notice(
            site=context.site,
            federation=context.roster.federation,
            study=owner.study.name,
            study_digest=owner.study_digest,
            since_s=int(context.clock.now()),
        )
    )
