"""Agreement on the contributions that count, and the coin toss after it (docs/protocol.md 4)."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass

from protocol.errors import ProtocolViolation, TranscriptMismatch
from protocol.parameters import PROTOCOL_VERSION
from protocol.wire.causes import OutcomeCause, outcome_text
from protocol.wire.channel.sealing import Octets
from protocol.wire.messages import (
    AgreedSet,
    Announcement,
    ChallengeTranscript,
    CollectedContribution,
    Roster,
)


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
        """In words, for people."""
        return outcome_text(self.cause, self.found, self.needed, self.site)


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
