"""The common part of both sides of an OT session: batches, the zero-sharing key, named correlations (docs/protocol.md
7).

A session lives in memory only. Any restart, and any error in a step, ends it; A then opens a new one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from protocol.channel.sealing import open_small, seal_small
from protocol.messages.control import PartyName
from protocol.messages.peer import CorrelationRef
from protocol.ot.session import BATCH_ELEMENTS, CorrelationHalf
from protocol.sharing import Side
from servers.server import Server

Lengths = tuple[int, ...]
KEY_PART_BYTES: Final = 32


@dataclass(frozen=True, eq=False)
class Correlation:
    """One half with its place in the session."""

    session: str
    batch: int
    index: int
    half: CorrelationHalf = field(repr=False)

    def ref(self, site: PartyName) -> CorrelationRef:
        return CorrelationRef(site=site, session=self.session, batch=self.batch, index=self.index)


def in_batches(wanted: Sequence[Lengths]) -> list[list[Lengths]]:
    """Cut a demand into batches of bounded size, at least one contributor each."""
    batches: list[list[Lengths]] = []
    room = 0
    for lengths in wanted:
        size = sum(lengths)
        if not batches or size > room:
            batches.append([])
            room = BATCH_ELEMENTS
        batches[-1].append(lengths)
        room -= size
    return batches


def zero_key(part_a: bytes, part_b: bytes) -> bytes:
    """The zero-sharing key, from one part of each server: uniform if one of the two parts is."""
    return hashlib.sha256(b"moiety/2 zero sharing key\x00" + part_a + part_b).digest()


def seal_key_part(server: Server, session: str, part: bytes) -> str:
    """This server's part, for the peer."""
    return seal_small(part, server.sealing_key_of(server.peer.name), _info(session, server.side)).hex()


def open_key_part(server: Server, session: str, sealed: str) -> bytes:
    """The peer's part. Raises: BrokenSeal"""
    return open_small(bytes.fromhex(sealed), server.keys.sealing, _info(session, server.side.other))


def _info(session: str, sender: Side) -> bytes:
    return f"moiety/2 zero sharing key of session {session} from side {sender.value}".encode()
