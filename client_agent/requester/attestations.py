"""Newcomers are let in with the contributors' word for the model that they get (docs/protocol.md 13)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from client_agent.requester.mailing import Evidence
from client_agent.requester.study import RequesterStudy
from client_agent.site.context import RELAY
from client_agent.site.events import EventKind
from client_agent.site.letter import Attestation
from client_agent.study.attestation import ATTESTED, checkpoint_digest, contributors_of, needed
from protocol.errors import BadSignature, RefusedMessage
from protocol.messages import paths
from protocol.messages.control import Signed, StudyView, require_signatures
from protocol.messages.letter import ATTESTED_SEALED_BYTES, open_letter
from protocol.rounds.evidence import PastRelease

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
    evidence = Evidence(owner.led_here(), attestations)
    owner.retried(lambda: owner.postbox.send_welcome(sites, owner.state.model_version or 0, model, evidence))
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
    prefix = paths.fill(paths.ATTESTED_TOPIC, version=owner.state.model_version or 0) + "/"
    for entry in view.mail:
        sender = entry.removeprefix(prefix)
        if entry.startswith(prefix) and sender in contributors_of(owner, past) and sender not in read:
            try:
                read[sender] = _read(owner, past, sender)
            except RefusedMessage as refused:
                read[sender] = None
                owner.problem(None, refused.detail)


def _read(owner: RequesterStudy, past: PastRelease, sender: str) -> Signed[Attestation]:
    """Raises: BrokenSeal, BadSignature"""
    own, version = owner.context.site, owner.state.model_version or 0
    topic = paths.fill(paths.ATTESTED_TOPIC, version=version)
    sealed = owner.retried(
        lambda: owner.context.clients[RELAY].get_mail(owner.study.name, topic, own, sender, ATTESTED_SEALED_BYTES)
    )
    key = owner.context.keys.sealing
    signed = open_letter(sealed, Signed[Attestation], ATTESTED, owner.study_digest, sender, own, version, key)
    message = require_signatures(signed, owner.context.held.chain.newest_with(sender), (sender,))
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
