"""Every control message between sites and servers, and signatures over them (docs/protocol.md 3, 4).

What a server tells its callers is defined here; the other modules' messages can be imported from here too.

A round passes through states in which a contributor does nothing: what happens between two servers, and what the
requester says to them. A view for each of those cost every site most of its requests. So a site says which news it
has, and the server answers once there are others; the digest tells a server nothing but what it sent itself.
"""

# ruff: noqa: F403, F405 - every name of these modules is handed on; mypy finds one that is not there

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, ClassVar, Final, cast

from pydantic import Field

from protocol.channel.keys import SigningKey
from protocol.channel.message import *
from protocol.channel.signing import sign_message, verify_message
from protocol.errors import BadSignature, UnknownParty
from protocol.messages.model import *
from protocol.messages.purpose import *
from protocol.messages.roster import *
from protocol.messages.round import *
from protocol.messages.specifications import *
from protocol.messages.study import *
from protocol.messages.table import *


class RoundView(Message):
    """One server's view of the current round, as served to the study's sites.

    ``commitment`` is this server's own, in a round with tags; ``go`` is there once this server serves its half.
    """

    KIND: ClassVar[str] = "round_view"
    round: RoundNumber
    attempt: Attempt
    state: RoundState
    announcement: Signed[Announcement]
    agreed_set: Signed[AgreedSet] | None = None
    transcript: Signed[ChallengeTranscript] | None = None
    release_set: Signed[ReleaseSet] | None = None
    sum_release: Signed[SumRelease] | None = None
    outcome: Signed[RoundOutcome] | None = None
    commitment: Signed[OutputCommitment] | None = omitted()
    go: Signed[Go] | None = omitted()


class PauseCause(StrEnum):
    """Why a server waits for the requester before the study goes on."""

    REQUESTER_AWAY = "requester_away"
    REQUESTER_SILENT = "requester_silent"
    SERVER_RESTORED = "server_restored"


class PauseNotice(Message):
    """A study waits, after so many skips in a row or a long silence; the requester's next announcement resumes it.

    After a server was restored from an older database nothing resumes it: the requester cancels it.
    """

    KIND: ClassVar[str] = "pause"
    cause: PauseCause
    skips: Annotated[int, Field(ge=1)]

    @property
    def reason(self) -> str:
        """In words, for people."""
        if self.cause is PauseCause.SERVER_RESTORED:
            return (
                "a server was restored from an older database and may not know what this study did; its requester "
                "cancels it and creates it anew under another name"
            )
        if self.cause is PauseCause.REQUESTER_SILENT:
            return "the requester has announced no round for long; its next announcement resumes the study"
        return (
            f"{self.skips} rounds in a row were skipped because the requester was away; its next announcement "
            "resumes the study"
        )


class StudyView(Message):
    """One server's view of a study. ``cursor`` grows with every change: pass it back to wait for the next.

    A study has ended when its requester says so, over its signature: ``end`` is that statement, and nothing else in a
    view ends anything. ``pause`` is this server's own. ``roster_changes``: how many links its roster has after the
    first, which whoever has fewer can fetch (docs/protocol.md 20).
    """

    KIND: ClassVar[str] = "study_view"
    study: StudyName
    study_digest: Digest
    end: Signed[StudyEnd] | None = None
    pause: PauseNotice | None = None
    cursor: int
    ready: tuple[PartyName, ...]
    mail: tuple[str, ...]
    current: RoundView | None = None
    roster_changes: Annotated[int, Field(ge=0)] = omitted(0)

    @property
    def state(self) -> StudyState:
        """The server's word for the state of the study; whoever acts on an end checks its signature first."""
        if self.end is not None:
            return StudyState(self.end.message.state.value)
        return StudyState.OPEN if self.pause is None else StudyState.PAUSED

    @property
    def reason(self) -> str:
        """Why it is paused or ended, for people."""
        if self.end is not None:
            return self.end.message.reason
        return "" if self.pause is None else self.pause.reason


class ContributedRound(Message):
    """A round of updates for which a server has a site's receipt, and which was not skipped."""

    KIND: ClassVar[str] = "contributed_round"
    study: StudyName
    study_digest: Digest
    round: RoundNumber
    attempt: Attempt
    body_digest: Digest


class ContributedRounds(Message):
    """A page of them, in the order of studies' digests and rounds; signed, over the ``nonce`` of who asked."""

    KIND: ClassVar[str] = "contributed_rounds"
    site: PartyName
    nonce: Digest
    rounds: tuple[ContributedRound, ...]
    more: bool


