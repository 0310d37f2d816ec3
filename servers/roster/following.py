"""A longer roster is taken without a restart: from the file when it changes, or from whoever completes a change."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Protocol

from host import log
from host.audit_log import Action, AuditLog
from host.files import read_secret
from host.folder_lock import one_at_a_time
from protocol.errors import MoietyError, RosterRefused
from protocol.messages.control import Roster
from protocol.roster.chain import RosterChain, require_extension, require_same_servers
from protocol.roster.keyfile import PartyKeys, parse_party_keys
from servers.monitoring.metrics import Metrics
from servers.notifications import Changes
from servers.roster.accepted import is_kept, keep_chain, read_chain
from servers.settings import Role, ServerSettings
from servers.store.interface import A_NEW_STUDY, Store

_log = log.logger("roster")


class Follower(Protocol):
    """The parts of a server (``servers.server``) that a longer roster concerns."""

    chain: RosterChain
    keys: PartyKeys
    settings: ServerSettings
    store: Store
    changes: Changes
    metrics: Metrics
    audit: AuditLog

    def follow(self, chain: RosterChain) -> None: ...


def take_chain(server: Follower, chain: RosterChain) -> bool:
    """Go on under a longer chain, which is checked here; whether there was anything new in it.

    Rounds under way keep the roster that they were announced under; who was removed is refused from here on. While no
    study is under way the operators' and the requester's keys may change too, this server's own with its keys' file.

    Raises: RosterRefused, for a fork, a shorter or foreign chain, for other keys of the operators and the requester in
            a study, and for other addresses of the operators; BadSignature
    """
    newer = require_extension(chain, server.chain)
    if newer.number == server.chain.number:
        return False
    if any(not study.state.ended for study in server.store.studies()):
        require_same_servers(newer, server.chain)
    keys = _own_keys(server, newer.head)
    with nullcontext() if server.settings.role is Role.ALL else one_at_a_time(server.settings.data_dir):
        if not is_kept(server.settings, newer):  # of several processes the first one does it
            server.audit.add(Action.ROSTER, f"change {newer.number} is in force, digest {newer.head_digest}")
            keep_chain(server.settings, newer)
    server.keys = keys
    server.follow(newer)
    for study in server.store.studies():
        if not study.state.ended:
            server.store.change_study(study.digest, lambda record: record)  # a cursor more, whoever watches sees it
    server.changes.notify(A_NEW_STUDY)
    _log.info("roster_changed", detail=f"change {newer.number} is in force: {len(newer.head.sites)} sites")
    return True


def _own_keys(server: Follower, head: Roster) -> PartyKeys:
    """This server's keys in the roster: those that it has, or newer ones in its file. Raises: RosterRefused"""
    settings = server.settings
    mine = head.operator(settings.side)
    for key, named, url in (
        ("public_url", settings.public_url, mine.url),
        ("peer_url", settings.peer_url, head.operator(settings.side.other).url),
    ):
        if named != url:
            raise RosterRefused(
                f"the roster has {url!r} where this server has key '{key}' = {named!r}: set it and start the server "
                "again; an address changes with a restart"
            )
    if server.keys.party(url=mine.url) == mine:
        return server.keys
    try:
        keys = parse_party_keys(read_secret(settings.keys), str(settings.keys))
    except (OSError, MoietyError) as wrong:
        raise RosterRefused(f"the roster has other keys of this server, and {settings.keys}: {wrong}") from None
    if keys.party(url=mine.url) != mine:
        raise RosterRefused(
            f"the roster has other keys of this server than {settings.keys}: put the new ones there; the roster's file "
            "is looked at again"
        )
    return keys


class RosterFile:
    """Looks whether the roster's file has changed; what is wrong with it is said once, and the head before stays."""

    def __init__(self, server: Follower) -> None:
        self._server = server
        self._seen = self._look()
        self._problem = ""

    def renew(self) -> bool:
        """Return whether a longer chain was taken."""
        server, seen = self._server, self._look()
        if seen == self._seen:
            return False
        self._seen = seen
        try:
            taken = take_chain(server, read_chain(server.settings.roster))
        except MoietyError as wrong:
            self._seen = None  # a study may end, and keys' files be put in place
            if wrong.detail != self._problem:
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
