"""Hostile messages to two real servers in the middle of a round: whatever is sent, it is refused and changes nothing.

Every message comes at the point of a round where it would count. It has reached something when a server takes it, when
anything durable is another than before at either server or in another site's view, when the refusal is not the one
that says what is wrong, or when the round does not go on to the exact sum of everybody.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import httpx

from harness.adversaries import forgeries as forged
from harness.adversaries import hostile_messages as sent
from harness.adversaries.attack import NO_SIGNATURE_COUNTS, Attempt, Found, found, passes
from harness.adversaries.hostile_messages import BATCH, PRODUCTS, Act, Round, announced, as_peer, letter, queries
from harness.adversaries.hostile_messages import released as release
from harness.adversaries.scripted_rounds import (
    EARLY,
    LARGE,
    LAST,
    REQUESTER,
    SITES,
    SMALL,
    STRANGER,
    VICTIM,
    Pair,
    Phase,
    pair_in_memory,
    refusals,
)
from harness.federation.memory.servers import ServersInMemory
from protocol.channel.sealing import SealedReader, sealed_length, sealed_small_length
from protocol.errors import BrokenSeal, MoietyError
from protocol.errors import ErrorCode as E
from protocol.messages import paths
from protocol.messages.control import ContributionHeader, Message, QueryHeader, Receipt, Signed
from protocol.messages.letter import NOTICE_BYTES
from protocol.parameters import Needs
from protocol.rounds.side_b import Reply
from protocol.rounds.states import RoundKey
from protocol.sharing import Side
from servers.http.bodies import _Opening
from servers.rounds.side_b import Answering
from servers.store.records import AnswerKind, ContributionRecord
from servers.store.study_records import StudyRecord

_PROBLEM = {"type", "title", "status", "detail", "code"}
_STATUS: Final = {
    **dict.fromkeys((E.MALFORMED_MESSAGE, E.BROKEN_SEAL, E.COMMITMENT_MISMATCH, E.OTHER_VERSION), 400),
    **{E.BAD_SIGNATURE: 401, E.NOT_LISTED: 403, E.UNKNOWN_STUDY: 404, E.UNKNOWN_RESOURCE: 404, E.TOO_LARGE: 413},
    **dict.fromkeys((E.WRONG_ROUND, E.ANNOUNCEMENT_MISMATCH, E.CONFLICTING_MESSAGE), 409),
    **dict.fromkeys((E.TRANSCRIPT_MISMATCH, E.PROTOCOL_VIOLATION), 409),
}
"""The status that goes with each refusal below, said once more than in the servers' own table."""


@dataclass(frozen=True)
class Row:
    """One hostile message and the refusal that it gets; without a code, any refusal that is the sender's fault.

    ``says`` stands in the refusal's text. ``recorded``: the server keeps a note of who sent it.
    """

    name: str
    act: Act
    code: E | None
    phase: Phase = Phase.COLLECTING
    says: str = ""
    recorded: bool = False
    dimension: int = SMALL


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
    """A new round, up to the point at which a message is sent."""
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


# --- what is refused --------------------------------------------------------------------------------------------------

