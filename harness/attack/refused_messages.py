"""Hostile messages to two real servers in the middle of a round: whatever is sent, it is refused and changes nothing.

Every message comes at the point of a round where it would count. It has reached something when a server takes it, when
anything durable is another than before at either server or in another site's view, when the refusal is not the one
that says what is wrong, or when the round does not go on to the exact sum of everybody.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import httpx

from harness.attack.attack import NO_SIGNATURE_COUNTS, Attempt, Found, found, passes
from harness.attack.hostile_messages import ROWS, Round, Row
from harness.attack.scripted_rounds import SITES, STRANGER, Pair, Phase, pair_in_memory, refusals
from harness.federation.server_apps import ServersInMemory
from protocol.channel.sealing import SealedReader
from protocol.errors import BrokenSeal, MoietyError
from protocol.errors import ErrorCode as E
from protocol.messages.control import ContributionHeader, Message, QueryHeader, Signed
from protocol.parameters import Needs
from protocol.rounds.side_b import Reply
from protocol.rounds.states import RoundKey
from servers.rounds.intake import _Opening
from servers.rounds.side_b import Answering
from servers.store.records import AnswerKind, StudyRecord

_PROBLEM = {"type", "title", "status", "detail", "code"}
_STATUS: Final = {
    **dict.fromkeys((E.MALFORMED_MESSAGE, E.BROKEN_SEAL, E.COMMITMENT_MISMATCH, E.OTHER_VERSION), 400),
    **{E.BAD_SIGNATURE: 401, E.NOT_LISTED: 403, E.UNKNOWN_STUDY: 404, E.UNKNOWN_RESOURCE: 404, E.TOO_LARGE: 413},
    **dict.fromkeys((E.WRONG_ROUND, E.ANNOUNCEMENT_MISMATCH, E.CONFLICTING_MESSAGE), 409),
    **dict.fromkeys((E.TRANSCRIPT_MISMATCH, E.PROTOCOL_VIOLATION), 409),
}
"""The status that goes with each refusal below, said once more than in the servers' own table."""


def _refused(rows: Sequence[Row], folder: Path) -> Found:
    with pair_in_memory(folder, [*SITES, STRANGER]) as pair:
        # Messages that the same round can refuse one after the other, since a refused one leaves it as it was.
        together: dict[tuple[Phase, int], list[Row]] = {}
        for row in rows:
            together.setdefault((row.phase, row.dimension), []).append(row)
        return found([reached for some in together.values() for reached in _reached(pair, some)])


def _reached(pair: Pair[ServersInMemory], rows: Sequence[Row]) -> Iterator[str]:
    """Yield what each message reached, if anything. After one that did, the next finds a new honest round."""
    opened = None
    for row in rows:
        opened = opened or _at(pair, row)
        before, kept = opened.everything_stored(), refusals(pair.federation)
        answer = row.act(opened)
        wrong = _wrong_answer(answer, row) or _changed(opened, before, kept, row)
        if wrong:
            yield f"{row.name}: {wrong}"
            pair.new_study(row.dimension)
            opened = None
    if opened is not None:
        opened.finish()
        if opened.agreed != SITES:
            yield f"the round went on with {', '.join(opened.agreed)} alone"


def _at(pair: Pair[ServersInMemory], row: Row) -> Round:
    queried = row.phase in (Phase.LOCKED, Phase.MEASURED)
    opened = pair.round(row.dimension, opens=Needs.DISTANCES if queried else Needs.NOTHING)
    opened.advance(row.phase)
    return opened


def _wrong_answer(answer: httpx.Response, row: Row) -> str:
    if answer.is_success:
        return "taken"
    if not answer.headers.get("content-type", "").endswith("json") and not answer.content.startswith(b"{"):
        return f"refused otherwise, by {answer.status_code} and no problem"
    body = answer.json()
    if row.code is None:
        return "" if answer.is_client_error else f"refused otherwise, by {answer.status_code}"
    status, told = _STATUS[row.code], (answer.status_code, body.get("status"), body.get("code"))
    if set(body) != _PROBLEM or told != (status, status, row.code):
        return f"refused otherwise, by {answer.status_code} {body.get('code')}"
    return "" if row.says in body["detail"] else f"refused without {row.says!r}"


def _changed(opened: Round, before: list[object], kept: list[tuple[str, str, str]], row: Row) -> str:
    if opened.everything_stored() != before:
        return "refused, and changed what is stored or seen"
    noted = [code for _, _, code in refusals(opened.federation)[len(kept) :]]
    return "" if noted == [row.code] * row.recorded else f"refused, and recorded as {noted}"


# --- with the defence taken out ---------------------------------------------------------------------------------------

