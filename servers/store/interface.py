"""What a server keeps durably, as frozen records, and the store that keeps it.

Every call of a store is short and runs on a process's one event loop, so that what is read and then written in one
synchronous function cannot be interleaved by the same process; by others of the same server it is not inside of
``alone``. A call returns only after its transaction is on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from threading import Event
from typing import Final, Protocol, TypeVar

from host.one_holder import Owner
from protocol.rounds.states import Attempt, RoundKey
from protocol.rounds.transitions import RoundProgress
from protocol.wire.history import History
from protocol.wire.messages import (
    AgreedSet,
    Announcement,
    ChallengeTranscript,
    ContributedRound,
    Go,
    OutputCommitment,
    QueryHeader,
    ReleaseSet,
    RoundOutcome,
    RoundState,
    Signed,
    Study,
    StudyEnd,
    StudyState,
    SumRelease,
    TagCheck,
    TagsFailed,
)
from servers.processes.beside import Beside, News
from servers.store.for_people import Holdings, Kept, SeenRound
from servers.store.records import Answer, AnswerKind, ContributionRecord, CorrelationUse, MailRecord, Refusal

T = TypeVar("T")
A_NEW_STUDY: Final = "new"
"""In place of a study's digest where changes are told: there is one study more."""


@dataclass(frozen=True)
class StudyRecord:
    """A study, where it stands, and how often its requester was absent in a row.

    ``stranded_by``: whose older database was put back while it was under way; it does not go on and can only be ended.
    """

    digest: str
    signed: Signed[Study]
    state: StudyState
    reason: str
    cursor: int
    absent_in_a_row: int = 0
    end: Signed[StudyEnd] | None = None
    stranded_by: str | None = None

    @property
    def study(self) -> Study:
        return self.signed.message

    @property
    def name(self) -> str:
        return self.signed.message.name


class IncompleteRecord(AssertionError):
    """A round lacks what it must have by its state: this server's own error, and nobody's message was wrong."""


@dataclass(frozen=True)
class Challenged:
    """What a round of shares has from its challenge on."""

    agreed_set: Signed[AgreedSet]
    transcript: Signed[ChallengeTranscript]

    @property
    def sites(self) -> tuple[str, ...]:
        return self.agreed_set.message.sites

    @property
    def challenge(self) -> bytes:
        return bytes.fromhex(self.transcript.message.challenge)


@dataclass(frozen=True)
class RoundRecord:
    """One attempt of a round. ``own_nonce`` is n_A or n_B, ``peer_commitment`` A's commitment as B got it.

    From ``commitment`` on, what a round with tags has. A go that side B has from the requester releases nothing by
    itself: ``state`` says whether side A has handed it over. ``noise_secret`` is what this server's own noise is drawn
    from, until the shares are forgotten (docs/protocol.md 21).

    What is None comes with a later state. The properties are for code that runs only from that state on: they say what
    the record has then, and raise IncompleteRecord for a record that has not come so far.
    """

    key: RoundKey
    state: RoundState
    announcement: Signed[Announcement]
    closes_at_s: float
    agreed_set: Signed[AgreedSet] | None = None
    own_nonce: bytes | None = field(default=None, repr=False)
    peer_commitment: str | None = None
    transcript: Signed[ChallengeTranscript] | None = None
    query_header: QueryHeader | None = None
    query_digest: str | None = None
    query_file: str | None = None
    release_set: Signed[ReleaseSet] | None = None
    mask_seed: bytes | None = field(default=None, repr=False)
    output_file: str | None = None
    sum_release: Signed[SumRelease] | None = None
    outcome: Signed[RoundOutcome] | None = None
    commitment: Signed[OutputCommitment] | None = None
    committed_at_s: float | None = None
    tag_seed: bytes | None = field(default=None, repr=False)
    tag_check: Signed[TagCheck] | None = None
    go: Signed[Go] | None = None
    tags_failed: Signed[TagsFailed] | None = None
    noise_secret: bytes | None = field(default=None, repr=False)

    @property
    def progress(self) -> RoundProgress:
        return RoundProgress(round=self.key.round, attempt=self.key.attempt, state=self.state)

    @property
    def begun(self) -> Attempt:
        return Attempt(self.key, self.state, self.announcement.message, self.closes_at_s)

    @property
    def agreed(self) -> Signed[AgreedSet]:
        return self._kept(self.agreed_set, "agreed set")

    @property
    def nonce(self) -> bytes:
        return self._kept(self.own_nonce, "nonce of this side")

    @property
    def challenged(self) -> Challenged:
        return Challenged(self.agreed, self._kept(self.transcript, "challenge"))

    @property
    def chosen(self) -> Signed[ReleaseSet]:
        return self._kept(self.release_set, "release set")

    @property
    def mask(self) -> bytes:
        return self._kept(self.mask_seed, "mask")

    @property
    def signed_sum(self) -> Signed[SumRelease]:
        return self._kept(self.sum_release, "signed sum")

    @property
    def secret_of_noise(self) -> bytes:
        return self._kept(self.noise_secret, "secret of its noise")

    @property
    def committed(self) -> Signed[OutputCommitment]:
        return self._kept(self.commitment, "signed half of the output")

    @property
    def committed_since_s(self) -> float:
        return self._kept(self.committed_at_s, "time of its commitment")

    @property
    def checked(self) -> Signed[TagCheck]:
        return self._kept(self.tag_check, "check of its tags")

    @property
    def seed_of_tags(self) -> bytes:
        return self._kept(self.tag_seed, "seed of its tags")

    @property
    def signed_go(self) -> Signed[Go]:
        return self._kept(self.go, "go")

    @property
    def signed_outcome(self) -> Signed[RoundOutcome]:
        return self._kept(self.outcome, "signed outcome")

    def _kept(self, value: T | None, what: str) -> T:
        if value is None:
            raise IncompleteRecord(
                f"{self.key.label} is {self.state} here and has no {what}, which it must have by now: a server's error"
            )
        return value


