"""Hostile messages to two real servers in the middle of a round: whatever is sent, it is refused and changes nothing.

Every message comes at the point of a round where it would count. It has reached something when a server takes it, when
anything durable is another than before at either server or in another site's view, when the refusal is not the one
that says what is wrong, or when the round does not go on to the exact sum of everybody.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, TypeAlias

import httpx
import numpy as np

from harness.attack import forgeries as forged
from harness.attack.attack import NO_SIGNATURE_COUNTS, Attempt, Found, found, passes
from harness.attack.scripted_rounds import (
    EARLY,
    LARGE,
    LAST,
    OTHER,
    REQUESTER,
    SITES,
    SMALL,
    STRANGER,
    VICTIM,
    AttackedPair,
    Phase,
    RoundInMemory,
    pair_in_memory,
    refusals,
)
from harness.attack.signed_client import Outgoing, SignedClient, there
from harness.federation.server_apps import ServersInMemory
from protocol.arithmetic.ring import to_bytes
from protocol.channel.commitment import head_digest
from protocol.channel.message import pack_frame
from protocol.channel.sealing import CHUNK_BYTES, TAG_BYTES, SealedReader, sealed_length, sealed_small_length
from protocol.channel.signing import TAG, DigestField, digest_value
from protocol.errors import BrokenSeal, MoietyError
from protocol.errors import ErrorCode as E
from protocol.messages import paths
from protocol.messages.bodies import Queries
from protocol.messages.control import (
    AgreedSet,
    ContributionHeader,
    Message,
    QueryHeader,
    ReadyNotice,
    Signed,
    sign,
)
from protocol.messages.letter import NOTICE_BYTES
from protocol.messages.peer import BatchHeader, ProductsHeader
from protocol.parameters import PROTOCOL_VERSION, Needs
from protocol.roster.keyfile import PartyKeys
from protocol.rounds.side_b import Reply
from protocol.rounds.states import RoundKey
from protocol.sharing import Side
from servers.rounds.intake import Opening
from servers.rounds.side_b import Answering
from servers.store.records import AnswerKind, StudyRecord

Round: TypeAlias = RoundInMemory
Act: TypeAlias = Callable[[Round], httpx.Response]
P = ParamSpec("P")
_NO_VERSION = "moiety/999"
_SESSION = "00" * 32
_BATCH = pack_frame(BatchHeader(session=_SESSION, batch=0, lengths=((1,),)))
_OTHER_PRODUCTS = pack_frame(ProductsHeader(transcript_digest=_SESSION, correlations=()))


def _act(send: Callable[Concatenate[Round, P], httpx.Response]) -> Callable[P, Act]:
    """Say now what is sent, and later in which round."""
    return lambda *how, **more: lambda r: send(r, *how, **more)


def _signed(r: Round, message: Message, signer: str = REQUESTER) -> bytes:
    return sign(message, signer, r.client(signer).keys.signing).canonical()


# --- requests whose signature, time or body is wrong ------------------------------------------------------------------


def _asked_view(r: Round, created: int | None = None) -> Outgoing:
    return r.sites.me.enclose(Side.A, "GET", r.path(paths.VIEW), created=created)


@_act
def _by(
    r: Round,
    keys: Callable[[Round], PartyKeys],
    template: str = paths.VIEW,
    side: Side = Side.A,
    body: bytes | None = None,
) -> httpx.Response:
    with closing(SignedClient(r.federation, keys(r))) as client:
        path = r.path(template, session=_SESSION, batch=0)
        return client.send(side, "GET", path) if body is None else client.send(side, "POST", path, body)


def _server_a(r: Round) -> PartyKeys:
    return r.federation.keys("operator-a")


def _victim(r: Round) -> PartyKeys:
    return r.client(VICTIM).keys


def _nobody(r: Round) -> PartyKeys:
    return forged.nobody(r.sites.me.keys, bytes(32))


def _by_impostor(of: Callable[[Round], PartyKeys], template: str = paths.VIEW, side: Side = Side.A) -> Act:
    return _by(lambda r: forged.impostor(of(r), secrets.token_bytes(32)), template, side)


def _unknown_study(r: Round) -> httpx.Response:
    return r.sites.me.send(Side.A, "GET", paths.fill(paths.VIEW, study="elsewhere"))


def _bad_signature(r: Round) -> httpx.Response:
    asked = _asked_view(r)
    headers = dict(asked.headers)
    label, _, encoded = headers["Signature"].partition("=:")
    raw = bytearray(base64.b64decode(encoded.rstrip(":")))
    raw[0] ^= 1
    headers["Signature"] = f"{label}=:{base64.b64encode(raw).decode()}:"
    return r.sites.me.post(replace(asked, headers=list(headers.items())))


@_act
def _signed_at(r: Round, later_s: int) -> httpx.Response:
    return r.sites.me.post(_asked_view(r, int(r.federation.clock.now()) + later_s))


@_act
def _replayed(r: Round, side: Side) -> httpx.Response:
    asked = _asked_view(r)
    assert r.sites.me.post(asked).status_code == 200
    return r.sites.me.post(replace(asked, side=side, url=r.federation.url(side) + paths.SEALED))


@_act
def _component_left_out(r: Round, without: str) -> httpx.Response:
    """With nothing left out it is the signature that servers accept, which shows that nothing else is wrong with it."""
    assert r.sites.me.post(_signed_over_less(r, "")).status_code == 200
    return r.sites.me.post(_signed_over_less(r, without))


def _signed_over_less(r: Round, without: str) -> Outgoing:
    """A valid signature over an envelope, with one component or parameter left out of what it covers."""
    asked, field, keys = _asked_view(r), DigestField.SEALED_HEAD, r.sites.me.keys
    digest = digest_value(field, head_digest(asked.content))
    values = {"@method": "POST", "@target-uri": asked.url, field.value: digest}
    stated = {
        "created": str(int(r.federation.clock.now())),
        "keyid": f'"{keys.key_id}"',
        "alg": '"ed25519"',
        "nonce": f'"{asked.between.nonce}"',
        "tag": f'"{TAG}"',
    }
    covered = [name for name in values if name != without]
    parameters = "(" + " ".join(f'"{name}"' for name in covered) + ")"
    parameters += "".join(f";{name}={value}" for name, value in stated.items() if name != without)
    base = "".join(f'"{name}": {values[name]}\n' for name in covered) + f'"@signature-params": {parameters}'
    signature = base64.b64encode(keys.signing.sign(base.encode())).decode()
    headers = [
        (field.title(), digest),
        ("Signature-Input", f"moiety={parameters}"),
        ("Signature", f"moiety=:{signature}:"),
    ]
    return replace(asked, headers=headers)


def _wrong_content_digest(r: Round) -> httpx.Response:
    path, client = r.path(paths.CONTRIBUTION), r.client(VICTIM)
    body = r.honest[VICTIM][Side.A].sealed()
    return client.post(client.enclose(Side.A, "PUT", path, r.fresh(VICTIM)[Side.A].sealed(), stated=body))


def _flat_digest_of_a_contribution(r: Round) -> httpx.Response:
    """The share is sound, but stated by the digest that other requests take."""
    path, client = r.path(paths.CONTRIBUTION), r.client(VICTIM)
    body = r.honest[VICTIM][Side.A].sealed()
    return client.post(client.enclose(Side.A, "PUT", path, body, digest_field=DigestField.CONTENT))


# --- shares that are sealed, bound or sent wrongly --------------------------------------------------------------------


@_act
def _share(r: Round, make: Callable[[Round], bytes]) -> httpx.Response:
    """Send what ``make`` returns to server B, which holds the victim's vector."""
    return r.put(VICTIM, Side.B, make(r))


