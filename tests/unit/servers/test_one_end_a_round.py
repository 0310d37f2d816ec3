"""A deviating server and the requester try to end one round twice: two sums under one mask, or a sum and a skip.

Either would give them the difference of two sums over almost the same sites, which is one site's update.

The attacks that this bars are ``ends-...``; here is every state of the machine behind them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from protocol.errors import ConflictingMessage, ProtocolViolation, UnknownResource, WrongRound
from protocol.messages.control import (
    AgreedSet,
    Announcement,
    CollectedContribution,
    OutcomeCause,
    ReleaseSet,
    RoundState,
    Signed,
    Study,
    StudyState,
    require_signatures,
    sign,
)
from protocol.parameters import Needs
from protocol.roster.chain import RosterChain
from protocol.rounds.side_a import Act, End, Step, outcome_of
from protocol.rounds.states import RoundKey
from protocol.sharing import Side
from servers.rounds.end_round import Endings
from servers.rounds.outcomes import countersign_outcome
from servers.rounds.release import commit_release
from servers.store.migrate import upgrade
from servers.store.sql import SqlStore
from servers.store.study_records import RoundRecord, StudyRecord
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


@pytest.fixture
def record() -> RoundRecord:
    """A measured round, of which nobody has a release set yet."""
    agreed = sign(AGREED, OPERATORS[0], PARTIES.keys[OPERATORS[0]].signing)
    signed = Signed[Announcement](message=ANNOUNCED)
    return RoundRecord(KEY, RoundState.MEASURED, signed, float(ANNOUNCED.closes_at_s), agreed_set=agreed)


@pytest.fixture
def store(tmp_path: Path, record: RoundRecord) -> SqlStore:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    upgrade(url)
    made = SqlStore(url, lambda _: None)
    made.add_study(StudyRecord(KEY.study, Signed[Study](message=STUDY), StudyState.OPEN, "", 1))
    made.add_round(record)
    return made


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


@dataclass
class Delaying(Asked):
    """B has no release set, and says so only after the deadline; ``meanwhile`` happens while A waits for it."""

    meanwhile: Callable[[], None] = lambda: None

    async def get(self, path: str, kind: str) -> bytes:
        self.meanwhile()
        return await super().get(path, kind)


def test_a_peer_that_answers_after_the_deadline_makes_nobody_miss_it(store: SqlStore, record: RoundRecord) -> None:
    """A would sign that the requester's release set is missing, which A took before the deadline."""
    server = server_on(Side.A, store)
    deadline_s = ANNOUNCED.closes_at_s + 60.0
    now = [deadline_s - 1.0]
    server.clock = lambda: now[0]

    def asked(at_s: float, comes: Signed[ReleaseSet] | None) -> Step:
        now[0] = at_s

        def meanwhile() -> None:
            now[0] = deadline_s + 10.0
            if comes is not None:
                store.change_round(KEY, lambda r: replace(r, release_set=comes))

        peer = Delaying(ProtocolViolation("not asked"), meanwhile=meanwhile)
        return asyncio.run(endings(server, peer).ask_for_release_set(store.study(KEY.study), record))

    assert asked(deadline_s - 1.0, None) is Act.LOOK_AGAIN
    assert asked(deadline_s + 1.0, None) == skipped(record, OutcomeCause.RELEASE_SET_MISSING)
    assert asked(deadline_s + 1.0, ALL) is Act.LOOK_AGAIN
    kept = store.round(KEY)
    assert kept is not None
    assert (kept.release_set, kept.outcome) == (ALL, None)


def test_before_the_mask_is_drawn_the_peers_release_set_stands(store: SqlStore, record: RoundRecord) -> None:
    server, peer = server_on(Side.A, store), Asked(ProtocolViolation("not asked"), WITHOUT_LAST)
    held = store.change_round(KEY, lambda r: replace(r, release_set=ALL))
    adopting = endings(server, peer).adopt_peers_release_set(
        store.study(KEY.study), held, ConflictingMessage("B has another one")
    )
    assert asyncio.run(adopting).release_set == WITHOUT_LAST


def test_a_round_whose_skip_one_server_signed_is_not_released_for_a_late_release_set(
    store: SqlStore, record: RoundRecord
) -> None:
    """B keeps A's signature under the skip, refuses the skip and shows a release set: A signs no second end."""
    server, peer = server_on(Side.A, store), Asked(WrongRound("round 1 has been released here"), ALL)
    with pytest.raises(ProtocolViolation, match="this side has signed a skip"):
        asyncio.run(endings(server, peer).end(record, skipped(record, OutcomeCause.RELEASE_SET_MISSING)))
    assert peer.asked == ["outcome"]
    kept = store.round(KEY)
    assert kept is not None
    assert (kept.state, kept.release_set, kept.outcome is not None) == (RoundState.MEASURED, None, True)


def test_a_server_that_only_holds_the_release_set_signs_the_skip_and_releases_nothing_after(
    store: SqlStore, record: RoundRecord
) -> None:
    """Its own sum has not left, and with its signature under the skip it never does, not even one under way."""
    server = server_on(Side.B, store)
    held = store.change_round(KEY, lambda r: replace(r, release_set=ALL))
    skip = sign(
        outcome_of(held.key, RoundState.SKIPPED, OutcomeCause.NOT_AGREED_IN_TIME),
        OPERATORS[0],
        PARTIES.keys[OPERATORS[0]].signing,
    )
    both = countersign_outcome(server, KEY, skip)
    assert require_signatures(both, ROSTER, OPERATORS).outcome is RoundState.SKIPPED
    with pytest.raises(WrongRound, match="released"):
        commit_release(server, store.study(KEY.study), held, "a sum that was on its way")
    assert getattr(store.round(KEY), "state", None) is RoundState.SKIPPED
