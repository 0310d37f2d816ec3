"""A longer roster is taken without a restart: from the file when it changes, or from whoever completes a change."""

from __future__ import annotations

from typing import Protocol

from host import log
from host.audit.entry import Action
from host.audit.log import AuditLog
from protocol.errors import MoietyError
from protocol.wire.chain.chain import RosterChain, require_extension, require_same_servers
from servers.monitoring.metrics import Metrics
from servers.notifications import Changes
from servers.roster.accepted import keep_chain, read_chain
from servers.settings import ServerSettings
from servers.store.interface import A_NEW_STUDY, Store

_log = log.logger("roster")


class Follower(Protocol):
    """What of a server (``servers.server``) a longer roster concerns."""

    chain: RosterChain
    settings: ServerSettings
    store: Store
    changes: Changes
    metrics: Metrics
    audit: AuditLog

    def follow(self, chain: RosterChain) -> None: ...


def take_chain(server: Follower, chain: RosterChain) -> bool:
    """Go on under a longer chain, which is checked here; whether there was anything new in it.

    Rounds under way keep the roster that they were announced under; who was removed is refused from here on.

    Raises: RosterRefused, for a fork, a shorter or foreign chain, and for other keys or addresses of the operators and
            the requester; BadSignature
    """
    newer = require_extension(chain, server.chain)
    if newer.number == server.chain.number:
        return False
    require_same_servers(newer, server.chain)
    server.audit.add(Action.ROSTER, f"change {newer.number} is in force, digest {newer.head_digest}")
    keep_chain(server.settings, newer)
    server.follow(newer)
    for study in server.store.studies():
        if not study.state.ended:
            server.store.change_study(study.digest, lambda record: record)  # a cursor more, whoever watches sees it
    server.changes.notify(A_NEW_STUDY)
    _log.info("roster_changed", detail=f"change {newer.number} is in force: {len(newer.head.sites)} sites")
    return True


class RosterFile:
    """Looks whether the roster's file has changed; what is wrong with it is said once, and the head before stays."""

    def __init__(self, server: Follower) -> None:
        self._server = server
        self._seen = self._look()
        self._problem = ""

    def renew(self) -> bool:
        """Whether a longer chain was taken."""
        server, seen = self._server, self._look()
        if seen == self._seen:
            return False
        self._seen = seen
        try:
            taken = take_chain(server, read_chain(server.settings.roster))
        except OSError as error:
            self._refused(f"{error.filename}: cannot be read: {error.strerror}")
            return False
        except MoietyError as wrong:
            server.metrics.refusals.labels(wrong.code.value).inc()
            self._refused(wrong.detail)
            return False
        self._problem = ""
        return taken

    def _refused(self, detail: str) -> None:
        if detail != self._problem:
            kept = f"change {self._server.chain.number}, {self._server.chain.head_digest[:16]}, stays in force"
            _log.error("roster_refused", detail=f"{detail}; {kept}")
        self._problem = detail

    def _look(self) -> tuple[int, int, int] | None:
        try:
            found = self._server.settings.roster.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size