_SETTLED, _LOCKED, _MEASURED, _RELEASED = Phase.SETTLED, Phase.LOCKED, Phase.MEASURED, Phase.RELEASED
_MEGABYTE: Final = 2**20
_NOTICE: Final = sealed_small_length(NOTICE_BYTES)
_MODEL: Final = sealed_length(4 * SMALL)
_EVERYBODY: Final = paths.EVERY_SITE
_COMPONENTS: Final = ("@method", "@target-uri", "sealed-head-digest", "created", "keyid", "alg", "nonce", "tag")
_WORDS: Final = ("decline", "x", "refusal", "weights", "welcome")
_TOPICS: Final = (
    *(f"{word}-{number}" for number in range(2, 5) for word in _WORDS),
    *("decline", "decline-01", "decline-1-1", "decline--1", "refusal-0", "checkpoint", "every-site"),
)
_ROWS: Final[Mapping[str, tuple[Row, ...]]] = {
    "share-of-something-else": (
        Row("in another site's name", sent.in_another_name, E.NOT_LISTED),
        Row("bound to another announcement", sent.for_another_announcement, E.ANNOUNCEMENT_MISMATCH),
        Row("another study's digest", sent.header(study_digest="00" * 32), E.ANNOUNCEMENT_MISMATCH),
        Row("wrong round in the header", sent.header(round=999), E.WRONG_ROUND),
        Row("wrong attempt in the header", sent.header(attempt=2), E.WRONG_ROUND),
        Row("wrong length in the header", sent.header(length=SMALL + 1), E.MALFORMED_MESSAGE),
        Row("wrong protocol version", sent.header(version=sent.NO_VERSION), E.OTHER_VERSION, says="moiety/9"),
        Row("unknown field in the header", sent.header(note="x"), E.MALFORMED_MESSAGE, says="note"),
        Row(
            "share for the other side",
            sent.share(lambda r: r.honest[VICTIM][Side.A].sealed()),
            E.MALFORMED_MESSAGE,
            says="side 'a'",
        ),
        Row("the other side's share first", sent.the_others_share(VICTIM), E.MALFORMED_MESSAGE, says="vector"),
    ),
    "share-sealed-wrongly": (
        Row(
            "sealed to the wrong key",
            sent.share(lambda r: forged.sealed_to_the_wrong_key(r.honest[VICTIM], Side.B)),
            E.BROKEN_SEAL,
        ),
        Row("truncated", sent.sealed_then(forged.truncated), E.BROKEN_SEAL),
        Row("over-long", sent.sealed_then(forged.over_long), E.BROKEN_SEAL),
        Row("a megabyte over-long", sent.sealed_then(partial(forged.over_long, by=_MEGABYTE)), E.TOO_LARGE),
        Row("bit flipped", sent.sealed_then(forged.bit_flipped), E.BROKEN_SEAL),
        Row("header changed after sealing", sent.parts_then(sent.altered_header), E.BROKEN_SEAL),
        Row("not sealed at all", sent.share(lambda r: b"\x00" * 3000), E.MALFORMED_MESSAGE),
        Row("empty body", sent.share(lambda r: b""), E.BROKEN_SEAL),
        Row("chunks swapped", sent.parts_then(forged.chunks_swapped), E.BROKEN_SEAL, dimension=LARGE),
        Row(
            "last chunk missing",
            sent.parts_then(forged.last_chunk_missing),
            E.BROKEN_SEAL,
            says="last chunk",
            dimension=LARGE,
        ),
    ),
    "share-not-as-committed": (
        Row(
            "wrong commitment",
            sent.share(lambda r: forged.another_share_than_committed(r.honest[VICTIM], Side.B)),
            E.COMMITMENT_MISMATCH,
        ),
    ),
    "share-of-another-length": (
        Row("vector too short", sent.vector_of(by=-1), E.MALFORMED_MESSAGE, says="152"),
        Row("vector too long", sent.vector_of(by=1), E.MALFORMED_MESSAGE, says="168"),
        Row("fifty times as long", sent.vector_of(times=50), E.MALFORMED_MESSAGE, says="8000"),
    ),
    "share-out-of-turn": (
        Row("a site that is not listed", sent.of_a_stranger, E.NOT_LISTED, says="is not listed"),
        Row("wrong round in the address", lambda r: r.put(VICTIM, Side.A, b"x", round=999), E.WRONG_ROUND),
        Row("after the lock, a late site", sent.of_a_stranger, E.WRONG_ROUND, _LOCKED),
        Row("before the announcement", sent.share(lambda r: b"x"), E.WRONG_ROUND, _SETTLED),
    ),
    "share-sent-twice": (
        Row("same place, other bytes", sent.same_id_other_bytes, E.CONFLICTING_MESSAGE, recorded=True),
        Row("both shares to one server", sent.the_others_share(EARLY), E.CONFLICTING_MESSAGE, recorded=True),
        Row("after the lock", sent.same_id_other_bytes, E.CONFLICTING_MESSAGE, _LOCKED, recorded=True),
        Row("after the release", sent.same_id_other_bytes, E.CONFLICTING_MESSAGE, _RELEASED, recorded=True),
    ),
    "letters-of-every-size": (
        *(
            Row(f"a notice of {size} bytes", letter("refusal", size), E.MALFORMED_MESSAGE, _SETTLED)
            for size in (0, 1, 74, _NOTICE - 1)
        ),
        *(
            Row(f"a notice of {size} bytes", letter("refusal", size), E.TOO_LARGE, _SETTLED)
            for size in (_NOTICE + 1, 2 * _NOTICE, _MEGABYTE)
        ),
        Row("a megabyte without a stated length", sent.letter_without_a_length(_MEGABYTE), E.TOO_LARGE, _SETTLED),
        Row("a model a byte too long", letter("checkpoint-0", _MODEL + 1, REQUESTER, _EVERYBODY), E.TOO_LARGE),
        Row("fifty models in one", letter("checkpoint-0", 50 * _MODEL, REQUESTER, _EVERYBODY), E.TOO_LARGE),
    ),
    "letters-of-made-up-topics": (
        *(Row(f"topic {topic}", letter(topic, _NOTICE), None) for topic in _TOPICS),
        Row("a model that no round made", letter("checkpoint-1", _MODEL, REQUESTER, _EVERYBODY), E.WRONG_ROUND),
        Row("a welcome to it", letter("welcome-1", 1000, REQUESTER, VICTIM), E.WRONG_ROUND),
        Row("a model for one site", letter("checkpoint-0", _MODEL, REQUESTER, VICTIM), E.NOT_LISTED),
        Row("a decline of who is not listed", letter("decline-1", _NOTICE, STRANGER), E.NOT_LISTED),
    ),
    "studies-with-a-dealer": (
        Row("a dealer's correlations", sent.study_with(correlation_source="dealer"), E.MALFORMED_MESSAGE),
        Row("another roster", sent.study_with(roster_digest="00" * 32), E.ANNOUNCEMENT_MISMATCH),
        Row("created by a site", sent.study_with(signer=VICTIM), E.NOT_LISTED),
    ),
    "announcements-out-of-turn": (
        Row(
            "another announcement of this round",
            announced(model_digest="22" * 32),
            E.CONFLICTING_MESSAGE,
            recorded=True,
        ),
        Row("of a later round", announced(round=10**5), E.WRONG_ROUND, _SETTLED),
        Row(
            "names unknown sites",
            announced(listed=(*SITES[1:], "nobody")),
            E.MALFORMED_MESSAGE,
            _SETTLED,
            says="nobody",
        ),
        Row(
            "below the study's least number",
            announced(least_contributors=2),
            E.MALFORMED_MESSAGE,
            _SETTLED,
            says="below the study's 3",
        ),
        Row("fewer sites than it promises", sent.too_few_listed, E.MALFORMED_MESSAGE, _SETTLED),
    ),
    "announcements-that-open-more": (
        Row("of another study", announced(study_digest="00" * 32), E.ANNOUNCEMENT_MISMATCH, _SETTLED),
        Row(
            "closes in centuries",
            announced(closes_at_s=10**10),
            E.MALFORMED_MESSAGE,
            _SETTLED,
            says="round_deadline_s",
        ),
        *(
            Row(f"opens {opens.value}", announced(opens=opens), E.MALFORMED_MESSAGE, _SETTLED)
            for opens in (Needs.PAIRS, Needs.NORMS, Needs.INNER_PRODUCTS)
        ),
    ),
    "messages-in-the-requesters-place": (
        Row("announcement by a site", announced(signer=VICTIM), E.BAD_SIGNATURE, _SETTLED),
        Row("ready for somebody else", sent.ready_for_somebody_else, E.NOT_LISTED),
        Row("queries of a site", queries(sender=VICTIM), E.NOT_LISTED, _LOCKED),
        Row("a site as the other server", sent.site_as_peer, E.NOT_LISTED),
        Row("release by a site", release(signer=VICTIM), E.BAD_SIGNATURE, _MEASURED),
    ),
    "messages-that-do-not-parse": (
        Row("malformed JSON", sent.post(paths.ANNOUNCEMENT, b'{"message":'), E.MALFORMED_MESSAGE, says="JSON"),
        Row("JSON of another kind", sent.post(paths.ANNOUNCEMENT, b"[1, 2]"), E.MALFORMED_MESSAGE),
        Row("five megabytes", sent.post(paths.ANNOUNCEMENT, b" " * 5 * _MEGABYTE), E.TOO_LARGE),
        Row("another version", sent.wrong_version_of_a_study, E.OTHER_VERSION, says=sent.NO_VERSION),
        Row("unknown study", sent.unknown_study, E.UNKNOWN_STUDY, says="elsewhere"),
    ),
    "queries-of-its-own-choice": (
        Row("wrong length", queries(length=SMALL + 1), E.MALFORMED_MESSAGE, _LOCKED, says="length"),
        Row("cut short", queries(short_by=8), E.MALFORMED_MESSAGE, _LOCKED, says="bytes"),
        Row("sites not in the set", queries(targets=(STRANGER, *SITES[2:])), E.MALFORMED_MESSAGE, _LOCKED),
        Row("one site only", queries(targets=(VICTIM,)), E.MALFORMED_MESSAGE, _LOCKED),
        Row("another challenge", queries(transcript_digest="00" * 32), E.TRANSCRIPT_MISMATCH, _LOCKED),
        Row("for the other side", queries(side=Side.A), E.MALFORMED_MESSAGE, _LOCKED),
        Row("before the lock", sent.post(paths.QUERIES, b"x"), E.WRONG_ROUND),
        Row("other ones, later", queries(), E.CONFLICTING_MESSAGE, _MEASURED, recorded=True),
    ),
    "release-of-two": (
        Row("below the announced number", release(*SITES[:3]), E.MALFORMED_MESSAGE, _MEASURED, says="at least 3"),
        Row("beyond the agreed set", release(*SITES, STRANGER), E.MALFORMED_MESSAGE, _MEASURED),
        Row("a site twice", release(*SITES, LAST), E.MALFORMED_MESSAGE, _MEASURED),
        Row("without the requester", release(*SITES[1:]), E.MALFORMED_MESSAGE, _MEASURED),
        Row("for another agreed set", release(agreed_set_digest="00" * 32), E.ANNOUNCEMENT_MISMATCH, _MEASURED),
        Row("before the opening", release(), E.WRONG_ROUND, _LOCKED),
    ),
    "release-twice": (
        Row("at server A", release(*SITES[:4]), E.CONFLICTING_MESSAGE, _RELEASED, recorded=True),
        Row("at server B", release(*SITES[:4], side=Side.B), E.CONFLICTING_MESSAGE, _RELEASED, recorded=True),
        Row("of an older round", sent.release_of_an_older_round, E.WRONG_ROUND),
    ),
    "output-for-an-outsider": (Row("not listed", sent.output_for_an_outsider, E.NOT_LISTED, _RELEASED),),
    "server-lies-about-who-contributed": (
        Row("a set that B does not hold", sent.other_set_to_lock, E.PROTOCOL_VIOLATION),
        Row("another set after the lock", sent.other_set_to_lock, E.CONFLICTING_MESSAGE, _LOCKED),
    ),
    "server-sends-broken-frames": (
        Row("shorter than its length", as_peer(paths.PEER_EXTEND, b"\x00"), E.MALFORMED_MESSAGE),
        Row("says too much", as_peer(paths.PEER_EXTEND, b"\xff\xff\xff\xff{}"), E.MALFORMED_MESSAGE),
        Row("a broken message", as_peer(paths.PEER_EXTEND, b"\x00\x00\x00\x02{]"), E.MALFORMED_MESSAGE),
        Row("of another kind", as_peer(paths.PEER_PRODUCTS, BATCH), E.MALFORMED_MESSAGE, _LOCKED),
        Row("for a session that is not open", as_peer(paths.PEER_EXTEND, BATCH), E.UNKNOWN_RESOURCE),
        Row(
            "other products for the same attempt",
            as_peer(paths.PEER_PRODUCTS, PRODUCTS),
            E.CONFLICTING_MESSAGE,
            _MEASURED,
        ),
    ),
    "requests-badly-signed": (
        Row("site not in the roster", sent.site_not_in_the_roster, E.BAD_SIGNATURE, says="does not match"),
        Row("signature of another key", sent.signature_of_another_key, E.BAD_SIGNATURE),
        Row("bad signature", sent.bad_signature, E.BAD_SIGNATURE),
        Row("missing signature", sent.missing_signature, E.BAD_SIGNATURE),
        *(
            Row(f"{name} left out of the signature", sent.component_left_out(name), E.BAD_SIGNATURE)
            for name in _COMPONENTS
        ),
        Row("a peer with another key", sent.peer_with_another_key, E.BAD_SIGNATURE),
    ),
    "requests-out-of-their-minute": (
        Row("expired signature", sent.signed_at(-3600), E.BAD_SIGNATURE, says="s ago"),
        Row("future-dated signature", sent.signed_at(3600), E.BAD_SIGNATURE, says="future"),
        Row("replayed signature", sent.replayed, E.BAD_SIGNATURE, says="nonce"),
        Row("replayed at the other server", sent.replayed_at_the_other_server, E.BAD_SIGNATURE),
    ),
    "requests-with-another-body": (
        Row("wrong content digest", sent.wrong_content_digest, E.BAD_SIGNATURE, says="digest"),
        Row("flat digest of a contribution", sent.flat_digest_of_a_contribution, E.BAD_SIGNATURE, says="sealed-digest"),
    ),
}


