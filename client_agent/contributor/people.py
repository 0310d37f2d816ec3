"""The word of the people at a site before it begins a study: yes or no, not now; and who is notified while it waits."""

from __future__ import annotations

from functools import partial
from typing import Final

from client_agent.network.watch import Stopped
from client_agent.site.approval import allowed_by_policy, approval_of
from client_agent.site.events import EventKind
from client_agent.site.telling.ways import Notice
from client_agent.study.hindrance import send_hindrance
from client_agent.study.participant import Participant
from host.audit_log import Action
from protocol.errors import MoietyError
from protocol.text import printable

_ASK_AGAIN_S: Final = 1.0
_LEFT: Final = "a person took this site out of the study"


def approved(owner: Participant) -> bool:
    """Wait for a person's word where this site asks for one; a no ends this site's part. Raises: Stopped"""
    word = approval_of(owner.journal, owner.study_digest)
    if word is None and owner.context.asks_people and owner.journal.left is None:
        name = owner.study.name
        owner.event(EventKind.STUDY, None, f"waits for a person: moiety agent show {name}, approve {name}")
        _tell_people(owner)
    while word is None and owner.context.asks_people:
        if owner.journal.left is not None:
            return _declined(owner, _LEFT)
        if owner.context.pause(_ASK_AGAIN_S):
            raise Stopped
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
        if owner.journal.left is not None:
            return _declined(owner, _LEFT)
        if owner.context.pause(_ASK_AGAIN_S):
            raise Stopped
    return True


def tell_hindrance(owner: Participant, *, declined: bool = False, paused: bool = False) -> None:
    """Once; whether it arrives or not, this site's own log has the reason."""
    try:
        send_hindrance(owner, declined=declined, paused=paused)
    except MoietyError as later:
        owner.problem(None, f"the requester was not told that this site cannot begin: {later.detail}")


def _declined(owner: Participant, why: str) -> bool:
    tell_hindrance(owner, declined=True)
    owner.note(Action.STUDY_ENDED, why)
    owner.save(finished=why, refused=True)
    owner.event(EventKind.FINISHED, None, why)
    return False


def _tell_people(owner: Participant) -> None:
    """Notify people by webhook or mail, where this site has them; nothing waits for it."""
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
