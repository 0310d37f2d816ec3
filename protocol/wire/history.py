"""A server's signed statement of its progress, and the servers' exchange about it (docs/protocol.md 23).

Each server keeps the last history of the other. An older database that was put back shows by it: its server signed more
than it knows now. The proof is that server's own signature, so nobody but itself can hold one against it.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from protocol.wire.messages import Digest, Message, PartyName, Signed

Count = Annotated[int, Field(ge=0, le=2**53)]


class History(Message):
    """A server's store at the time of signing: a count and a time, nothing of any study.

    ``run`` is drawn at every start, ``start`` counts them, for people. ``changes`` is how many changes its database has
    seen once this start has compared, and ``began`` before that; ``began`` how many at this start, or, where starts
    before it compared nothing with the other server, at the first of those. ``restored_at_s``: when its operator last
    said that an older database was put back on purpose, in seconds since 1970, 0 for never.
    """

    KIND: ClassVar[str] = "server_history"
    party: PartyName
    run: Digest
    start: Annotated[int, Field(ge=1, le=2**53)]
    began: Count
    changes: Count
    restored_at_s: Count = 0

    def follows(self, earlier: History) -> bool:
        """Return whether a server that signed ``earlier`` and lost nothing since can say this.

        False also for an older message of the same server that came late; ``same_run`` tells those of one start.
        """
        if self.restored_at_s != earlier.restored_at_s:
            return self.restored_at_s > earlier.restored_at_s
        if self.same_run(earlier):
            return self.changes >= earlier.changes
        return self.began >= earlier.changes

    def same_run(self, other: History) -> bool:
        return self.run == other.run

    @property
    def place(self) -> str:
        """The place in words for people."""
        return f"start {self.start}, change {self.changes}"


class Histories(Message):
    """One server to the other: how far it has come, and the furthest that the other has said of itself, if any."""

    KIND: ClassVar[str] = "server_histories"
    own: Signed[History]
    known: Signed[History] | None = None