_COLLECT: Final = "servers.rounds.contributions."
_FINISH: Final = SealedReader.finish
_PRODUCTS: Final = Answering.products


def any_header(part: object, raw: bytes) -> ContributionHeader:
    return ContributionHeader.parse(raw)


def _any_length(opening: _Opening[ContributionHeader]) -> ContributionHeader:
    opening._take(opening.reader.finish())
    header = opening._header
    assert isinstance(header, ContributionHeader)
    return header


def _without_its_end(reader: SealedReader) -> bytes:
    """Take what came as all: the last chunk need not say that it is the last."""
    try:
        return _FINISH(reader)
    except BrokenSeal:
        return b""


def unsigned(signed: Signed[Message], *_: object) -> Message:
    """Takes the place of ``require_signatures``."""
    return signed.message


async def _whatever_came_first(answering: Answering, study: StudyRecord, key: RoundKey, frame: bytes) -> bytes:
    """Other masked vectors get the answer that the first ones got."""
    stored = answering.server.store.answer(key, AnswerKind.PRODUCTS)
    return await _PRODUCTS(answering, study, key, frame) if stored is None else stored.body


class _Anything:
    """Hands on what does not parse as it came: its first use fails, by an error of the server's own."""

    def __init__(self, kind: type[Message]) -> None:
        self._kind = kind

    def __class_getitem__(cls, kind: type[Message]) -> _Anything:
        return cls(kind)

    def parse(self, data: bytes) -> object:
        try:
            return Signed[self._kind].parse(data)  # type: ignore[name-defined]  # which message is said at run time
        except MoietyError:
            return data


ANY_HEADER: Final[Mapping[str, object]] = {"protocol.messages.bodies.Part.require": any_header}
ANY_LETTER: Final[Mapping[str, object]] = {
    "servers.api.mail.most_bytes": lambda *_: 2**22,
    "servers.api.mail.require_length": passes,
}
ANY_RELEASE: Final[Mapping[str, object]] = {"servers.rounds.release.answer": lambda *_: Reply.KEEP}
_UNCOMMITTED: Final[Mapping[str, object]] = {"servers.rounds.intake.ContributionIntake.check_commitment": passes}
_LENGTHS: Final[Mapping[str, object]] = {
    "servers.rounds.intake._Opening.finish": _any_length,
    f"{_COLLECT}most_bytes": lambda *_: 2**24,
}
_WITHOUT: Final[Mapping[str, Mapping[str, object]]] = {
    "share-of-something-else": ANY_HEADER,
    "share-sealed-wrongly": {
        "protocol.channel.sealing.SealedReader.finish": _without_its_end,
        **_LENGTHS,
        **_UNCOMMITTED,
    },
    "share-not-as-committed": _UNCOMMITTED,
    "share-of-another-length": _LENGTHS,
    "share-out-of-turn": {
        f"{_COLLECT}_require_open": passes,
        f"{_COLLECT}expected_sites": lambda *_: frozenset((*SITES, STRANGER)),
    },
    "share-sent-twice": {f"{_COLLECT}same_receipt": lambda server, study, known, digest: known.receipt},
    "letters-of-every-size": ANY_LETTER,
    "letters-of-made-up-topics": {"servers.api.mail.require_announced": passes},
    "studies-with-a-dealer": {"servers.studies._require_own_correlations": passes},
    "announcements-out-of-turn": {f"{_COLLECT}opens_round": lambda told, last, *_: last is None or last.final},
    "announcements-that-open-more": {f"{_COLLECT}check_said": passes},
    "messages-in-the-requesters-place": {
        f"{_COLLECT}require_signatures": unsigned,
        "servers.rounds.release.require_signatures": unsigned,
    },
    "messages-that-do-not-parse": {"servers.api.rounds.Signed": _Anything},
    "queries-of-its-own-choice": {"protocol.messages.bodies.Queries.require": lambda _, raw: QueryHeader.parse(raw)},
    "release-of-two": ANY_RELEASE,
    "release-twice": ANY_RELEASE,
    "output-for-an-outsider": {"servers.rounds.release._listed_now": lambda *_: True},
    "server-lies-about-who-contributed": {"protocol.rounds.side_b._check_held": passes},
    "server-sends-broken-frames": {"servers.rounds.side_b.Answering.products": _whatever_came_first},
    "requests-badly-signed": NO_SIGNATURE_COUNTS,
    "requests-out-of-their-minute": {
        "protocol.channel.signing.require_time": passes,
        "servers.store.sql.SqlStore.remember_nonce": passes,
    },
    "requests-with-another-body": {"servers.api.authentication.Caller.require_digest": passes},
}
ATTEMPTS: Final = {name: Attempt(partial(_refused, rows), _WITHOUT[name]) for name, rows in ROWS.items()}
