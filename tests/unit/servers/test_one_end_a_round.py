"""A deviating server and the requester try to end one round twice: two sums under one mask, or a sum and a skip.

Either would give them the difference of two sums over almost the same sites, which is one site's update.

The attacks that this bars are ``ends-...``; here is every state of the machine behind them.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from protocol.errors import (
    ConflictingMessage,
    MoietyError,
    ProtocolViolation,
    RolledBack,
    UnknownResource,
    WrongRound,
)
from protocol.messages.control import (
    Announcement,
    OutcomeCause,
    Purpose,
    RankingSpec,
    ReleaseSet,
    RoundState,
    Signed,
    sign,
)
from protocol.parameters import Needs
from protocol.rounds.side_a import Act, End, Step, outcome_of
from protocol.rounds.states import RoundKey
from protocol.sharing import Side
from servers.api import peer as peer_routes
from servers.api import rounds as round_routes
from servers.api.authentication import Addressed
from servers.store.files import Draft, ShareFiles
from servers.store.records import RoundRecord
from servers.store.sql import SqlStore
from tests.kit.present import present
from tests.unit.parties import announcement
from tests.unit.servers.ending_rounds import (
    AGREED,
    ALL,
    ANNOUNCED,
    FIVE,
    KEY,
    OPERATORS,
    PARTIES,
    STUDY,
    WITHOUT_LAST,
    Asked,
    endings,
    server_on,
    skipped,
    store_with,
)


@pytest.fixture
def record() -> RoundRecord:
    """A measured round, of which nobody has a release set yet."""
    agreed = sign(AGREED, OPERATORS[0], PARTIES.keys[OPERATORS[0]].signing)
    signed = Signed[Announcement](message=ANNOUNCED)
    return RoundRecord(KEY, RoundState.MEASURED, signed, float(ANNOUNCED.closes_at_s), agreed_set=agreed)


@pytest.fixture
def store(tmp_path: Path, record: RoundRecord) -> SqlStore:
    return store_with(tmp_path, record)


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
    kept = present(store.round(KEY))
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
    kept = present(store.round(KEY))
    assert (kept.state, kept.release_set, kept.outcome is not None) == (RoundState.MEASURED, None, True)


# --- a burn and a skip of one attempt: attack ``ends-burn-in-private`` ------------------------------------------------

RANKED = STUDY.model_copy(update={"ranking": RankingSpec()})
_COUNTED: dict[str, Any] = {"purpose": Purpose.COUNTS, "opens": Needs.NOTHING, "model_version": 0}
_RANKS: dict[str, Any] = {"purpose": Purpose.RANKING, "opens": Needs.INNER_PRODUCTS, "model_version": 0}
UPDATES, COUNTS, RANKS = (
    announcement(RANKED.digest(), listed=FIVE[1:], **changes) for changes in ({}, _COUNTED, _RANKS)
)


@pytest.mark.parametrize("message", [UPDATES, COUNTS, RANKS], ids=lambda message: message.purpose.value)
@pytest.mark.parametrize("refusal", [UnknownResource("no such round"), WrongRound("round 1 is over here")], ids=repr)
def test_a_burn_that_side_a_gave_up_is_not_taken_after_all(
    tmp_path: Path, message: Announcement, refusal: MoietyError
) -> None:
    signed = Signed[Announcement](message=message)
    record = RoundRecord(RoundKey(RANKED.digest(), 1, 1), RoundState.LOCKED, signed, float(message.closes_at_s))
    store = store_with(tmp_path, record, RANKED)
    server, peer = server_on(Side.A, store), Asked(refusal, signs=PARTIES.keys[OPERATORS[1]])
    burnt = End(outcome_of(record.key, RoundState.BURNT, OutcomeCause.PRODUCTS_REFUSED))
    with pytest.raises(ProtocolViolation, match="another outcome than the one that this side asked it to sign"):
        asyncio.run(endings(server, peer).end(record, burnt))
    assert peer.kept[0].message.outcome is RoundState.BURNT
    assert peer.kept[1].message.outcome in (RoundState.SKIPPED, RoundState.RANKED)
    now = present(store.current_round(RANKED.digest()))
    assert now.key.attempt == 1
    assert now.state is RoundState.LOCKED
    assert present(now.outcome).message == peer.kept[1].message


# --- two masked sums at once ------------------------------------------------------------------------------------------


class Upload:
    """A request whose body arrives when the test says so."""

    def __init__(self, body: bytes) -> None:
        self.started, self.go_on = asyncio.Event(), asyncio.Event()
        self._body = body

    async def stream(self) -> AsyncIterator[bytes]:
        self.started.set()
        await self.go_on.wait()
        yield self._body


class Taken:
    """A masked sum that is the output, as it is."""

    def __init__(self, server: Any, record: RoundRecord, parameters: Any, draft: Draft) -> None:
        self._draft = draft

    def feed(self, data: bytes | bytearray) -> None:
        self._draft.write(bytes(data))

    def finish(self, caller: Any) -> None:
        assert caller is not None

    def half_digest(self) -> None:
        """The round has no tags."""


def output(server: Any, kept: RoundRecord | None) -> bytes:
    assert kept is not None
    return b"".join(server.files.read(present(kept.output_file)))


@pytest.fixture
def summing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: SqlStore) -> Any:
    """Side B of a measured round with the requester's release set, which waits for A's masked sum."""
    monkeypatch.setattr(peer_routes, "SealedMaskedSum", Taken)
    monkeypatch.setattr(peer_routes, "_with_release_set", lambda record, masks: record)
    store.change_round(KEY, lambda r: replace(r, release_set=ALL))
    server = server_on(Side.B, store)
    server.files = ShareFiles(tmp_path / "shares", 0)
    server.boot, server.outputs = 1, itertools.count()
    return server


def put(server: Any, upload: Any) -> asyncio.Task[Any]:
    held: Any = SimpleNamespace(round=server.store.round)
    at = Addressed(server, server.store.study(KEY.study).name, KEY.round, KEY.attempt)
    caller = cast(Any, object())
    return asyncio.create_task(peer_routes.put_masked_sum(upload, server, held, caller, at))


@pytest.mark.parametrize("first", [0, 1])
def test_of_two_sums_at_once_the_first_stands(tmp_path: Path, store: SqlStore, summing: Any, first: int) -> None:
    """Both requests have passed every look at the round before either ends: no attack from outside can time it."""
    seen: list[bytes] = []

    async def both() -> None:
        uploads = [Upload(b"one output"), Upload(b"another one")]
        tasks = [put(summing, upload) for upload in uploads]
        for upload in uploads:
            await upload.started.wait()
        for place in (first, 1 - first):
            uploads[place].go_on.set()
            await tasks[place]
            seen.append(output(summing, store.round(KEY)))

    asyncio.run(both())
    assert seen == [[b"one output", b"another one"][first]] * 2
    kept = present(store.round(KEY))
    assert kept.state is RoundState.RELEASED
    assert [path.name for path in (tmp_path / "shares").iterdir()] == [kept.output_file]


def test_a_sum_that_comes_after_a_skip_leaves_nothing_behind(tmp_path: Path, store: SqlStore, summing: Any) -> None:
    """The skip is signed while the sum is on its way."""

    async def late() -> None:
        upload = Upload(b"an output")
        task = put(summing, upload)
        await upload.started.wait()
        store.change_round(KEY, lambda r: replace(r, state=RoundState.SKIPPED))
        upload.go_on.set()
        await task

    with pytest.raises(Exception, match="released"):
        asyncio.run(late())
    assert list((tmp_path / "shares").iterdir()) == []


@pytest.mark.parametrize("by", ["requester", "peer"])
def test_what_arrives_while_an_older_database_is_put_back_is_not_taken(
    store: SqlStore, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The study goes on when the request begins, and no longer when its body is there."""
    server, caller = server_on(Side.B, store), cast(Any, object())
    server.altered = {}
    at = Addressed(server, store.study(KEY.study).name, KEY.round, KEY.attempt)
    assert at.key == KEY

    async def arrives(*_: object) -> bytes:
        store.strand(OPERATORS[0])
        return ALL.canonical()

    for routes in (round_routes, peer_routes):
        monkeypatch.setattr(routes, "read_small", arrives)
    held: Any = SimpleNamespace(round=store.round)
    taking = {
        "requester": lambda: round_routes.release_set(caller, server, caller, at),
        "peer": lambda: peer_routes.put_release_set(caller, server, held, caller, at),
    }
    with pytest.raises(RolledBack):
        asyncio.run(taking[by]())
    assert present(store.round(KEY)).release_set is None
