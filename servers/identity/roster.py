"""The roster and keys that a server goes by: at its start, and after every longer roster.

The accepted chain is kept in ``data_dir``, so that an older file that is put back, or a fork, is noticed.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Final, Protocol

from host import log
from host.audit_log import Action, AuditLog
from host.files import read_secret, write_durably
from host.folder_lock import one_at_a_time
from host.network import require_apart
from host.settings import read_text
from protocol.errors import ConfigurationError, MoietyError, RosterRefused
from protocol.messages.control import Roster
from protocol.roster.chain import RosterChain, require_chain, require_extension, require_same_servers
from protocol.roster.changes import dump_chain, parse_chain
from protocol.roster.keyfile import PartyKeys, parse_party_keys
from servers.event_loop import Changes
from servers.monitoring import Metrics
from servers.settings import Role, ServerSettings
from servers.store.interface import A_NEW_STUDY, Store

ACCEPTED: Final = "accepted_roster.toml"
_log = log.logger("roster")


def read_chain(path: Path) -> RosterChain:
    """Raises: ConfigurationError, BadSignature, RosterRefused"""
    return require_chain(_parsed(path))


def chain_at_start(settings: ServerSettings) -> tuple[RosterChain, RosterChain | None]:
    """Return the chain that the server begins with, and what it had accepted before.

    An older file than the accepted one changes nothing: what was accepted stays. Raises: as ``read_chain``
    """
    found, kept = read_chain(settings.roster), settings.data_dir / ACCEPTED
    if not kept.exists():
        return found, None
    accepted = read_chain(kept)
    if accepted.is_extension_of(found):
        if found.number < accepted.number:
            _log.error("old_roster", detail=_old(settings.roster, found, accepted))
        return accepted, accepted
    if found.first_digest != accepted.first_digest:
        return found, accepted  # whose folder it is says more: ``require_continued`` refuses it afterwards
    try:
        return require_extension(found, accepted), accepted
    except MoietyError as wrong:
        raise ConfigurationError(f"{settings.roster}: {wrong.detail}; this server has accepted {kept}") from None


def newest_chain(settings: ServerSettings) -> RosterChain | None:
    """The chain that the next change must follow: the file's, or what was accepted, if that is longer or the file is
    a fork of it. None before the federation is founded.

    A file that was put back would otherwise have this operator sign a second change after the same link. Nothing but
    the links after the accepted ones is checked. Raises: ConfigurationError
    """
    kept = settings.data_dir / ACCEPTED
    accepted = _parsed(kept) if kept.exists() else None
    found = _parsed(settings.roster) if settings.roster.exists() else None
    if accepted is None or found is None or found.first_digest != accepted.first_digest:
        return found or accepted
    try:
        return require_extension(found, accepted)
    except MoietyError:
        return accepted


def _parsed(path: Path) -> RosterChain:
    return parse_chain(read_text(path), str(path))


def require_continued(chain: RosterChain, accepted: RosterChain | None) -> None:
    """Raises: ConfigurationError, for another first roster than the one that was accepted in this folder"""
    if accepted is not None and accepted.first_digest != chain.first_digest:
        raise ConfigurationError(
            f"key 'roster': it begins with {chain.first_digest[:16]}, this server has accepted one that begins with "
            f"{accepted.first_digest[:16]}: give the new federation a data_dir and a database of its own"
        )


def is_kept(settings: ServerSettings, chain: RosterChain) -> bool:
    """Return whether this very chain is stored there."""
    kept = settings.data_dir / ACCEPTED
    return kept.exists() and kept.read_bytes() == dump_chain(chain).encode()


def keep_chain(settings: ServerSettings, chain: RosterChain) -> None:
    """Durably, before anything follows from it."""
    write_durably(settings.data_dir / ACCEPTED, dump_chain(chain).encode())


def _old(path: Path, found: RosterChain, accepted: RosterChain) -> str:
    return (
        f"{path} ends with change {found.number}; this server has accepted change {accepted.number}, which stays in "
        "force: put the newest roster file in place"
    )


def _require_addresses(settings: ServerSettings, roster: Roster) -> None:
    """Signatures cover the roster's addresses: with another one every request is refused, first by the sites."""
    for key, side in (("public_url", settings.side), ("peer_url", settings.side.other)):
        operator, found = roster.operator(side), getattr(settings, key)
        if found is None:
            raise ConfigurationError(f"key '{key}' is missing: the roster has {operator.url!r} for {operator.name!r}")
        if found != operator.url:
            raise ConfigurationError(
                f"key '{key}': found {found!r}; the roster has {operator.url!r} for {operator.name!r}, operator of "
                f"side {side.value!r}, letter by letter: set that, or have a new roster signed if it is wrong"
            )


def load_identity(settings: ServerSettings) -> tuple[RosterChain, PartyKeys, RosterChain | None]:
    """The roster's chain and this server's keys, which belong to its head, at the head's addresses, on two machines.

    The third is what the server had accepted before.

    Raises: ConfigurationError
    """
    try:
        chain, accepted = chain_at_start(settings)
        keys = parse_party_keys(read_secret(settings.keys), str(settings.keys))
    except OSError as error:
        raise ConfigurationError(f"{error.filename}: cannot be read: {error.strerror}") from None
    except ConfigurationError:
        raise
    except MoietyError as error:
        raise ConfigurationError(f"{settings.roster}: {error.detail}") from None
    roster = chain.head
    mine = roster.operator(settings.side)
    if mine != keys.party(url=mine.url):
        raise ConfigurationError(
            f"{settings.keys}: these are the keys of {keys.name!r}; the roster's operator of side "
            f"{settings.side.value!r} is {mine.name!r}, with other keys: check 'side' and 'keys'"
        )
    _require_addresses(settings, roster)
    require_apart((roster.operator_a.url or "", roster.operator_b.url or ""))
    return chain, keys, accepted


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
