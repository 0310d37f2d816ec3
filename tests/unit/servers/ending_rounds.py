"""One server in the middle of a round, with a real store and keys, and a peer that answers as it likes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from harness.attack import second_ends
from protocol.messages.control import (
    Announcement,
    OutcomeCause,
    ReleaseSet,
    RoundOutcome,
    RoundState,
    Signed,
    Study,
    sign,
)
from protocol.parameters import Needs
from protocol.rounds.side_a import End, outcome_of
from protocol.rounds.states import RoundKey
from protocol.sharing import Side
from servers.rounds.endings import Endings
from servers.store.records import RoundRecord
from servers.store.sql import SqlStore
from tests.kit.databases import new_database
from tests.kit.round_messages import agreed_set, release_set
from tests.unit.parties import REQUESTER, SITES, announcement, parties, study

FIVE = (*SITES, "hospital-4")
PARTIES = parties(FIVE)
ROSTER = PARTIES.roster.message
OPERATORS = (ROSTER.operator_a.name, ROSTER.operator_b.name)
STUDY = study(ROSTER.digest())
KEY = RoundKey(STUDY.digest(), 1, 1)
ANNOUNCED: Announcement = announcement(STUDY.digest(), opens=Needs.NOTHING, listed=FIVE[1:])
AGREED = agreed_set(ANNOUNCED, FIVE)


def release_of(sites: tuple[str, ...]) -> Signed[ReleaseSet]:
    return sign(release_set(AGREED, sites), REQUESTER, PARTIES.keys[REQUESTER].signing)


ALL, WITHOUT_LAST = release_of(FIVE), release_of(FIVE[:-1])


Asked = second_ends.ScriptedServer
"""A peer that answers as it likes, and what it was asked."""


def store_with(folder: Path, record: RoundRecord, of: Study = STUDY, name: str = "store") -> SqlStore:
    """A store of one study, with this round."""
    new_database(folder / f"{name}.db")
    return second_ends.store_with(folder, record, of, name)


def by_a(key: RoundKey, state: RoundState, cause: OutcomeCause) -> Signed[RoundOutcome]:
    """Server A's word for how the round ended."""
    return sign(outcome_of(key, state, cause), OPERATORS[0], PARTIES.keys[OPERATORS[0]].signing)


def server_on(side: Side, store: SqlStore) -> Any:
    """One side with a real store and real keys; counters and files are no part of this."""
    return second_ends.scripted_server(side, store, PARTIES.roster, PARTIES.keys[ROSTER.operator(side).name])


def endings(server: Any, peer: Asked) -> Endings:
    return Endings(server, cast(Any, peer))


def skipped(record: RoundRecord, cause: OutcomeCause) -> End:
    return End(outcome_of(record.key, RoundState.SKIPPED, cause))