# --- with the defence taken out ---------------------------------------------------------------------------------------

_COLLECT: Final = "servers.rounds.collect."
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


def _first_receipt(server: object, study: object, known: ContributionRecord, digest: str) -> Signed[Receipt]:
    return known.receipt


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


ANY_HEADER: Final[Mapping[str, object]] = {"protocol.messages.contribution.Part.require": any_header}
ANY_LETTER: Final[Mapping[str, object]] = {
    "servers.routes.mail.most_bytes": lambda *_: 2**22,
    "servers.routes.mail.require_length": passes,
}
ANY_RELEASE: Final[Mapping[str, object]] = {"servers.rounds.release.answer": lambda *_: Reply.KEEP}
_UNCOMMITTED: Final[Mapping[str, object]] = {"servers.http.bodies.ContributionIntake.check_commitment": passes}
_LENGTHS: Final[Mapping[str, object]] = {
    "servers.http.bodies._Opening.finish": _any_length,
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
    "share-sent-twice": {f"{_COLLECT}same_receipt": _first_receipt},
    "letters-of-every-size": ANY_LETTER,
    "letters-of-made-up-topics": {"servers.routes.mail.require_announced": passes},
    "studies-with-a-dealer": {"servers.studies._require_own_correlations": passes},
    "announcements-out-of-turn": {f"{_COLLECT}opens_round": lambda told, last, *_: last is None or last.progress.final},
    "announcements-that-open-more": {f"{_COLLECT}check_said": passes},
    "messages-in-the-requesters-place": {
        f"{_COLLECT}require_signatures": unsigned,
        "servers.rounds.release.require_signatures": unsigned,
    },
    "messages-that-do-not-parse": {"servers.routes.rounds.Signed": _Anything},
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
    "requests-with-another-body": {"servers.http.authentication.Caller.require_digest": passes},
}
ATTEMPTS: Final = {name: Attempt(partial(_refused, rows), _WITHOUT[name]) for name, rows in _ROWS.items()}
