"""Duties of one process of a server: drivers, answers, silent requesters, clean-up, certificates, rosters."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Final

import httpx
from fastapi import FastAPI

from host import log
from host.audit_log import Action
from host.files import read_secret
from host.folder_lock import one_at_a_time
from protocol.errors import MoietyError, RosterRefused
from protocol.messages.control import Roster
from protocol.roster.chain import RosterChain, require_extension, require_same_servers
from protocol.roster.keyfile import PartyKeys, parse_party_keys
from protocol.rounds.states import FINAL_STATES, STUDY_TRANSITIONS, StudyEvent, study_step
from protocol.sharing import Side
from servers.background.deletion import keep_to_retention
from servers.correlations import CorrelationPool, OtSessions, Transfer
from servers.event_loop import keep_doing
from servers.identity.roster import is_kept, keep_chain, read_chain
from servers.peer_client import PeerClient
from servers.rounds.endings import Endings
from servers.rounds.side_a import Driver
from servers.rounds.side_b import Answering
from servers.rounds.sketches import Sketches
from servers.server import Server
from servers.settings import Role
from servers.store.records import A_NEW_STUDY, StudyRecord

_LOOKED_AT_EVERY_S: Final = 60.0
_studies_log = log.logger("studies")


async def watch_requesters(server: Server) -> None:
    every_s = min(_LOOKED_AT_EVERY_S, server.settings.limits.requester_silent_s)
    await keep_doing(lambda: pause_silent(server), every_s, _studies_log, "silence_not_seen")


def pause_silent(server: Server) -> list[str]:
    """Pause open studies whose last round has been over for ``requester_silent_s``. -> their names

    Nothing but the requester's next announcement is waited for then. In one that has begun no round its requester may
    wait for sites for as long as it said, and asks for news of them: it is paused when no request came of it for so
    long. Raises: Unavailable
    """
    if server.store.beside is not None:  # its requests come to other processes
        heard_s = server.store.last_heard_of_s(server.key_id_of(server.roster.requester))
        server.recent.requester_at_s = max(server.recent.requester_at_s, heard_s or 0.0)
    silent = [study for study in server.store.studies() if _is_silent(server, study)]
    return [study.name for study in silent if _paused(server, study)]


def _paused(server: Server, study: StudyRecord) -> bool:
    with server.store.alone(study.digest):
        if not _is_silent(server, server.store.study(study.digest)):
            return False
        server.store.change_study(
            study.digest,
            lambda s: replace(s, state=study_step(s.state, StudyEvent.REQUESTER_STAYED_AWAY), absent_in_a_row=0),
        )
    _studies_log.warning("requester_silent", study=study.name, for_s=server.settings.limits.requester_silent_s)
    return True


def _is_silent(server: Server, study: StudyRecord) -> bool:
    if (study.state, StudyEvent.REQUESTER_STAYED_AWAY) not in STUDY_TRANSITIONS:
        return False
    newest = next(iter(server.store.rounds_seen(study.digest, 1)), None)
    if newest is None:
        since_s: float | None = server.recent.requester_at_s
    else:
        since_s = newest.state_since_s if newest.state in FINAL_STATES else None
    return since_s is not None and server.clock() - since_s > server.settings.limits.requester_silent_s


_ROSTER_LOOKED_AT_EVERY_S: Final = 10.0
_roster_log = log.logger("roster")


def take_chain(server: Server, chain: RosterChain) -> bool:
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
    _roster_log.info("roster_changed", detail=f"change {newer.number} is in force: {len(newer.head.sites)} sites")
    return True


def _own_keys(server: Server, head: Roster) -> PartyKeys:
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

    def __init__(self, server: Server) -> None:
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
            _roster_log.error("roster_refused", detail=f"{detail}; {kept}")
        self._problem = detail

    def _look(self) -> tuple[int, int, int] | None:
        try:
            found = self._server.settings.roster.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size


async def follow_roster(server: Server) -> None:
    """A longer roster in the roster's file is in force from then on; until it is cancelled."""
    await keep_doing(RosterFile(server).renew, _ROSTER_LOOKED_AT_EVERY_S, _roster_log, "roster_not_read")


NONCES_KEPT_S: Final = 600
_DATABASE_LOOKED_AT_EVERY_S: Final = 1.0
_log = log.logger("http")


@dataclass(eq=False)
class Duties:
    """Begun once, by the process that drives; ``app`` then holds what its routes and its status show of them."""

    app: FastAPI
    server: Server
    to_peer: httpx.AsyncBaseTransport | None
    transfer: Transfer
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _client: PeerClient | None = None

    def begin(self) -> None:
        server, state = self.server, self.app.state
        sketches = Sketches(server)
        keeping = (_purge, keep_to_retention, watch_requesters, _watch_database)
        self._tasks += [asyncio.create_task(one(server)) for one in keeping]
        if server.side is Side.B:
            state.answering = Answering(server, sketches, OtSessions(server, self.transfer))
            return
        state.peer = self._client = PeerClient(server, self.to_peer)
        state.pool = CorrelationPool(server, self._client, self.transfer)
        driver = Driver(server, self._client, state.pool, sketches, Endings(server, self._client))
        self._tasks.append(asyncio.create_task(driver.run()))

    async def end(self) -> None:
        """Nothing is under way any more; the other server is not called. Whatever a task ended with, all of it ends."""
        tasks, self._tasks = self._tasks, []
        client, self._client = self._client, None
        await end_all(tasks)
        if client is not None:
            await client.close()


async def end_all(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait for the last of them; one that had failed before keeps none of the others from ending."""
    for task in tasks:
        task.cancel()
    for found in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(found, Exception):
            _log.error("task_failed", exc_info=found)


async def _purge(server: Server) -> None:
    """Nonces older than any acceptable signature are forgotten."""

    def purge() -> None:
        server.store.purge_nonces(server.clock() - NONCES_KEPT_S)

    await keep_doing(purge, NONCES_KEPT_S / 10, _log, "nonces_not_purged")


async def _watch_database(server: Server) -> None:
    """An older one can take the place of the one that is served from; of several processes each looks by itself."""

    def count() -> None:
        with suppress(MoietyError):  # what went back is noted, and what does not answer is said to whoever asks
            server.history.count()

    if server.store.beside is None:
        await keep_doing(count, _DATABASE_LOOKED_AT_EVERY_S, _log, "database_not_watched")
