"""A site's letters in one study: sealed once, journalled, sent again as they are; fetched, opened, verified.

One kind attests a checkpoint (docs/protocol.md 12). A release proves that some sum led to a version, not what the model
is then. So every contributor that has applied the sum says, signed and sealed to the requester, which model it holds;
the servers see no plain digest. A site takes a checkpoint only with the word of more than half of those contributors,
and of more than may collude.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from client_agent.net.envelopes import Body
from client_agent.site.context import RELAY
from client_agent.site.letters import Attestation, Hindrance, StudyRefusal, Welcome, require_same
from client_agent.study.participant import Participant
from host.files import write_durably
from protocol.errors import Clause, PolicyRefusal, RefusedMessage, WrongRound
from protocol.messages.control import Decline, Message, Signed, StudyView, require_signatures
from protocol.messages.letter import LetterKind, Topic, most_bytes, open_letter, seal_letter
from protocol.rounds.evidence import PastRelease

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


def attest(owner: Participant, past: PastRelease) -> None:
    """Say which model this site holds, now that it has applied a sum that it contributed to; once, the same letter.

    After the study's last update nobody asks for it any more. Raises: Unavailable
    """
    context, number = owner.context, past.announcement.round
    took_part = context.site in past.release_set.message.sites and past.announcement.purpose.plan.steps_model
    if not took_part or owner.update_number(number, past.announcement.model_version) >= owner.study.rounds:
        return
    version = past.announcement.model_version + 1

    def write() -> Attestation:
        return stated(owner, context.site, past, checkpoint_digest(owner))

    kept = owner.journal.round_folder(number) / "attested.sealed"
    try:
        tell_requester(owner, kept, Topic(LetterKind.ATTESTED, version), write)
    except WrongRound:
        return  # the study has ended, or this site has attested a newer model: nobody reads this one
    except RefusedMessage as refused:
        owner.problem(number, refused.detail)


def stated(owner: Participant, site: str, past: PastRelease, digest: str) -> Attestation:
    """One site's word that its model, after it applied this release, is the one of this digest."""
    return Attestation(
        study_digest=owner.study_digest,
        site=site,
        model_version=past.announcement.model_version + 1,
        round=past.announcement.round,
        checkpoint_digest=digest,
    )


def checkpoint_digest(owner: Participant) -> str:
    """Return the digest of the model that this site holds, with the moments behind it."""
    return hashlib.sha256(owner.kept_octets()).hexdigest()


def needed(owner: Participant, past: PastRelease) -> int:
    """Return how many of a release's contributors must attest its model: more than half, and more than may collude."""
    colluders = max(owner.study.parameters.assumed_colluders, owner.context.policy.assumed_colluders)
    return max(len(contributors_of(owner, past)) // 2, colluders) + 1


def contributors_of(owner: Participant, past: PastRelease) -> tuple[str, ...]:
    return tuple(site for site in past.release_set.message.sites if site != owner.context.roster.requester)


def require_attested(owner: Participant, welcome: Welcome, past: PastRelease) -> None:
    """Enough contributors of the release that led to the welcome's model hold that model.

    Requires: ``past`` was checked
    Raises:   PolicyRefusal; BadSignature
    """
    contributors = contributors_of(owner, past)
    vouching = set()
    for signed in welcome.attestations:
        site = signed.message.site
        expected = stated(owner, site, past, welcome.checkpoint_digest)
        if site in contributors and require_signatures(signed, owner.context.roster, (site,)) == expected:
            vouching.add(site)
    if len(vouching) < needed(owner, past):
        raise PolicyRefusal(
            Clause.MODEL_BEHIND,
            f"model {welcome.model_version} came with the word of {len(vouching)} of the {len(contributors)} "
            f"contributors whose sum led to it, {needed(owner, past)} are needed: it is not taken",
        )
