"""A site's letters in one study: sealed once, journalled, sent again as they are; fetched, opened, verified."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from client_agent.net.envelopes import Body
from client_agent.site.context import RELAY
from client_agent.site.letters import Hindrance, StudyRefusal, require_same
from client_agent.study.participant import Participant
from host.files import write_durably
from protocol.messages.control import Decline, Message, Signed, StudyView, require_signatures
from protocol.messages.letter import Topic, most_bytes, open_letter, seal_letter

M = TypeVar("M", bound=Message)
Notice = TypeVar("Notice", Decline, StudyRefusal, Hindrance)


def notice(owner: Participant, kept: Path, topic: Topic, write: Callable[[], Message]) -> Body:
    """A letter to the requester, signed and sealed; the same bytes after a restart."""
    if not kept.exists():
        own, to = owner.context.site, owner.requester_party
        sealed = seal_letter(owner.signed(write()), topic.kind, owner.study_digest, own, to, topic.number)
        write_durably(kept, sealed)
    return Body.sealed(kept.read_bytes())


def tell_requester(owner: Participant, kept: Path, topic: Topic, write: Callable[[], Message]) -> None:
    """Send such a letter by the relay. Raises: Unavailable; what the server refuses with"""
    body, context = notice(owner, kept, topic, write), owner.context
    context.clients[RELAY].put_mail(owner.study.name, str(topic), context.roster.requester, body)


def senders(view: StudyView, topic: Topic) -> tuple[str, ...]:
    """The sites whose letter of this topic waits at the relay."""
    prefix = f"{topic}/"
    return tuple(entry.removeprefix(prefix) for entry in view.mail if entry.startswith(prefix))


def fetched(owner: Participant, topic: Topic, sender: str, form: type[M]) -> M:
    """A letter to this site, opened; its signature, if it has one, is not checked yet.

    Raises: BrokenSeal, MalformedMessage, Unavailable, UnknownResource
    """
    context = owner.context
    most = most_bytes(topic.kind, owner.study, len(context.roster.sites))
    sealed = context.clients[RELAY].get_mail(owner.study.name, str(topic), context.site, sender, most)
    digest, key = owner.study_digest, context.keys.sealing
    return open_letter(sealed, form, topic.kind, digest, sender, context.site, topic.number, key)


def read_notice(owner: Participant, topic: Topic, sender: str, form: type[Signed[Notice]]) -> Notice:
    """A site's notice to this requester, verified. Raises: as :func:`fetched`; BadSignature"""
    signed = fetched(owner, topic, sender, form)
    message = require_signatures(signed, owner.context.held.chain.newest_with(sender), (sender,))
    require_same("site", message.site, sender)
    require_same("study", message.study_digest, owner.study_digest)
    return message