class HeldUpload(Message):
    """The bytes that a server durably has of the sealed message with this digest.

    The next part may have ``part_bytes``.
    """

    KIND: ClassVar[str] = "held_upload"
    body_digest: Digest
    held_bytes: Annotated[int, Field(ge=0, le=2**40)]
    part_bytes: Annotated[int, Field(ge=2**10, le=2**26)]


class ListedStudy(Message):
    """A study by its name, and the digest by which its content is known."""

    KIND: ClassVar[str] = "listed_study"
    name: StudyName
    study_digest: Digest


class StudyIndex(Message):
    """One page of the studies whose roster holds the caller, by name; with ``more``, ask after the last one's name.

    The digest of a whole index says which one a caller knows: ``unchanged`` is the answer while it is still that one.
    ``roster_changes`` as in a view.
    """

    KIND: ClassVar[str] = "study_index"
    studies: tuple[ListedStudy, ...]
    more: bool = False
    unchanged: bool = False
    roster_changes: Annotated[int, Field(ge=0)] = omitted(0)


def signature_by(signer: str, key: SigningKey, message: Message) -> Signature:
    """Ed25519 over the message's domain and canonical bytes."""
    return Signature(signer=signer, value=sign_message(message.KIND, message.canonical(), key).hex())


def sign(message: M, signer: str, key: SigningKey) -> Signed[M]:
    envelope = cast(type[Signed[M]], Signed[type(message)])  # type: ignore[misc]  # made of a value's class
    return envelope(message=message, signatures=(signature_by(signer, key, message),))


def with_signature(signed: Signed[M], signature: Signature) -> Signed[M]:
    """The same message with one more signature; a second one of the same signer replaces the first."""
    kept = tuple(s for s in signed.signatures if s.signer != signature.signer)
    return signed.model_copy(update={"signatures": (*kept, signature)})


def countersign(signed: Signed[M], signer: str, key: SigningKey) -> Signed[M]:
    return with_signature(signed, signature_by(signer, key, signed.message))


def check_signature(message: Message, signature: Signature, party: Party) -> None:
    """BadSignature unless ``party`` made this signature over this message."""
    if signature.signer != party.name:
        raise BadSignature(f"{message.KIND}: signed by {signature.signer!r}, expected {party.name!r}")
    verify_message(message.KIND, message.canonical(), bytes.fromhex(signature.value), party.verify_key)


def signature_from(signed: Signed[M], signer: str) -> Signature:
    """The signer's signature, unchecked. Raises: BadSignature, when it is missing"""
    signature = signed.signature_of(signer)
    if signature is None:
        raise BadSignature(f"{signed.message.KIND}: the signature of {signer!r} is missing")
    return signature


def require_signatures(signed: Signed[M], roster: Roster, signers: Sequence[str]) -> M:
    """The message, once every one of ``signers`` has validly signed it; BadSignature or UnknownParty otherwise."""
    for name in signers:
        party = roster.party(name)
        if party is None:
            raise UnknownParty(f"{name!r} is not in the roster")
        check_signature(signed.message, signature_from(signed, name), party)
    return signed.message


def require_roster(signed: Signed[Roster]) -> Roster:
    """A roster is valid once both operators and the requester have signed it."""
    roster = signed.message
    return require_signatures(signed, roster, (*roster.operators, roster.requester))


_ENDED: Final = frozenset({RoundState.RELEASED, RoundState.RANKED, RoundState.CLOSED, RoundState.SKIPPED})
_UNDER_WAY: Final = RoundState.ANNOUNCED
_WEIGHTS: Final = "weights-"
"""Weight lists come before the announcement of their round, which is the news."""


def shared_news(view: StudyView) -> str:
    """Return the digest of what every contributor is shown alike: hex SHA-256, computed once for all callers."""
    shown = {"cursor": 0, "ready": (), "mail": (), "current": _acted_on(view.current)}
    return view.model_copy(update=shown).digest()


def news(shared: str, mail: Sequence[str]) -> str:
    """Return the digest of one site's whole view: ``shared_news`` of it, and its ``mail``. -> hex SHA-256"""
    letters = [entry for entry in mail if not entry.startswith(_WEIGHTS)]
    return hashlib.sha256("\n".join([shared, *letters]).encode()).hexdigest()


def news_of(view: StudyView) -> str:
    """Return the digest of a view that a site holds. -> hex SHA-256"""
    return news(shared_news(view), view.mail)


def _acted_on(current: RoundView | None) -> RoundView | None:
    """An attempt under way is one thing from its announcement on; its end is shown with all its evidence."""
    if current is None or current.state in _ENDED:
        return current
    return RoundView(
        round=current.round,
        attempt=current.attempt,
        state=_UNDER_WAY,
        announcement=current.announcement,
        outcome=current.outcome,
    )
