"""The requester's welcome at a site: verified, and the checkpoint that it opens (docs/protocol.md 3)."""

from __future__ import annotations

import hashlib

from client_agent.learning.learner import Vector
from client_agent.site.context import RELAY
from client_agent.site.letters import Welcome, require_same
from client_agent.study.mail import fetched, require_attested
from client_agent.study.participant import Participant
from protocol.errors import PolicyRefusal
from protocol.messages import letter, paths
from protocol.messages.control import Signed, require_signatures
from protocol.messages.letter import LetterKind, Topic, most_bytes
from protocol.policy.clauses import check_first_model
from protocol.rounds.evidence import check_release
from protocol.shared_model import initial_state, model_digest_of, model_part


def open_welcome(owner: Participant, version: int) -> Welcome:
    """The welcome to one model version. Raises: BrokenSeal, BadSignature, Unavailable"""
    context, requester = owner.context, owner.context.roster.requester
    signed = fetched(owner, Topic(LetterKind.WELCOME, version), requester, Signed[Welcome])
    welcome: Welcome = require_signatures(signed, context.roster, (requester,))
    require_same("study", welcome.study_digest, owner.study_digest)
    require_same("site", welcome.site, context.site)
    require_same("model version", str(welcome.model_version), str(version))
    return welcome


def missed_release(owner: Participant, welcome: Welcome) -> bool:
    """Return whether the welcome proves a release that this site had no part in, after all that it had a part in.

    A site that holds a model takes another only then: otherwise the requester could send the same model as a newer
    one, and all that the policy counts per model would start afresh.

    Requires: it is vouched for
    """
    past = welcome.previous
    newer = past is not None and past.announcement.round > owner.state.memory.last_accepted
    return past is not None and newer and owner.context.site not in past.agreed_set.message.sites


def vouched(owner: Participant, welcome: Welcome) -> bool:
    """Return whether enough contributors of the release that led to this model attest it; else name the problem.

    Raises: BadSignature, AnnouncementMismatch, ProtocolViolation
    """
    past = welcome.previous
    if past is not None:
        check_release(past, owner.context.roster, owner.study_digest)
        stepped = past.announcement.purpose.plan.steps_model
        if not stepped or past.announcement.model_version != welcome.model_version - 1:
            past = None
    if past is None:
        owner.problem(None, f"model {welcome.model_version} came without the release that led to it: it is not taken")
        return False
    try:
        require_attested(owner, welcome, past)
    except PolicyRefusal as unattested:
        owner.problem(None, unattested.detail)
        return False
    return True


def first_checkpoint(owner: Participant, welcome: Welcome) -> Vector:
    """Version 0: derived here and compared with what the requester names, or the pretrained start that the study pins.

    Raises: PolicyRefusal when the requester names another one; BrokenSeal, Unavailable
    """
    pinned = owner.study.pretrained_digest
    if pinned is None:
        kept = owner.first_kept()
        check_first_model(welcome.checkpoint_digest, hashlib.sha256(kept.astype("<f4").tobytes()).hexdigest())
        return kept
    kept = open_checkpoint(owner, welcome)
    model = model_part(kept, owner.study.model_dimension)
    check_first_model(model_digest_of(model), pinned, "the study pins")
    return initial_state(model, owner.study.rule)


def open_checkpoint(owner: Participant, welcome: Welcome) -> Vector:
    """The model that a welcome names, with the server optimiser's moments behind it. Raises: BrokenSeal, Unavailable"""
    topic = str(Topic(LetterKind.CHECKPOINT, welcome.model_version))
    path = owner.journal.folder / "checkpoint.sealed"
    requester = owner.context.roster.requester
    most = most_bytes(LetterKind.CHECKPOINT, owner.study, len(owner.context.roster.sites))
    owner.context.clients[RELAY].fetch_mail(owner.study.name, topic, paths.EVERY_SITE, requester, path, most)
    sealed = path.read_bytes()
    path.unlink()
    return letter.open_checkpoint(sealed, bytes.fromhex(welcome.content_key), welcome.checkpoint_digest, owner.study)
