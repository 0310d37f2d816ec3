"""The signed changes of the roster since the first one, for an operator to read and to compare."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.wire.chain.chain import RosterChain, signers
from protocol.wire.chain.words import in_words


@dataclass(frozen=True)
class ChangeSeen:
    """One link: what it does, why, who signed it (all of whom it needs, as it was checked), and its digest."""

    number: int
    reason: str
    does: tuple[str, ...]
    signed_by: tuple[str, ...]
    digest: str


def changes_of(chain: RosterChain) -> tuple[ChangeSeen, ...]:
    """The newest first; empty where the first roster still holds."""
    found = [
        ChangeSeen(
            number=signed.message.number,
            reason=signed.message.reason,
            does=in_words(before, signed.message.roster),
            signed_by=signers(before),
            digest=digest,
        )
        for before, signed, digest in zip(chain.rosters, chain.changes, chain.digests[1:], strict=False)
    ]
    return tuple(reversed(found))
