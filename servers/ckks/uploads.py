"""Encrypted updates as they arrive at side A: parsed chunk by chunk while they are stored (docs/protocol.md 11)."""

from __future__ import annotations

from protocol.ckks.ciphertext import BodyHeader, Kind
from protocol.ckks.parameters import CkksParameters
from protocol.errors import MalformedMessage, ProtocolViolation
from protocol.sharing import Side
from protocol.wire.messages import Announcement, Study
from servers.ckks.sums import ContributionCheck
from servers.server import Server
from servers.store.shares import Draft

PARAMETERS = CkksParameters()


def body_header(server: Server, kind: Kind, announcement: Announcement, study: Study) -> BodyHeader:
    """What every body of the round begins with; starts the worker the first time.

    Raises: ConfigurationError, when the worker cannot start; ProtocolViolation, in a round of shares
    """
    if announcement.ckks_key_id is None:
        raise ProtocolViolation(f"round {announcement.round} is one of shares; it has no bodies of ciphertexts")
    key_id = bytes.fromhex(announcement.ckks_key_id)
    return BodyHeader(kind, server.ckks.fingerprint(), key_id, study.encrypted_values)


def require_summing_side(server: Server) -> None:
    """Raises: MalformedMessage at side B"""
    if server.side is not Side.A:
        raise MalformedMessage("the round is one of ciphertexts, which go to side A alone; this server is side B")


class CheckedDraft:
    """A draft that takes only what the worker parses. Blocks: for threads, never for the event loop."""

    def __init__(self, server: Server, announcement: Announcement, study: Study, draft: Draft) -> None:
        self._server = server
        self._announcement = announcement
        self._study = study
        self._draft = draft
        self._check: ContributionCheck | None = None

    def write(self, piece: bytes | memoryview) -> None:
        """Raises: MalformedMessage, ConfigurationError, StorageFull"""
        self._checking().feed(piece)
        self._draft.write(piece)

    def finish(self) -> None:
        """Say that nothing more comes. Raises: MalformedMessage"""
        self._checking().finish()

    def _checking(self) -> ContributionCheck:
        if self._check is None:
            expected = body_header(self._server, Kind.CONTRIBUTION, self._announcement, self._study)
            self._check = ContributionCheck(self._server.ckks, PARAMETERS, expected)
        return self._check
