"""One server with a real store and real keys, and a peer and requester that do as a script says.

Counters, files and failpoints are no part of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

from harness.adversaries.scripted_agents import DIMENSION, PARTIES, REQUESTER, ROSTER, SITES, study
from protocol.errors import UnknownResource
from protocol.parameters import Needs
from protocol.rounds.side_a import outcome_of
from protocol.rounds.states import RoundKey
from protocol.rounds.steps import End
from protocol.sharing import Side
from protocol.wire.authentic import sign
from protocol.wire.chain.chain import RosterChain
from protocol.wire.messages import (
    AgreedSet,
    Announcement,
    CollectedContribution,
    LayerShape,
    ModelSpec,
    OutcomeCause,
    Purpose,
    RankingSpec,
    ReleaseSet,
    RoundOutcome,
    RoundState,
    Signed,
    Study,
    StudyState,
)
from servers.rounds.end_round import Endings
from servers.store.migrate import upgrade
from servers.store.sql import SqlStore
from servers.store.study_records import RoundRecord, StudyRecord

OPERATORS: Final = (ROSTER.operator_a.name, ROSTER.operator_b.name)
_LINEAR: Final = ModelSpec(kind="linear", inputs=(30,), layers=(LayerShape(name="weight", shape=(DIMENSION,)),))
OF: Final[Study] = study("ends").model_copy(update={"model": _LINEAR, "ranking": RankingSpec()})
KEY: Final = RoundKey(OF.digest(), 1, 1)
_CLOSED_S: Final = 2_000_000_001.0


def told_of(purpose: Purpose = Purpose.UPDATE, opens: Needs = Needs.NOTHING) -> Announcement:
    """An announcement of the first round over all sites."""
    return Announcement(
        study_digest=KEY.study,
        round=1,
        listed=SITES,
        least_contributors=3,
        opens=opens,
        purpose=purpose,
        model_version=0,
        model_digest="00" * 32,
        weight_list_digest="11" * 32,
        closes_at_s=2_000_000_000,
    )


def agreed_over(told: Announcement) -> AgreedSet:
    """Everybody, the requester too."""
    digest = told.digest()
    held = tuple(
        CollectedContribution(site=s, announcement_digest=digest, commitment_a="a" * 64, commitment_b="b" * 64)
        for s in (REQUESTER, *SITES)
    )
    return AgreedSet(study_digest=KEY.study, round=1, attempt=1, announcement_digest=digest, contributions=held)


def release_of(*sites: str, told: Announcement) -> Signed[ReleaseSet]:
    """The requester's release set over itself and these sites."""
    agreed = agreed_over(told).digest()
    message = ReleaseSet(
        study_digest=KEY.study, round=1, attempt=1, agreed_set_digest=agreed, sites=(REQUESTER, *sites)
    )
    return sign(message, REQUESTER, PARTIES.keys_of(REQUESTER).signing)


def by_operator(side: Side, state: RoundState, cause: OutcomeCause) -> Signed[RoundOutcome]:
    """One server's word for how the round ended."""
    name = OPERATORS[0] if side is Side.A else OPERATORS[1]
    return sign(outcome_of(KEY, state, cause), name, PARTIES.keys_of(name).signing)


@dataclass
class Peer:
    """The other server: it has this release set, if any, and answers a request for its signature by ``outcome``."""

    outcome: Exception
    release_set: Signed[ReleaseSet] | None = None
    signs: bool = False
    kept: list[Signed[RoundOutcome]] = field(default_factory=list)

    async def get(self, path: str, kind: str) -> bytes:
        if self.release_set is None:
            raise UnknownResource("none here")
        return self.release_set.canonical()

    async def post(self, path: str, body: bytes, kind: str) -> bytes:
        """Where it ``signs``, it keeps what it signed, refuses once, and answers with what it signed first."""
        if not self.signs:
            raise self.outcome
        of_a = Signed[RoundOutcome].parse(body)
        own = sign(of_a.message, OPERATORS[1], PARTIES.keys_of(OPERATORS[1]).signing).signatures
        self.kept.append(of_a.model_copy(update={"signatures": (*of_a.signatures, *own)}))
        if len(self.kept) == 1:
            raise self.outcome
        return self.kept[0].canonical()


@dataclass(frozen=True)
class OneServer:
    """A server in the middle of a round."""

    server: Any
    store: SqlStore
    record: RoundRecord

    @property
    def now(self) -> RoundRecord:
        return self.store.round(KEY) or self.record

    def changed(self, **changes: Any) -> RoundRecord:  # noqa: ANN401  # fields of a record
        return self.store.change_round(KEY, lambda r: replace(r, **changes))

    def endings(self, peer: Peer) -> Endings:
        return Endings(self.server, cast(Any, peer))


@contextmanager
def one_server(folder: Path, side: Side, state: RoundState, told: Announcement) -> Iterator[OneServer]:
    """That side, with the round in this state; its store is a file in ``folder``."""
    url = f"sqlite:///{folder / 'store.db'}"
    upgrade(url)
    store = SqlStore(url, lambda _: None)
    store.add_study(StudyRecord(KEY.study, Signed[Study](message=OF), StudyState.OPEN, "", 1))
    agreed = sign(agreed_over(told), OPERATORS[0], PARTIES.keys_of(OPERATORS[0]).signing)
    record = RoundRecord(KEY, state, Signed[Announcement](message=told), float(told.closes_at_s), agreed_set=agreed)
    store.add_round(record)
    yield OneServer(_server(side, store), store, record)


def _server(side: Side, store: SqlStore) -> Any:  # noqa: ANN401  # what a Server has of it
    operator = ROSTER.operator(side).name
    counter = SimpleNamespace(labels=lambda *_: SimpleNamespace(inc=lambda *_: None))
    signing = PARTIES.keys_of(operator).signing
    limits = SimpleNamespace(outputs_kept_rounds=5, pause_after_skips=3, attempts=3, grace_s=60, retry_window_s=60)
    return SimpleNamespace(
        side=side,
        name=operator,
        peer=ROSTER.operator(side.other),
        roster=ROSTER,
        chain=RosterChain(PARTIES.roster),
        store=store,
        clock=lambda: _CLOSED_S,
        failpoints=SimpleNamespace(reach=lambda _: None),
        files=SimpleNamespace(delete=lambda _: None),
        shards=None,
        metrics=SimpleNamespace(rounds=counter),
        note_round=lambda *_: None,
        randomness=SimpleNamespace(bytes=lambda n, _: bytes(n)),
        settings=SimpleNamespace(limits=limits),
        sign=lambda message: sign(message, operator, signing),
        countersign=lambda signed: signed.model_copy(
            update={"signatures": (*signed.signatures, *sign(signed.message, operator, signing).signatures)}
        ),
    )


def skip(record: RoundRecord, cause: OutcomeCause) -> End:
    return End(outcome_of(record.key, RoundState.SKIPPED, cause))
