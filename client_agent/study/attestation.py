"""What vouches for a checkpoint: the contributors of the release that led to it (docs/protocol.md 12).

A release proves that some sum led to a version, not what the model is then. So every contributor that has applied the
sum says, signed and sealed to the requester, which model it holds; the servers see no plain digest. A site takes a
checkpoint only with the word of more than half of those contributors, and of more than may collude.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from client_agent.durable import write_durably
from client_agent.network.server_client import Body
from client_agent.site.context import RELAY
from client_agent.site.events import EventKind
from client_agent.site.letter import NOTICE_SEALED_BYTES, Attestation, PastRelease, Welcome, open_letter, seal_letter
from client_agent.study.participant import Participant
from protocol.clauses import Clause
from protocol.errors import BadSignature, PolicyRefusal, RefusedMessage, WrongRound
from protocol.wire import paths
from protocol.wire.authentic import require_signatures, sign
from protocol.wire.messages import Purpose, Signed, StudyView

if TYPE_CHECKING:
    from client_agent.requester.run import Requester

_KIND: Final = "attested"
_LONGEST_WAIT_S: Final = 30.0


def attest(owner: Participant, past: PastRelease) -> None:
    """Say which model this site holds, now that it has applied a sum that it contributed to; once, the same letter.

    After the study's last update nobody asks for it any more. Raises: Unavailable
    """
    context, number = owner.context, past.announcement.round
    took_part = context.site in past.release_set.message.sites and past.announcement.purpose is Purpose.UPDATE
    if not took_part or owner.update_number(number) >= owner.study.rounds:
        return
    letter, version = owner.journal.round_folder(number) / "attested.sealed", past.announcement.model_version + 1
    if not letter.exists():
        message = Attestation(
            study_digest=owner.study_digest,
            site=context.site,
            model_version=version,
            round=number,
            checkpoint_digest=checkpoint_digest(owner),
        )
        signed = sign(message, context.site, context.keys.signing)
        to = owner.requester_party
        write_durably(letter, seal_letter(signed, _KIND, owner.study_digest, context.site, to, version))
    topic = paths.fill(paths.ATTESTED_TOPIC, version=version)
    try:
        context.clients[RELAY].put_mail(owner.study.name, topic, context.roster.requester, Body.of(letter.read_bytes()))
    except WrongRound:
        return  # the study has ended, or this site has attested a newer model: nobody reads this one
    except RefusedMessage as refused:
        owner.problem(number, refused.detail)


def checkpoint_digest(owner: Participant) -> str:
    """Of the model that this site holds, with the moments behind it."""
    return hashlib.sha256(owner.require_kept().astype("<f4").tobytes()).hexdigest()


def needed(owner: Participant, past: PastRelease) -> int:
    """How many of a release's contributors vouch for its model: more than half, and more than may collude."""
    colluders = max(owner.study.parameters.assumed_colluders, owner.context.policy.assumed_colluders)
    return max(len(contributors_of(owner, past)) // 2, colluders) + 1


def contributors_of(owner: Participant, past: PastRelease) -> tuple[str, ...]:
    """The sites of the sum, without the requester."""
    return tuple(site for site in past.release_set.message.sites if site != owner.context.roster.requester)


def require_attested(owner: Participant, welcome: Welcome, past: PastRelease) -> None:
    """Enough contributors of the release that led to the welcome's model hold that model.

    Requires: ``past`` was checked
    Raises:   PolicyRefusal; BadSignature
    """
    contributors, round_number = contributors_of(owner, past), past.announcement.round
    vouching = set()
    for signed in welcome.attestations:
        site = signed.message.site
        expected = Attestation(
            study_digest=owner.study_digest,
            site=site,
            model_version=welcome.model_version,
            round=round_number,
            checkpoint_digest=welcome.checkpoint_digest,
        )
        if site in contributors and require_signatures(signed, owner.context.roster, (site,)) == expected:
            vouching.add(site)
    if len(vouching) < needed(owner, past):
        raise PolicyRefusal(
            Clause.MODEL_BEHIND,
            f"model {welcome.model_version} came with the word of {len(vouching)} of the {len(contributors)} "
            f"contributors whose sum led to it, {needed(owner, past)} are needed: it is not taken",
        )


def gathered(owner: Requester, waiting: Sequence[str]) -> tuple[Signed[Attestation], ...] | None:
    """The contributors' word for the present model, of as many as a site needs; None when too few say it in time.

    ``waiting`` are the sites that want to be welcomed, for the record. Version 0 needs nobody's word.
    Raises: StudyOver, Stopped
    """
    past = owner.led_here()
    if past is None:
        return ()
    give_up = owner.context.clock() + min(_LONGEST_WAIT_S, owner.study.round_deadline_s)
    read: dict[str, Signed[Attestation] | None] = {}

    def enough(a: StudyView, _: StudyView) -> bool | None:
        _read_new(owner, past, a, read)
        if sum(one is not None for one in read.values()) >= needed(owner, past):
            return True
        return False if owner.context.clock() >= give_up else None

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
    owner: Requester, past: PastRelease, view: StudyView, read: dict[str, Signed[Attestation] | None]
) -> None:
    """Letters that were not read yet; None for one that does not open, or names another model than this one."""
    prefix = paths.fill(paths.ATTESTED_TOPIC, version=owner.state.model_version or 0) + "/"
    for entry in view.mail:
        sender = entry.removeprefix(prefix)
        if entry.startswith(prefix) and sender in contributors_of(owner, past) and sender not in read:
            try:
                read[sender] = _read(owner, past, sender)
            except RefusedMessage as refused:
                read[sender] = None
                owner.problem(None, refused.detail)


def _read(owner: Requester, past: PastRelease, sender: str) -> Signed[Attestation]:
    """Raises: BrokenSeal, BadSignature"""
    own, version = owner.context.site, owner.state.model_version or 0
    topic = paths.fill(paths.ATTESTED_TOPIC, version=version)
    sealed = owner.retried(
        lambda: owner.context.clients[RELAY].get_mail(owner.study.name, topic, own, sender, NOTICE_SEALED_BYTES)
    )
    key = owner.context.keys.sealing
    signed = open_letter(sealed, Signed[Attestation], _KIND, owner.study_digest, sender, own, version, key)
    message = require_signatures(signed, owner.context.roster, (sender,))
    expected = Attestation(
        study_digest=owner.study_digest,
        site=sender,
        model_version=version,
        round=past.announcement.round,
        checkpoint_digest=checkpoint_digest(owner),
    )
    if message != expected:
        raise BadSignature(f"site {sender!r} attests another model {version} than this one; it was served other bytes")
    return signed