class Store(Protocol):
    """The durable state of one server."""

    def ready(self) -> None:
        """Return if the database answers. Raises: Unavailable"""
        ...

    def close(self) -> None: ...

    def next_boot(self) -> int:
        """How often a server has been started on this store, this time included."""
        ...

    # several processes of one server (docs/adr/0038)
    @property
    def beside(self) -> Beside | None:
        """Which of several processes this one is; None where a server is one."""
        ...

    def alone(self, study: str) -> AbstractContextManager[None]:
        """While the block runs no other process decides anything about the study; nothing is awaited inside.

        Raises: Unavailable
        """
        ...

    def take_lease(self, seconds: float) -> int | None:
        """-> the number of this start, when nobody else drives by the store's clock: whoever drove before changes
        nothing any more. None while somebody does.
        """
        ...

    def renew_lease(self, seconds: float) -> bool:
        """False once another has taken it. Raises: Unavailable, then too"""
        ...

    def let_go_of_lease(self) -> None: ...
    def require_driver(self) -> None:
        """Raises: Unavailable, while no process drives, or where its files lie elsewhere than this one's"""
        ...

    def listen(self, heard: Callable[[News], None], over: Event) -> None:
        """Blocks until ``over``: for a thread. What other processes commit, and this one too, is told to ``heard``."""
        ...

    # how far it has come (docs/protocol.md 23)
    def changes(self) -> int:
        """How many changes of studies were stored. Raises: RolledBack, when they were more while this process runs"""
        ...

    def begin_history(self) -> int:
        """At a start: the changes that there were at the first start after ``note_compared``."""
        ...

    def note_compared(self) -> None: ...
    def restored_at_s(self) -> int: ...
    def history_of(self, party: str) -> Signed[History] | None:
        """The furthest that the other server has said of itself; of this server, one that it cannot follow."""
        ...

    def keep_history(self, signed: Signed[History]) -> None: ...
    def strand(self, party: str) -> list[str]:
        """No study that is under way goes on: ``party``'s older database was put back. -> their names"""
        ...

    def declare_restored(self, party: str, now_s: float) -> list[str]:
        """Its operator knows of the older database, and it goes on with new studies. -> names of those stranded"""
        ...

    def owned_by(self, owner: Owner) -> Owner:
        """Whose this store is: ``owner``'s, if it was nobody's."""
        ...

    # studies
    def add_study(self, record: StudyRecord) -> None: ...
    def study_named(self, name: str) -> StudyRecord | None: ...
    def study(self, digest: str) -> StudyRecord: ...
    def studies(self) -> list[StudyRecord]: ...
    def study_digests(self) -> list[tuple[str, str]]:
        """Name and digest of every study, by name."""
        ...

    def change_study(self, digest: str, change: Callable[[StudyRecord], StudyRecord]) -> StudyRecord:
        """Apply ``change`` to the stored record and move the cursor."""
        ...

    def add_ready(self, study: str, site: str) -> None: ...
    def ready_sites(self, study: str) -> tuple[str, ...]: ...
    def created_at_s(self, study: str) -> float | None:
        """When this server got the study, since 1970; None where an earlier release stored it."""
        ...

    def ready_since(self, study: str) -> dict[str, float | None]:
        """When each of them said so first; None where an earlier release stored it."""
        ...

    # rounds
    def add_round(self, record: RoundRecord) -> None: ...
    def round(self, key: RoundKey) -> RoundRecord | None: ...
    def current_round(self, study: str) -> RoundRecord | None:
        """The last attempt of the last round."""
        ...

    def latest_attempt(self, study: str, number: int) -> RoundRecord | None: ...
    def change_round(
        self,
        key: RoundKey,
        change: Callable[[RoundRecord], RoundRecord],
        *,
        used: Sequence[CorrelationUse] = (),
        answers: Sequence[Answer] = (),
        then_add: RoundRecord | None = None,
    ) -> RoundRecord:
        """All in one transaction; the study's cursor moves.

        Raises: CorrelationReused, when a correlation served before, or a site of this attempt has one already
        """
        ...

    def mark_used(self, used: Sequence[CorrelationUse]) -> None:
        """Raises: CorrelationReused, as ``change_round``"""
        ...

    def correlations_used(self, key: RoundKey) -> int: ...
    def rounds_seen(self, study: str, limit: int) -> list[SeenRound]:
        """The newest attempts first."""
        ...

    def contributors_of(self, key: RoundKey) -> tuple[str, ...]:
        """Who has contributed, without reading what."""
        ...

    def last_contributed(self, study: str) -> dict[str, int]:
        """The last round of each site that ever contributed."""
        ...

    def answer(self, key: RoundKey, kind: AnswerKind) -> Answer | None: ...

    # contributions
    def contribution(self, key: RoundKey, site: str) -> ContributionRecord | None: ...
    def contributions(self, key: RoundKey) -> list[ContributionRecord]: ...
    def contributions_held(self, key: RoundKey) -> int:
        """How many there are, without reading them."""
        ...

    def contributed(self, site: str, after: tuple[str, int], limit: int) -> list[ContributedRound]:
        """Rounds of updates with a contribution of ``site`` that were not skipped, after a study's digest and round."""
        ...

    def add_contribution(self, record: ContributionRecord, state: RoundState) -> None:
        """Store the share's row and the round's state in one transaction; if that is a new one, the cursor moves."""
        ...

    def forget_share_files(self, study: str, *, before_round: int) -> list[str]:
        """Unlink the shares of earlier rounds from their rows; answers and secrets of noise go; -> files to delete."""
        ...

    def forget_attempt_files(self, key: RoundKey) -> list[str]: ...
    def forget_outputs(self, study: str, *, before_round: int) -> list[str]:
        """Unlink the outputs of earlier rounds from their rows, masks go; -> files to delete."""
        ...

    def files(self) -> set[str]:
        """Every file that a row names."""
        ...

    def kept(self) -> dict[Kept, tuple[str, ...]]:
        """The same, by what they hold."""
        ...

    def holds_of(self, study: str) -> Holdings:
        """What of a study would go with ``forget_study``."""
        ...

    def forget_study(self, study: str) -> None:
        """Letters, answers, seeds and nonces go, and no row names a file any more; the cursor moves."""
        ...

    def size_bytes(self) -> int:
        """Of the database, as it lies on its disk."""
        ...

    # mail
    def mail(self, study: str, sender: str, recipient: str, topic: str) -> MailRecord | None: ...
    def mail_for(self, study: str, recipients: Sequence[str]) -> list[MailRecord]: ...
    def add_mail(self, record: MailRecord) -> None: ...
    def mail_of(self, study: str, topics: Sequence[str]) -> list[MailRecord]: ...
    def forget_mail(self, records: Sequence[MailRecord]) -> None:
        """Delete their rows; the cursor moves."""
        ...

    # requests
    def remember_nonce(self, party: str, nonce: str, now_s: float) -> None:
        """Raises: BadSignature, when the nonce came before"""
        ...

    def purge_nonces(self, before_s: float) -> None: ...
    def last_heard_of_s(self, party: str) -> float | None:
        """When its newest nonce came that is still there, to whichever process."""
        ...

    def add_refusal(self, refusal: Refusal) -> None:
        """Kept for a person to read: the first hundred of a party and study, so that nobody fills a disk with them."""
        ...

    def refusals(self, study: str) -> list[Refusal]: ...
