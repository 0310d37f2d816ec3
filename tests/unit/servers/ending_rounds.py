"""One server in the middle of a round, with a real store and keys, and a peer that answers as it likes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from protocol.errors import UnknownResource
from protocol.messages.control import (
    AgreedSet,
    Announcement,
    CollectedContribution,
    OutcomeCause,
    ReleaseSet,
    RoundOutcome,
    RoundState,
    Signed,
    Study,
    StudyState,
    sign,
)
from protocol.parameters import Needs
from protocol.roster.chain import RosterChain
from protocol.rounds.side_a import End, outcome_of
from protocol.rounds.states import RoundKey
from protocol.sharing import Side
from servers.rounds.endings import Endings
from servers.store.migrate import upgrade
from servers.store.records import RoundRecord, StudyRecord
from servers.store.sql import SqlStore
from tests.unit.parties import REQUESTER, SITES, announcement, parties, study

FIVE = (*SITES, "hospital-4")
PARTIES = parties(FIVE)
ROSTER = PARTIES.roster.message
OPERATORS = (ROSTER.operator_a.name, ROSTER.operator_b.name)
STUDY = study(ROSTER.digest())
KEY = RoundKey(STUDY.digest(), 1, 1)
ANNOUNCED: Announcement = announcement(STUDY.digest(), opens=Needs.NOTHING, listed=FIVE[1:])
AGREED = AgreedSet(
    study_digest=KEY.study,
    round=1,
    attempt=1,
    announcement_digest=ANNOUNCED.digest(),
    contributions=tuple(
        CollectedContribution(
            site=site, announcement_digest=ANNOUNCED.digest(), commitment_a="a" * 64, commitment_b="b" * 64
        )
        for site in FIVE
    ),
)


def release_of(sites: tuple[str, ...]) -> Signed[ReleaseSet]:
    message = ReleaseSet(study_digest=KEY.study, round=1, attempt=1, agreed_set_digest=AGREED.digest(), sites=sites)
    return sign(message, REQUESTER, PARTIES.keys[REQUESTER].signing)


ALL, WITHOUT_LAST = release_of(FIVE), release_of(FIVE[:-1])


@dataclass
class Asked:
    """A peer that answers as it likes, and what it was asked."""

    outcome: Exception
    release_set: Signed[ReleaseSet] | None = None
    asked: list[str] = field(default_factory=list)

    async def get(self, path: str, kind: str) -> bytes:
        self.asked.append(kind)
        if self.release_set is None:
            raise UnknownResource("none here")
        return self.release_set.canonical()

    async def post(self, path: str, body: bytes, kind: str) -> bytes:
        self.asked.append(kind)
        raise self.outcome


def store_with(folder: Path, record: RoundRecord, of: Study = STUDY, name: str = "store") -> SqlStore:
    """A store of one study, with this round."""
    url = f"sqlite:///{folder / name}.db"
    upgrade(url)
    made = SqlStore(url, lambda _: None)
    made.add_study(StudyRecord(record.key.study, Signed[Study](message=of), StudyState.OPEN, "", 1))
    made.add_round(record)
    return made


def by_a(key: RoundKey, state: RoundState, cause: OutcomeCause) -> Signed[RoundOutcome]:
    """Server A's word for how the round ended."""
    return sign(outcome_of(key, state, cause), OPERATORS[0], PARTIES.keys[OPERATORS[0]].signing)


def server_on(side: Side, store: SqlStore) -> Any:
    """One side with a real store and real keys; counters and files are no part of this."""
    operator = ROSTER.operator(side).name
    counter = SimpleNamespace(labels=lambda *_: SimpleNamespace(inc=lambda *_: None))
    signing = PARTIES.keys[operator].signing
    return SimpleNamespace(
        side=side,
        name=operator,
        peer=ROSTER.operator(side.other),
        roster=ROSTER,
        chain=RosterChain(PARTIES.roster),
        store=store,
        clock=lambda: 2_000_000_001.0,
        failpoints=SimpleNamespace(reach=lambda _: None),
        files=SimpleNamespace(delete=lambda _: None),
        shares=SimpleNamespace(forget=lambda _: None),
        shards=None,
        note_round=lambda *_: None,
        metrics=SimpleNamespace(rounds=counter),
        randomness=SimpleNamespace(bytes=lambda n, _: bytes(n)),
        settings=SimpleNamespace(
            limits=SimpleNamespace(outputs_kept_rounds=5, pause_after_skips=3, attempts=3, grace_s=60)
        ),
        sign=lambda message: sign(message, operator, signing),
        countersign=lambda signed: signed.model_copy(
            update={"signatures": (*signed.signatures, *sign(signed.message, operator, signing).signatures)}
        ),
    )


def endings(server: Any, peer: Asked) -> Endings:
    return Endings(server, cast(Any, peer))


def skipped(record: RoundRecord, cause: OutcomeCause) -> End:
    return End(outcome_of(record.key, RoundState.SKIPPED, cause))
