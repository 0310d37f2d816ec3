"""A site whose policy forbids what a study opens, or CKKS, says so before the first round (docs/protocol.md 9).

The refusal is signed by the site and sealed to the requester. The requester starts no study that a site refuses: it
ends it as failed and names the site and the need. A refusal that comes after the first announcement only keeps its
own site out.
"""

from __future__ import annotations

from typing import Final

from client_agent.network.body import Body
from client_agent.site.context import RELAY
from client_agent.site.letter import StudyRefusal, require_same
from client_agent.study.participant import Participant
from client_agent.study.spending import require_room_for
from host.files import write_durably
from protocol.errors import PolicyRefusal
from protocol.messages import paths
from protocol.messages.control import Signed, Study, StudyView, require_signatures, sign
from protocol.messages.letter import NOTICE_SEALED_BYTES, open_letter, seal_letter, told
from protocol.parameters import Needs
from protocol.policy.site_policy import check_study_allowed

_KIND: Final = "refusal"
_NUMBER: Final = 0


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
    """Tell the requester, sealed; the same letter after a restart. Raises: Unavailable; what the server refuses with"""
    context = owner.context
    letter = owner.journal.folder / "refusal.sealed"
    if not letter.exists():
        message = StudyRefusal(
            study_digest=owner.study_digest,
            site=context.site,
            code=refusal.code,
            clause=refusal.clause,
            reason=told(refusal.told),
        )
        signed = sign(message, context.site, context.keys.signing)
        to = owner.requester_party
        write_durably(letter, seal_letter(signed, _KIND, owner.study_digest, context.site, to, _NUMBER))
    body = Body.of(letter.read_bytes())
    context.clients[RELAY].put_mail(owner.study.name, paths.REFUSAL_TOPIC, context.roster.requester, body)


def refusing_sites(view: StudyView) -> tuple[str, ...]:
    """The sites whose refusal waits at the relaying server."""
    prefix = f"{paths.REFUSAL_TOPIC}/"
    return tuple(entry.removeprefix(prefix) for entry in view.mail if entry.startswith(prefix))


def public_text(study: Study, site: str) -> str:
    """Why the study ends, as the servers may read it: from the study alone, nothing of the site's letter.

    A rule of a study under CKKS opens nothing about single sites, so there only the protection can be refused.
    """
    if not study.protection.plan.opens:
        return f"site {site!r} takes no part in a study under CKKS; no round was begun"
    needs = (study.rule.needs, study.rule.name.declared.measures)
    opens = " and ".join(one.value for one in needs if one is not Needs.NOTHING)
    opened = f"rule open {opens or Needs.NOTHING.value}"
    if study.ranking is not None:
        ranks = "ranking open inner_products"
        opened = f"{opened} or its {ranks}" if opens else ranks
    if study.summary is not None:
        opened = f"{opened}, or its summary sums,"
    if study.privacy is not None:
        asked = f"let the study's {opened} about it, or asks for other noise, or its privacy budget is too small"
        return f"site {site!r} does not {asked}; no round was begun"
    return f"site {site!r} does not let the study's {opened} about it; no round was begun"


def read_refusal(owner: Participant, sender: str) -> StudyRefusal:
    """A site's refusal, verified. Raises: BrokenSeal, BadSignature, Unavailable"""
    context = owner.context
    name, topic = owner.study.name, paths.REFUSAL_TOPIC
    sealed = context.clients[RELAY].get_mail(name, topic, context.site, sender, NOTICE_SEALED_BYTES)
    signed = open_letter(
        sealed,
        Signed[StudyRefusal],
        _KIND,
        owner.study_digest,
        sender,
        context.site,
        _NUMBER,
        context.keys.sealing,
    )
    refusal: StudyRefusal = require_signatures(signed, context.held.chain.newest_with(sender), (sender,))
    require_same("site", refusal.site, sender)
    require_same("study", refusal.study_digest, owner.study_digest)
    return refusal