def _parts_then(change: Callable[[forged.Parts], bytes]) -> Act:
    """The victim's vector share, made or sealed wrongly."""
    return _share(lambda r: change(r.honest[VICTIM][Side.B]))


def _sealed_then(change: Callable[[bytes], bytes]) -> Act:
    return _parts_then(lambda parts: change(parts.sealed()))


def _header(**changes: object) -> Act:
    return _parts_then(lambda parts: forged.with_header(parts, **changes).sealed())


def _bit_flipped(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


def _chunks(parts: forged.Parts) -> tuple[bytes, list[bytes]]:
    """A sealed share as what stands before its body, and the body's chunks."""
    sealed, size = parts.sealed(), CHUNK_BYTES + TAG_BYTES
    cut = len(sealed) - sealed_length(len(parts.plain))
    return sealed[:cut], [sealed[at : at + size] for at in range(cut, len(sealed), size)]


def _chunks_swapped(parts: forged.Parts) -> bytes:
    head, (first, second, *rest) = _chunks(parts)
    return b"".join([head, second, first, *rest])


def _last_chunk_missing(parts: forged.Parts) -> bytes:
    """Each chunk that is there opens."""
    head, chunks = _chunks(parts)
    return b"".join([head, *chunks[:-1]])


def _altered_header(parts: forged.Parts) -> bytes:
    """The sealed share of one header under another, just as acceptable one."""
    return parts.sealed().replace(parts.header, forged.with_header(parts, commitment_a="33" * 32).header)


def _to_the_wrong_key(r: Round) -> bytes:
    parts = r.honest[VICTIM]
    return replace(parts[Side.B], recipient=parts[Side.A].recipient).sealed()


@_act
def _vector_of(r: Round, times: int = 1, by: int = 0) -> httpx.Response:
    """The victim's vector share at B, of another length than it says, sound otherwise."""
    other = r.fresh(VICTIM, np.resize(r.x[VICTIM], times * SMALL + by))
    return r.put(VICTIM, Side.B, forged.with_header(other[Side.B], length=r.x[VICTIM].size).sealed())


@_act
def _the_others_share(r: Round, site: str) -> httpx.Response:
    """Server B's share of a site at server A, dressed up as A's: together they would give the update away."""
    other = forged.with_header(r.honest[site][Side.B], side=Side.A.value)
    return r.put(site, Side.A, replace(other, recipient=r.honest[site][Side.A].recipient).sealed())


def _for_another_announcement(r: Round) -> httpx.Response:
    told = r.announcement.model_copy(update={"weight_list_digest": "22" * 32})
    return r.put(VICTIM, Side.A, r.fresh(VICTIM, announcement=told)[Side.A].sealed())


def _same_id_other_bytes(r: Round) -> httpx.Response:
    return r.put(EARLY, Side.A, r.fresh(EARLY)[Side.A].sealed())


def _of_a_stranger(r: Round) -> httpx.Response:
    """Sound, of a site of the roster that the round does not list."""
    x, roster = np.ones(SMALL, dtype=np.uint64), r.federation.roster
    made = forged.honest_contribution(x, r.announcement, STRANGER, roster, secrets.token_bytes(32))
    return r.put(STRANGER, Side.A, made[Side.A].sealed())


# --- control messages, queries and release sets, of the requester or of a site that plays it --------------------------


@_act
def _post(r: Round, path: str, body: bytes) -> httpx.Response:
    return r.sites.me.send(Side.A, "POST", r.path(path), body)


@_act
def _announced(r: Round, /, signer: str = REQUESTER, **changes: object) -> httpx.Response:
    """The announcement of this round, with other content, or by somebody else."""
    body = _signed(r, r.announcement.model_copy(update=changes), signer)
    return r.sites.me.send(Side.A, "POST", r.path(paths.ANNOUNCEMENT), body)


def _too_few_listed(r: Round) -> httpx.Response:
    body = _signed(r, r.announcement)
    fewer = body.replace(b',"hospital-3","hospital-4"]', b"]")
    assert fewer != body
    return r.sites.me.send(Side.A, "POST", r.path(paths.ANNOUNCEMENT), fewer)


def _wrong_version_of_a_study(r: Round) -> httpx.Response:
    body = _signed(r, r.sites.study).replace(PROTOCOL_VERSION.encode(), _NO_VERSION.encode())
    return r.sites.me.send(Side.A, "POST", paths.STUDIES, body)


@_act
def _study_with(r: Round, /, signer: str = REQUESTER, **changes: object) -> httpx.Response:
    study = r.sites.study.model_copy(update={"name": "another", **changes})
    return r.client(signer).send(Side.A, "POST", paths.STUDIES, _signed(r, study, signer))


def _ready_for_somebody_else(r: Round) -> httpx.Response:
    notice = ReadyNotice(study_digest=r.sites.study.digest(), site=OTHER).canonical()
    return r.client(VICTIM).send(Side.A, "POST", r.path(paths.READY), notice)


@_act
def _queries(
    r: Round, /, sender: str = REQUESTER, side: Side = Side.B, short_by: int = 0, **changes: object
) -> httpx.Response:
    """The vector half of the requester's queries for B, with another header or length."""
    stated_by_both = there(r.current.transcript, "transcript").message
    targets = tuple(site for site in r.agreed if site != REQUESTER)
    honest = Queries(stated_by_both.digest(), Side.B, targets, SMALL).header(1)
    header = QueryHeader(**(dict(honest) | changes)).canonical()
    body = to_bytes(np.zeros(SMALL * len(targets), dtype=np.uint64))
    content_key, salt = secrets.token_bytes(32), secrets.token_bytes(32)
    recipient = r.federation.roster.operator_b.sealing
    parts = forged.Parts(header, body[: len(body) - short_by], recipient, content_key, salt)
    return r.client(sender).send(side, "POST", r.path(paths.QUERIES), parts.sealed())


@_act
def _release(
    r: Round, /, *sites: str, signer: str = REQUESTER, side: Side = Side.A, **changes: object
) -> httpx.Response:
    """A release set over these sites, whoever signs it."""
    agreed = there(r.current.agreed_set, "agreed set").message
    chosen = forged.release_set(agreed, sites or r.agreed).model_copy(update=changes)
    return r.sites.me.send(side, "PUT", r.path(paths.RELEASE_SET), _signed(r, chosen, signer))


def _empty_set(r: Round, number: int) -> AgreedSet:
    return AgreedSet(
        study_digest=r.sites.study.digest(),
        round=number,
        attempt=1,
        announcement_digest=r.announcement.digest(),
        contributions=(),
    )


def _release_of_an_older_round(r: Round) -> httpx.Response:
    number = max(1, r.number - 1)
    body = _signed(r, forged.release_set(_empty_set(r, number), SITES))
    return r.sites.me.send(Side.A, "PUT", r.path(paths.RELEASE_SET, round=number), body)


# --- letters ----------------------------------------------------------------------------------------------------------


@_act
def _letter(r: Round, topic: str, size: int, sender: str = VICTIM, recipient: str = REQUESTER) -> httpx.Response:
    return r.client(sender).send(Side.A, "PUT", r.path(paths.MAIL, topic=topic, recipient=recipient), bytes(size))


@_act
def _letter_without_a_length(r: Round, size: int) -> httpx.Response:
    client, path = r.client(VICTIM), r.path(paths.MAIL, topic="refusal", recipient=REQUESTER)
    return client.post(client.enclose(Side.A, "PUT", path, bytes(size)), chunked=True)


# --- what server A, or somebody in its place, sends to server B -------------------------------------------------------


def _as_peer(template: str, body: bytes) -> Act:
    """A frame that carries side A's own signature."""
    return _by(_server_a, template, Side.B, body)


def _other_set_to_lock(r: Round) -> httpx.Response:
    signed = sign(_empty_set(r, r.number), "operator-a", _server_a(r).signing)
    body = b'{"agreed_set":' + signed.canonical() + b',"commitment_a":"' + b"00" * 32 + b'"}'
    return _as_peer(paths.PEER_LOCK, body)(r)


# --- what is refused --------------------------------------------------------------------------------------------------


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


_MALFORMED, _SEAL, _LARGE, _CONFLICT = E.MALFORMED_MESSAGE, E.BROKEN_SEAL, E.TOO_LARGE, E.CONFLICTING_MESSAGE
_UNSIGNED, _UNLISTED, _ROUND, _MISMATCH = E.BAD_SIGNATURE, E.NOT_LISTED, E.WRONG_ROUND, E.ANNOUNCEMENT_MISMATCH
_SETTLED, _LOCKED, _MEASURED, _RELEASED = Phase.SETTLED, Phase.LOCKED, Phase.MEASURED, Phase.RELEASED
_MEGABYTE: Final = 2**20
_HOUR_S: Final = 3600
_NOTICE: Final = sealed_small_length(NOTICE_BYTES)
_MODEL: Final = sealed_length(4 * SMALL)
_EVERYBODY: Final = paths.EVERY_SITE
_COMPONENTS: Final = ("@method", "@target-uri", "sealed-head-digest", "created", "keyid", "alg", "nonce", "tag")
_WORDS: Final = ("decline", "x", "refusal", "weights", "welcome")
_TOPICS: Final = (
    *(f"{word}-{number}" for number in range(2, 5) for word in _WORDS),
    *("decline", "decline-01", "decline-1-1", "decline--1", "refusal-0", "checkpoint", "every-site"),
)
ROWS: Final[Mapping[str, tuple[Row, ...]]] = {
    "share-of-something-else": (
        Row("in another site's name", lambda r: r.put(VICTIM, Side.A, r.honest[OTHER][Side.A].sealed()), _UNLISTED),
        Row("bound to another announcement", _for_another_announcement, _MISMATCH),
        Row("another study's digest", _header(study_digest="00" * 32), _MISMATCH),
        Row("wrong round in the header", _header(round=999), _ROUND),
        Row("wrong attempt in the header", _header(attempt=2), _ROUND),
        Row("wrong length in the header", _header(length=SMALL + 1), _MALFORMED),
        Row("wrong protocol version", _header(version=_NO_VERSION), E.OTHER_VERSION, says="moiety/9"),
        Row("unknown field in the header", _header(note="x"), _MALFORMED, says="note"),
        Row(
            "share for the other side", _share(lambda r: r.honest[VICTIM][Side.A].sealed()), _MALFORMED, says="side 'a'"
        ),
        Row("the other side's share first", _the_others_share(VICTIM), _MALFORMED, says="vector"),
    ),
    "share-sealed-wrongly": (
        Row("sealed to the wrong key", _share(_to_the_wrong_key), _SEAL),
        Row("truncated", _sealed_then(lambda sealed: sealed[:-1]), _SEAL),
        Row("over-long", _sealed_then(lambda sealed: sealed + b"\0"), _SEAL),
        Row("a megabyte over-long", _sealed_then(lambda sealed: sealed + bytes(_MEGABYTE)), _LARGE),
        Row("bit flipped", _sealed_then(_bit_flipped), _SEAL),
        Row("header changed after sealing", _parts_then(_altered_header), _SEAL),
        Row("not sealed at all", _share(lambda r: b"\x00" * 3000), _MALFORMED),
        Row("empty body", _share(lambda r: b""), _SEAL),
        Row("chunks swapped", _parts_then(_chunks_swapped), _SEAL, dimension=LARGE),
        Row("last chunk missing", _parts_then(_last_chunk_missing), _SEAL, says="last chunk", dimension=LARGE),
    ),
    "share-not-as-committed": (
        Row(
            "wrong commitment",
            _parts_then(lambda parts: replace(parts, plain=_bit_flipped(parts.plain)).sealed()),
            E.COMMITMENT_MISMATCH,
        ),
    ),
    "share-of-another-length": (
        Row("vector too short", _vector_of(by=-1), _MALFORMED, says="152"),
        Row("vector too long", _vector_of(by=1), _MALFORMED, says="168"),
        Row("fifty times as long", _vector_of(times=50), _MALFORMED, says="8000"),
    ),
    "share-out-of-turn": (
        Row("a site that is not listed", _of_a_stranger, _UNLISTED, says="is not listed"),
        Row("wrong round in the address", lambda r: r.put(VICTIM, Side.A, b"x", round=999), _ROUND),
        Row("after the lock, a late site", _of_a_stranger, _ROUND, _LOCKED),
        Row("before the announcement", _share(lambda r: b"x"), _ROUND, _SETTLED),
    ),
    "share-sent-twice": (
        Row("same place, other bytes", _same_id_other_bytes, _CONFLICT, recorded=True),
        Row("both shares to one server", _the_others_share(EARLY), _CONFLICT, recorded=True),
        Row("after the lock", _same_id_other_bytes, _CONFLICT, _LOCKED, recorded=True),
        Row("after the release", _same_id_other_bytes, _CONFLICT, _RELEASED, recorded=True),
    ),
    "letters-of-every-size": (
        *(
            Row(f"a notice of {size} bytes", _letter("refusal", size), _MALFORMED, _SETTLED)
            for size in (0, 1, 74, _NOTICE - 1)
        ),
        *(
            Row(f"a notice of {size} bytes", _letter("refusal", size), _LARGE, _SETTLED)
            for size in (_NOTICE + 1, 2 * _NOTICE, _MEGABYTE)
        ),
        Row("a megabyte without a stated length", _letter_without_a_length(_MEGABYTE), _LARGE, _SETTLED),
        Row("a model a byte too long", _letter("checkpoint-0", _MODEL + 1, REQUESTER, _EVERYBODY), _LARGE),
        Row("fifty models in one", _letter("checkpoint-0", 50 * _MODEL, REQUESTER, _EVERYBODY), _LARGE),
    ),
    "letters-of-made-up-topics": (
        *(Row(f"topic {topic}", _letter(topic, _NOTICE), None) for topic in _TOPICS),
        Row("a model that no round made", _letter("checkpoint-1", _MODEL, REQUESTER, _EVERYBODY), _ROUND),
        Row("a welcome to it", _letter("welcome-1", 1000, REQUESTER, VICTIM), _ROUND),
        Row("a model for one site", _letter("checkpoint-0", _MODEL, REQUESTER, VICTIM), _UNLISTED),
        Row("a decline of who is not listed", _letter("decline-1", _NOTICE, STRANGER), _UNLISTED),
    ),
    "studies-with-a-dealer": (
        Row("a dealer's correlations", _study_with(correlation_source="dealer"), _MALFORMED),
        Row("another roster", _study_with(roster_digest="00" * 32), _MISMATCH),
        Row("created by a site", _study_with(signer=VICTIM), _UNLISTED),
    ),
    "announcements-out-of-turn": (
        Row("another announcement of this round", _announced(model_digest="22" * 32), _CONFLICT, recorded=True),
        Row("of a later round", _announced(round=10**5), _ROUND, _SETTLED),
        Row("names unknown sites", _announced(listed=(*SITES[1:], "nobody")), _MALFORMED, _SETTLED, says="nobody"),
        Row(
            "below the study's least number",
            _announced(least_contributors=2),
            _MALFORMED,
            _SETTLED,
            says="below the study's 3",
        ),
        Row("fewer sites than it promises", _too_few_listed, _MALFORMED, _SETTLED),
    ),
    "announcements-that-open-more": (
        Row("of another study", _announced(study_digest="00" * 32), _MISMATCH, _SETTLED),
        Row("closes in centuries", _announced(closes_at_s=10**10), _MALFORMED, _SETTLED, says="round_deadline_s"),
        *(
            Row(f"opens {opens.value}", _announced(opens=opens), _MALFORMED, _SETTLED)
            for opens in (Needs.PAIRS, Needs.NORMS, Needs.INNER_PRODUCTS)
        ),
    ),
    "messages-in-the-requesters-place": (
        Row("announcement by a site", _announced(signer=VICTIM), _UNSIGNED, _SETTLED),
        Row("ready for somebody else", _ready_for_somebody_else, _UNLISTED),
        Row("queries of a site", _queries(sender=VICTIM), _UNLISTED, _LOCKED),
        Row("a site as the other server", _by(_victim, paths.PEER_COLLECTED, Side.B), _UNLISTED),
        Row("release by a site", _release(signer=VICTIM), _UNSIGNED, _MEASURED),
    ),
    "messages-that-do-not-parse": (
        Row("malformed JSON", _post(paths.ANNOUNCEMENT, b'{"message":'), _MALFORMED, says="JSON"),
        Row("JSON of another kind", _post(paths.ANNOUNCEMENT, b"[1, 2]"), _MALFORMED),
        Row("five megabytes", _post(paths.ANNOUNCEMENT, b" " * 5 * _MEGABYTE), _LARGE),
        Row("another version", _wrong_version_of_a_study, E.OTHER_VERSION, says=_NO_VERSION),
        Row("unknown study", _unknown_study, E.UNKNOWN_STUDY, says="elsewhere"),
    ),
    "queries-of-its-own-choice": (
        Row("wrong length", _queries(length=SMALL + 1), _MALFORMED, _LOCKED, says="length"),
        Row("cut short", _queries(short_by=8), _MALFORMED, _LOCKED, says="bytes"),
        Row("sites not in the set", _queries(targets=(STRANGER, *SITES[2:])), _MALFORMED, _LOCKED),
        Row("one site only", _queries(targets=(VICTIM,)), _MALFORMED, _LOCKED),
        Row("another challenge", _queries(transcript_digest="00" * 32), E.TRANSCRIPT_MISMATCH, _LOCKED),
        Row("for the other side", _queries(side=Side.A), _MALFORMED, _LOCKED),
        Row("before the lock", _post(paths.QUERIES, b"x"), _ROUND),
        Row("other ones, later", _queries(), _CONFLICT, _MEASURED, recorded=True),
    ),
    "release-of-two": (
        Row("below the announced number", _release(*SITES[:3]), _MALFORMED, _MEASURED, says="at least 3"),
        Row("beyond the agreed set", _release(*SITES, STRANGER), _MALFORMED, _MEASURED),
        Row("a site twice", _release(*SITES, LAST), _MALFORMED, _MEASURED),
        Row("without the requester", _release(*SITES[1:]), _MALFORMED, _MEASURED),
        Row("for another agreed set", _release(agreed_set_digest="00" * 32), _MISMATCH, _MEASURED),
        Row("before the opening", _release(), _ROUND, _LOCKED),
    ),
    "release-twice": (
        Row("at server A", _release(*SITES[:4]), _CONFLICT, _RELEASED, recorded=True),
        Row("at server B", _release(*SITES[:4], side=Side.B), _CONFLICT, _RELEASED, recorded=True),
        Row("of an older round", _release_of_an_older_round, _ROUND),
    ),
    "output-for-an-outsider": (
        Row("not listed", lambda r: r.client(STRANGER).send(Side.A, "GET", r.path(paths.OUTPUT)), _UNLISTED, _RELEASED),
    ),
    "server-lies-about-who-contributed": (
        Row("a set that B does not hold", _other_set_to_lock, E.PROTOCOL_VIOLATION),
        Row("another set after the lock", _other_set_to_lock, _CONFLICT, _LOCKED),
    ),
    "server-sends-broken-frames": (
        Row("shorter than its length", _as_peer(paths.PEER_EXTEND, b"\x00"), _MALFORMED),
        Row("says too much", _as_peer(paths.PEER_EXTEND, b"\xff\xff\xff\xff{}"), _MALFORMED),
        Row("a broken message", _as_peer(paths.PEER_EXTEND, b"\x00\x00\x00\x02{]"), _MALFORMED),
        Row("of another kind", _as_peer(paths.PEER_PRODUCTS, _BATCH), _MALFORMED, _LOCKED),
        Row("for a session that is not open", _as_peer(paths.PEER_EXTEND, _BATCH), E.UNKNOWN_RESOURCE),
        Row(
            "other products for the same attempt", _as_peer(paths.PEER_PRODUCTS, _OTHER_PRODUCTS), _CONFLICT, _MEASURED
        ),
    ),
    "requests-badly-signed": (
        Row("site not in the roster", _by(_nobody), _UNSIGNED, says="does not match"),
        Row("signature of another key", _by_impostor(_victim), _UNSIGNED),
        Row("bad signature", _bad_signature, _UNSIGNED),
        Row("missing signature", lambda r: r.sites.me.post(replace(_asked_view(r), headers=[])), _UNSIGNED),
        *(Row(f"{name} left out of the signature", _component_left_out(name), _UNSIGNED) for name in _COMPONENTS),
        Row("a peer with another key", _by_impostor(_server_a, paths.PEER_COLLECTED, Side.B), _UNSIGNED),
    ),
    "requests-out-of-their-minute": (
        Row("expired signature", _signed_at(-_HOUR_S), _UNSIGNED, says="s ago"),
        Row("future-dated signature", _signed_at(_HOUR_S), _UNSIGNED, says="future"),
        Row("replayed signature", _replayed(Side.A), _UNSIGNED, says="nonce"),
        Row("replayed at the other server", _replayed(Side.B), _UNSIGNED),
    ),
    "requests-with-another-body": (
        Row("wrong content digest", _wrong_content_digest, _UNSIGNED, says="digest"),
        Row("flat digest of a contribution", _flat_digest_of_a_contribution, _UNSIGNED, says="sealed-digest"),
    ),
}

# --- sent in rounds of two real servers -------------------------------------------------------------------------------

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


def _reached(pair: AttackedPair[ServersInMemory], rows: Sequence[Row]) -> Iterator[str]:
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


def _at(pair: AttackedPair[ServersInMemory], row: Row) -> Round:
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


def _any_length(opening: Opening[ContributionHeader]) -> ContributionHeader:
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
    "servers.rounds.intake.Opening.finish": _any_length,
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
