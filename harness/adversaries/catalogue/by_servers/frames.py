"""What server A sends to server B that B refuses."""

from __future__ import annotations

from typing import Final

from harness.adversaries.catalogue.attack import Attack, Party, passes
from harness.adversaries.catalogue.refused import Refused, Row, Words
from harness.adversaries.hostile.between import BATCH, PRODUCTS, as_peer, other_set_to_lock
from harness.adversaries.scripted_rounds import Phase
from protocol.errors import ErrorCode as E
from protocol.rounds.states import RoundKey
from protocol.wire import paths
from servers.rounds.side_b import Answering
from servers.store.records import AnswerKind
from servers.store.study_records import StudyRecord

_PRODUCTS: Final = Answering.products


async def _whatever_came_first(answering: Answering, study: StudyRecord, key: RoundKey, frame: bytes) -> bytes:
    """Other masked vectors get the answer that the first ones got."""
    stored = answering.server.store.answer(key, AnswerKind.PRODUCTS)
    return await _PRODUCTS(answering, study, key, frame) if stored is None else stored.body


def hostile_frames() -> tuple[Attack, ...]:
    """Every attack of this family."""
    return (
        Refused(
            Words(
                "server-lies-about-who-contributed",
                Party.SERVER,
                "server A asks B to lock a round on a set that B does not hold, and on another one after the lock",
                "B compares the set with the commitments that it received itself, and signs one per attempt",
            ),
            {"protocol.rounds.side_b._check_held": passes},
            (
                Row("a set that B does not hold", other_set_to_lock, 409, E.PROTOCOL_VIOLATION),
                Row("another set after the lock", other_set_to_lock, 409, E.CONFLICTING_MESSAGE, Phase.LOCKED),
            ),
        ),
        Refused(
            Words(
                "server-sends-broken-frames",
                Party.SERVER,
                "server A sends B frames that are cut off, of another kind, of no session, or products a second time",
                "frames are parsed strictly, in an open session, and products are taken once per attempt",
            ),
            {"servers.rounds.side_b.Answering.products": _whatever_came_first},
            (
                Row("shorter than its length", as_peer(paths.PEER_EXTEND, b"\x00"), 400, E.MALFORMED_MESSAGE),
                Row("says too much", as_peer(paths.PEER_EXTEND, b"\xff\xff\xff\xff{}"), 400, E.MALFORMED_MESSAGE),
                Row("a broken message", as_peer(paths.PEER_EXTEND, b"\x00\x00\x00\x02{]"), 400, E.MALFORMED_MESSAGE),
                Row("of another kind", as_peer(paths.PEER_PRODUCTS, BATCH), 400, E.MALFORMED_MESSAGE, Phase.LOCKED),
                Row("for a session that is not open", as_peer(paths.PEER_EXTEND, BATCH), 404, E.UNKNOWN_RESOURCE),
                Row(
                    "other products for the same attempt",
                    as_peer(paths.PEER_PRODUCTS, PRODUCTS),
                    409,
                    E.CONFLICTING_MESSAGE,
                    Phase.MEASURED,
                ),
            ),
        ),
    )
