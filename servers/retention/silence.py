"""A requester that announces no round any more: its study is paused, with that reason, until it comes back."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

from host import log
from protocol.errors import MoietyError
from protocol.messages.control import RoundState
from protocol.rounds.states import STUDY_TRANSITIONS, StudyEvent, study_step
from servers.server import Server
from servers.store.study_records import StudyRecord

_LOOKED_AT_EVERY_S: Final = 60.0
_OVER: Final = (RoundState.RELEASED, RoundState.RANKED, RoundState.CLOSED, RoundState.SKIPPED)
_log = log.logger("studies")


async def watch_requesters(server: Server) -> None:
    """Until it is cancelled."""
    while True:
        try:
            pause_silent(server)
        except MoietyError as later:
            _log.warning("silence_not_seen", code=later.code, detail=later.detail)
        except Exception:
            _log.exception("silence_not_seen")
        await asyncio.sleep(min(_LOOKED_AT_EVERY_S, server.settings.limits.requester_silent_s))


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
    _log.warning("requester_silent", study=study.name, for_s=server.settings.limits.requester_silent_s)
    return True


def _is_silent(server: Server, study: StudyRecord) -> bool:
    if (study.state, StudyEvent.REQUESTER_STAYED_AWAY) not in STUDY_TRANSITIONS:
        return False
    newest = next(iter(server.store.rounds_seen(study.digest, 1)), None)
    if newest is None:
        since_s: float | None = server.recent.requester_at_s
    else:
        since_s = newest.state_since_s if newest.state in _OVER else None
    return since_s is not None and server.clock() - since_s > server.settings.limits.requester_silent_s
