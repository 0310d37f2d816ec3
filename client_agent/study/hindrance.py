"""A site that does not begin a study tells the requester: its people declined, paused it, or must mend something.

Sealed, signed, once per study. It is moot as soon as the site says that it is ready.
"""

from __future__ import annotations

from typing import Final

from client_agent.network.body import Body
from client_agent.site.context import RELAY
from client_agent.site.letter import Hindrance, require_same
from client_agent.study.participant import Participant
from host.files import write_durably
from protocol.messages import paths
from protocol.messages.control import Signed, StudyView, require_signatures, sign
from protocol.messages.letter import NOTICE_SEALED_BYTES, open_letter, seal_letter

_KIND: Final = "hindered"
_NUMBER: Final = 0


def send_hindrance(owner: Participant, *, declined: bool = False, paused: bool = False) -> None:
    """``declined``: its people take no part in the study; ``paused``: for now; else they must mend something.

    The same letter after a restart. Raises: Unavailable; what the server refuses with
    """
    context = owner.context
    letter = owner.journal.folder / "hindered.sealed"
    if not letter.exists():
        since_s = int(context.clock.now())
        why = {"declined": declined, "paused": paused}
        message = Hindrance(study_digest=owner.study_digest, site=context.site, since_s=since_s, **why)
        signed = sign(message, context.site, context.keys.signing)
        to = owner.requester_party
        write_durably(letter, seal_letter(signed, _KIND, owner.study_digest, context.site, to, _NUMBER))
    body = Body.of(letter.read_bytes())
    context.clients[RELAY].put_mail(owner.study.name, paths.HINDERED_TOPIC, context.roster.requester, body)


def hindered_sites(view: StudyView) -> frozenset[str]:
    """The sites whose letter waits at the relaying server."""
    prefix = f"{paths.HINDERED_TOPIC}/"
    return frozenset(entry.removeprefix(prefix) for entry in view.mail if entry.startswith(prefix))


def read_hindrance(owner: Participant, sender: str) -> Hindrance:
    """A site's letter, verified. Raises: BrokenSeal, BadSignature, Unavailable, UnknownResource"""
    context = owner.context
    sealed = context.clients[RELAY].get_mail(
        owner.study.name, paths.HINDERED_TOPIC, context.site, sender, NOTICE_SEALED_BYTES
    )
    digest, key = owner.study_digest, context.keys.sealing
    signed = open_letter(sealed, Signed[Hindrance], _KIND, digest, sender, context.site, _NUMBER, key)
    hindrance: Hindrance = require_signatures(signed, context.held.chain.newest_with(sender), (sender,))
    require_same("site", hindrance.site, sender)
    require_same("study", hindrance.study_digest, owner.study_digest)
    return hindrance
