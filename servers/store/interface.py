"""The store that keeps what a server has to keep durably, whatever database is behind it.

Every call of a store is short and runs on a process's one event loop, so that what is read and then written in one
synchronous function cannot be interleaved by the same process; by others of the same server it is not inside of
``alone``. A call returns only after its transaction is on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from threading import Event
from typing import Final, Protocol, TypeVar

from host.folder_lock import Owner
from protocol.messages.control import ContributedRound, RoundState, Signed
from protocol.messages.peer import History
from protocol.rounds.states import RoundKey
from servers.store.processes import Beside, News
from servers.store.records import (
    Answer,
    AnswerKind,
    ContributionRecord,
    CorrelationUse,
    Holdings,
    Kept,
    MailRecord,
    Refusal,
    RoundRecord,
    SeenRound,
    StudyRecord,
)

T = TypeVar("T")
A_NEW_STUDY: Final = "new"
"""In place of a study's digest where changes are told: there is one study more."""


class Store(Protocol):
    """The durable state of one server."""

    def ready(self) -> None:
        """Return if the database answers. Raises: Unavailable"""
        ...

    def close(self) -> None: ...

    def next_boot(self) -> int:
        """Return how often a server has been started on this store, this time included."""
        ...

    # several processes of one server (docs/adr/0038)
    @property
    def beside(self) -> Beside | None:
        """Return which of several processes this one is; None where a server is one."""
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
        """Return how many changes of studies were stored. Raises: RolledBack, when they were more while this process
        runs
        """
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
        """Return the store's owner: ``owner``, if it was nobody's."""
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
        """Return the contributors, without reading their contributions."""
        ...

    def last_contributed(self, study: str) -> dict[str, int]:
        """The last round of each site that ever contributed; looks through all that it did: for threads."""
        ...

    def answer(self, key: RoundKey, kind: AnswerKind) -> Answer | None: ...

    # contributions
    def contribution(self, key: RoundKey, site: str) -> ContributionRecord | None: ...
    def contributions(self, key: RoundKey) -> list[ContributionRecord]: ...
    def contributions_held(self, key: RoundKey) -> int:
        """Return the number of contributions, without reading them."""
        ...

    def contributed(self, site: str, after: tuple[str, int], limit: int) -> list[ContributedRound]:
        """Rounds of updates with a contribution of ``site`` that were not skipped, after a study's digest and round."""
        ...

    def add_contribution(self, record: ContributionRecord, state: RoundState) -> None:
        """Store the share's row and the round's state in one transaction; if that is a new one, the cursor moves."""
        ...

    def forget_share_files(self, study: str, *, before_round: int) -> list[str]:
        """Unlink the shares of earlier rounds from their rows; answers go; -> files to delete."""
        ...

    def forget_attempt_files(self, key: RoundKey) -> list[str]: ...
    def forget_outputs(self, study: str, *, before_round: int) -> list[str]:
        """Unlink the outputs of earlier rounds from their rows, masks go; -> files to delete."""
        ...

    def files(self) -> set[str]:
        """Every file that a row names."""
        ...

    def kept(self) -> dict[Kept, tuple[str, ...]]:
        """The same, by what they hold; for threads."""
        ...

    def holds_of(self, study: str) -> Holdings:
        """Return what would go with ``forget_study``."""
        ...

    def forget_study(self, study: str) -> None:
        """Letters, answers, seeds and nonces go, and no row names a file any more; the cursor moves."""
        ...

    def size_bytes(self) -> int:
        """Return the size of the database on its disk; for threads."""
        ...

    # mail
    def mail(self, study: str, sender: str, recipient: str, topic: str) -> MailRecord | None: ...
    def mail_for(self, study: str, recipients: Sequence[str]) -> list[MailRecord]: ...
    def add_mail(self, record: MailRecord, in_place_of: Sequence[MailRecord] = ()) -> None:
        """At once with it the rows of letters that it leaves without a reader go; recipients alone hear of either."""
        ...

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
