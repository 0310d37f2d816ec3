"""Exchange of the two servers' histories, and what either makes of it (docs/protocol.md 23)."""

from __future__ import annotations

from typing import Final

from host import log
from protocol.errors import BadSignature, RolledBack
from protocol.messages.control import Signed, check_signature, require_signatures, signature_from
from protocol.messages.peer import Histories, History
from servers.server import Server

_log: Final = log.logger("history")


def told(server: Server) -> Histories:
    """Raises: RolledBack, when the database went back while this process runs"""
    return Histories(own=server.sign(server.history.now()), known=server.store.history_of(server.peer.name))


def heard(server: Server, histories: Histories) -> None:
    """Keep how far the other server came; learn whether this one forgot something.

    Only what this server signed itself counts against it. Raises: BadSignature; RolledBack, when the other server shows
    less than it signed before
    """
    if histories.known is not None:
        _require_own(server, histories.known)
        server.history.shown(histories.known)
    theirs = require_signatures(histories.own, server.roster, [server.peer.name])
    if theirs.party != server.peer.name:
        raise BadSignature(f"a history of {theirs.party!r}, signed by {server.peer.name!r}")
    _keep(server, histories.own)
    if server.history.current:
        server.history.agreed()


def _keep(server: Server, signed: Signed[History]) -> None:
    """Raises: RolledBack"""
    theirs, kept = signed.message, server.store.history_of(server.peer.name)
    before = None if kept is None else kept.message
    if before is not None and not theirs.follows(before):
        if theirs.same_run(before):
            return  # of one start and late; what it said after that is kept
        server.history.compared = False
        _log.error("other_rolled_back", shows=theirs.place, signed=before.place)
        raise RolledBack(
            f"the other server shows {theirs.place} and has signed {before.place}: an older database of it was put "
            "back. Its operator puts the newest one back, or runs there: moiety server restored"
        )
    if theirs != before:
        server.store.keep_history(signed)
    if before is not None and theirs.restored_at_s > before.restored_at_s:
        _log.warning("other_restored", studies=server.store.strand(theirs.party))


def _require_own(server: Server, signed: Signed[History]) -> None:
    """Under any of the keys that this server had in the chain. Raises: BadSignature"""
    if signed.message.party != server.name:
        raise BadSignature(f"a history of {signed.message.party!r} in place of one of {server.name!r}")
    signature = signature_from(signed, server.name)
    keys = dict.fromkeys(roster.operator(server.side) for roster in server.chain.rosters)
    for party in keys:
        try:
            check_signature(signed.message, signature, party)
        except BadSignature:
            continue
        return
    raise BadSignature("the history that is said to be this server's was not signed by it")
