"""Messages that servers refuse: functions that send them, and the table of what each is refused for.

``refused_messages.py`` sends the rows of the table and says which defence refuses them.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias

import httpx
import numpy as np

from harness.attack import forgeries as forged
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
    Phase,
    RoundInMemory,
)
from harness.attack.signed_client import Outgoing, SignedClient, there
from protocol.arithmetic.ring import to_bytes
from protocol.channel.commitment import head_digest
from protocol.channel.message import pack_frame
from protocol.channel.sealing import sealed_length, sealed_small_length
from protocol.channel.signing import DigestField
from protocol.errors import ErrorCode as E
from protocol.messages import paths
from protocol.messages.bodies import Queries
from protocol.messages.control import AgreedSet, QueryHeader, ReadyNotice, sign
from protocol.messages.letter import NOTICE_BYTES
from protocol.messages.peer import BatchHeader, ProductsHeader
from protocol.parameters import PROTOCOL_VERSION, Needs
from protocol.roster.keyfile import PartyKeys
from protocol.sharing import Side

Round: TypeAlias = RoundInMemory
Act: TypeAlias = Callable[[Round], httpx.Response]
_NO_VERSION = "moiety/999"
_HOUR_S = 3600
_SESSION = "00" * 32
_BATCH = pack_frame(BatchHeader(session=_SESSION, batch=0, lengths=((1,),)))
_PRODUCTS = pack_frame(ProductsHeader(transcript_digest=_SESSION, correlations=()))

# --- requests whose signature, time or body is wrong ------------------------------------------------------------------


def _asked_view(r: Round, created: int | None = None) -> Outgoing:
    return r.sites.me.enclose(Side.A, "GET", r.path(paths.VIEW), created=created)


def _as_somebody(
    r: Round, keys: PartyKeys, side: Side, path: str, body: bytes = b"", method: str = "GET"
) -> httpx.Response:
    with closing(SignedClient(r.federation, keys)) as client:
        return client.send(side, method, path, body)


def unknown_study(r: Round) -> httpx.Response:
    return r.sites.me.send(Side.A, "GET", paths.fill(paths.VIEW, study="elsewhere"))


def site_not_in_the_roster(r: Round) -> httpx.Response:
    return _as_somebody(r, forged.nobody(r.sites.me.keys, bytes(32)), Side.A, r.path(paths.VIEW))


def signature_of_another_key(r: Round) -> httpx.Response:
    keys = forged.impostor(r.client(VICTIM).keys, secrets.token_bytes(32))
    return _as_somebody(r, keys, Side.A, r.path(paths.VIEW))


def bad_signature(r: Round) -> httpx.Response:
    asked = _asked_view(r)
    return r.sites.me.post(replace(asked, headers=forged.signature_bit_flipped(asked.headers)))


def signed_at(later_s: int) -> Act:
    return lambda r: r.sites.me.post(_asked_view(r, int(r.federation.clock.now()) + later_s))


def replayed(r: Round) -> httpx.Response:
    asked = _asked_view(r)
    assert r.sites.me.post(asked).status_code == 200
    return r.sites.me.post(asked)


def replayed_at_the_other_server(r: Round) -> httpx.Response:
    asked = _asked_view(r)
    assert r.sites.me.post(asked).status_code == 200
    return r.sites.me.post(replace(asked, side=Side.B, url=r.federation.url(Side.B) + paths.SEALED))


def component_left_out(without: str) -> Act:
    def attack(r: Round) -> httpx.Response:
        keys = r.sites.me.keys

        def signed(left_out: str) -> Outgoing:
            asked, now = _asked_view(r), int(r.federation.clock.now())
            digest = head_digest(asked.content)
            headers = forged.signed_over_less(
                asked.url, digest, keys.signing, keys.key_id, created=now, nonce=asked.between.nonce, without=left_out
            )
            return replace(asked, headers=headers)

        assert r.sites.me.post(signed("")).status_code == 200
        return r.sites.me.post(signed(without))

    return attack


def wrong_content_digest(r: Round) -> httpx.Response:
    path, client = r.path(paths.CONTRIBUTION), r.client(VICTIM)
    body = r.honest[VICTIM][Side.A].sealed()
    return client.post(client.enclose(Side.A, "PUT", path, r.fresh(VICTIM)[Side.A].sealed(), stated=body))


def flat_digest_of_a_contribution(r: Round) -> httpx.Response:
    """The share is sound, but stated by the digest that other requests take."""
    path, client = r.path(paths.CONTRIBUTION), r.client(VICTIM)
    body = r.honest[VICTIM][Side.A].sealed()
    return client.post(client.enclose(Side.A, "PUT", path, body, digest_field=DigestField.CONTENT))


# --- shares that are sealed, bound or sent wrongly --------------------------------------------------------------------


def share(make: Callable[[Round], bytes]) -> Act:
    """Send what ``make`` returns to server B, which holds the victim's vector."""
    return lambda r: r.put(VICTIM, Side.B, make(r))


def sealed_then(change: Callable[[bytes], bytes]) -> Act:
    """The victim's sealed vector share, altered."""
    return share(lambda r: change(r.honest[VICTIM][Side.B].sealed()))


def parts_then(change: Callable[[forged.Parts], bytes]) -> Act:
    """The victim's vector share, sealed wrongly."""
    return share(lambda r: change(r.honest[VICTIM][Side.B]))


def header(**changes: object) -> Act:
    return share(lambda r: forged.with_header(r.honest[VICTIM][Side.B], **changes).sealed())


def vector_of(times: int = 1, by: int = 0) -> Act:
    """The victim's vector share at B, of another length than it says, sound otherwise."""

    def made(r: Round) -> bytes:
        other = r.fresh(VICTIM, np.resize(r.x[VICTIM], times * SMALL + by))
        return forged.with_header(other[Side.B], length=r.x[VICTIM].size).sealed()

    return share(made)


def altered_header(parts: forged.Parts) -> bytes:
    """The sealed share of one header under another, just as acceptable one."""
    return parts.sealed().replace(parts.header, forged.with_header(parts, commitment_a="33" * 32).header)


def the_others_share(site: str) -> Act:
    """Server B's share of a site at server A, dressed up as A's."""
    return lambda r: r.put(site, Side.A, forged.both_shares_to_one_server(r.honest[site], Side.A))


def for_another_announcement(r: Round) -> httpx.Response:
    told = r.announcement.model_copy(update={"weight_list_digest": "22" * 32})
    return r.put(VICTIM, Side.A, r.fresh(VICTIM, announcement=told)[Side.A].sealed())


def same_id_other_bytes(r: Round) -> httpx.Response:
    return r.put(EARLY, Side.A, r.fresh(EARLY)[Side.A].sealed())


def of_a_stranger(r: Round) -> httpx.Response:
    """Sound, of a site of the roster that the round does not list."""
    x, roster = np.ones(SMALL, dtype=np.uint64), r.federation.roster
    made = forged.honest_contribution(x, r.announcement, STRANGER, roster, secrets.token_bytes(32))
    return r.put(STRANGER, Side.A, made[Side.A].sealed())


# --- control messages, queries and release sets, of the requester or of a site that plays it --------------------------


def post(path: str, body: bytes) -> Act:
    return lambda r: r.sites.me.send(Side.A, "POST", r.path(path), body)


def announced(signer: str = REQUESTER, **changes: object) -> Act:
    """The announcement of this round, with other content, or by somebody else."""

    def attack(r: Round) -> httpx.Response:
        changed = r.announcement.model_copy(update=changes)
        return r.announce_as_is(sign(changed, signer, r.client(signer).keys.signing))

    return attack


def too_few_listed(r: Round) -> httpx.Response:
    body = sign(r.announcement, REQUESTER, r.sites.me.keys.signing).canonical()
    fewer = body.replace(b',"hospital-3","hospital-4"]', b"]")
    assert fewer != body
    return r.sites.me.send(Side.A, "POST", r.path(paths.ANNOUNCEMENT), fewer)


def wrong_version_of_a_study(r: Round) -> httpx.Response:
    body = sign(r.sites.study, REQUESTER, r.sites.me.keys.signing).canonical()
    return r.sites.me.send(Side.A, "POST", paths.STUDIES, body.replace(PROTOCOL_VERSION.encode(), _NO_VERSION.encode()))


def study_with(signer: str = REQUESTER, **changes: object) -> Act:
    """Another study, with these changes."""

    def attack(r: Round) -> httpx.Response:
        study = r.sites.study.model_copy(update={"name": "another", **changes})
        body = sign(study, signer, r.client(signer).keys.signing).canonical()
        return r.client(signer).send(Side.A, "POST", paths.STUDIES, body)

    return attack


def ready_for_somebody_else(r: Round) -> httpx.Response:
    notice = ReadyNotice(study_digest=r.sites.study.digest(), site=OTHER).canonical()
    return r.client(VICTIM).send(Side.A, "POST", r.path(paths.READY), notice)


def queries(sender: str = REQUESTER, side: Side = Side.B, short_by: int = 0, **changes: object) -> Act:
    """The vector half of the requester's queries for B, with another header or length."""

    def attack(r: Round) -> httpx.Response:
        stated_by_both = there(r.current.transcript, "transcript").message
        targets = tuple(site for site in r.agreed if site != REQUESTER)
        honest = Queries(stated_by_both.digest(), Side.B, targets, SMALL).header(1)
        stated = QueryHeader(**(dict(honest) | changes))
        body = to_bytes(np.zeros(SMALL * len(targets), dtype=np.uint64))
        parts = forged.Parts(
            stated.canonical(),
            body[: len(body) - short_by],
            r.federation.roster.operator_b.sealing,
            secrets.token_bytes(32),
            secrets.token_bytes(32),
        )
        return r.client(sender).send(side, "POST", r.path(paths.QUERIES), parts.sealed())

    return attack


def release(*sites: str, signer: str = REQUESTER, side: Side = Side.A, **changes: object) -> Act:
    """A release set over these sites, whoever signs it."""

    def attack(r: Round) -> httpx.Response:
        agreed = there(r.current.agreed_set, "agreed set").message
        chosen = forged.release_set(agreed, sites or r.agreed).model_copy(update=changes)
        body = sign(chosen, signer, r.client(signer).keys.signing).canonical()
        return r.sites.me.send(side, "PUT", r.path(paths.RELEASE_SET), body)

    return attack


def _empty_set(r: Round, number: int) -> AgreedSet:
    return AgreedSet(
        study_digest=r.sites.study.digest(),
        round=number,
        attempt=1,
        announcement_digest=r.announcement.digest(),
        contributions=(),
    )


def release_of_an_older_round(r: Round) -> httpx.Response:
    number = max(1, r.number - 1)
    chosen = forged.release_set(_empty_set(r, number), SITES)
    body = sign(chosen, REQUESTER, r.sites.me.keys.signing).canonical()
    return r.sites.me.send(Side.A, "PUT", r.path(paths.RELEASE_SET, round=number), body)


# --- letters ----------------------------------------------------------------------------------------------------------


def letter(topic: str, size: int, sender: str = VICTIM, recipient: str = REQUESTER) -> Act:
    return lambda r: r.client(sender).send(
        Side.A, "PUT", r.path(paths.MAIL, topic=topic, recipient=recipient), bytes(size)
    )


def letter_without_a_length(size: int) -> Act:
    """A letter whose request does not say how long it is."""

    def attack(r: Round) -> httpx.Response:
        client, path = r.client(VICTIM), r.path(paths.MAIL, topic="refusal", recipient=REQUESTER)
        return client.post(client.enclose(Side.A, "PUT", path, bytes(size)), chunked=True)

    return attack


# --- what server A, or somebody in its place, sends to server B -------------------------------------------------------


def as_peer(template: str, body: bytes, **values: str | int) -> Act:
    """A frame that carries side A's own signature."""
    return lambda r: _as_somebody(
        r, r.federation.keys("operator-a"), Side.B, r.path(template, session=_SESSION, batch=0, **values), body, "POST"
    )


def peer_with_another_key(r: Round) -> httpx.Response:
    keys = forged.impostor(r.federation.keys("operator-a"), secrets.token_bytes(32))
    return _as_somebody(r, keys, Side.B, r.path(paths.PEER_COLLECTED))


def site_as_peer(r: Round) -> httpx.Response:
    return _as_somebody(r, r.client(VICTIM).keys, Side.B, r.path(paths.PEER_COLLECTED))


def other_set_to_lock(r: Round) -> httpx.Response:
    signed = sign(_empty_set(r, r.number), "operator-a", r.federation.keys("operator-a").signing)
    body = b'{"agreed_set":' + signed.canonical() + b',"commitment_a":"' + b"00" * 32 + b'"}'
    return as_peer(paths.PEER_LOCK, body)(r)


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
        Row("bound to another announcement", for_another_announcement, _MISMATCH),
        Row("another study's digest", header(study_digest="00" * 32), _MISMATCH),
        Row("wrong round in the header", header(round=999), _ROUND),
        Row("wrong attempt in the header", header(attempt=2), _ROUND),
        Row("wrong length in the header", header(length=SMALL + 1), _MALFORMED),
        Row("wrong protocol version", header(version=_NO_VERSION), E.OTHER_VERSION, says="moiety/9"),
        Row("unknown field in the header", header(note="x"), _MALFORMED, says="note"),
        Row(
            "share for the other side", share(lambda r: r.honest[VICTIM][Side.A].sealed()), _MALFORMED, says="side 'a'"
        ),
        Row("the other side's share first", the_others_share(VICTIM), _MALFORMED, says="vector"),
    ),
    "share-sealed-wrongly": (
        Row(
            "sealed to the wrong key", share(lambda r: forged.sealed_to_the_wrong_key(r.honest[VICTIM], Side.B)), _SEAL
        ),
        Row("truncated", sealed_then(forged.truncated), _SEAL),
        Row("over-long", sealed_then(forged.over_long), _SEAL),
        Row("a megabyte over-long", sealed_then(partial(forged.over_long, by=_MEGABYTE)), _LARGE),
        Row("bit flipped", sealed_then(forged.bit_flipped), _SEAL),
        Row("header changed after sealing", parts_then(altered_header), _SEAL),
        Row("not sealed at all", share(lambda r: b"\x00" * 3000), _MALFORMED),
        Row("empty body", share(lambda r: b""), _SEAL),
        Row("chunks swapped", parts_then(forged.chunks_swapped), _SEAL, dimension=LARGE),
        Row("last chunk missing", parts_then(forged.last_chunk_missing), _SEAL, says="last chunk", dimension=LARGE),
    ),
    "share-not-as-committed": (
        Row(
            "wrong commitment",
            share(lambda r: forged.another_share_than_committed(r.honest[VICTIM], Side.B)),
            E.COMMITMENT_MISMATCH,
        ),
    ),
    "share-of-another-length": (
        Row("vector too short", vector_of(by=-1), _MALFORMED, says="152"),
        Row("vector too long", vector_of(by=1), _MALFORMED, says="168"),
        Row("fifty times as long", vector_of(times=50), _MALFORMED, says="8000"),
    ),
    "share-out-of-turn": (
        Row("a site that is not listed", of_a_stranger, _UNLISTED, says="is not listed"),
        Row("wrong round in the address", lambda r: r.put(VICTIM, Side.A, b"x", round=999), _ROUND),
        Row("after the lock, a late site", of_a_stranger, _ROUND, _LOCKED),
        Row("before the announcement", share(lambda r: b"x"), _ROUND, _SETTLED),
    ),
    "share-sent-twice": (
        Row("same place, other bytes", same_id_other_bytes, _CONFLICT, recorded=True),
        Row("both shares to one server", the_others_share(EARLY), _CONFLICT, recorded=True),
        Row("after the lock", same_id_other_bytes, _CONFLICT, _LOCKED, recorded=True),
        Row("after the release", same_id_other_bytes, _CONFLICT, _RELEASED, recorded=True),
    ),
    "letters-of-every-size": (
        *(
            Row(f"a notice of {size} bytes", letter("refusal", size), _MALFORMED, _SETTLED)
            for size in (0, 1, 74, _NOTICE - 1)
        ),
        *(
            Row(f"a notice of {size} bytes", letter("refusal", size), _LARGE, _SETTLED)
            for size in (_NOTICE + 1, 2 * _NOTICE, _MEGABYTE)
        ),
        Row("a megabyte without a stated length", letter_without_a_length(_MEGABYTE), _LARGE, _SETTLED),
        Row("a model a byte too long", letter("checkpoint-0", _MODEL + 1, REQUESTER, _EVERYBODY), _LARGE),
        Row("fifty models in one", letter("checkpoint-0", 50 * _MODEL, REQUESTER, _EVERYBODY), _LARGE),
    ),
    "letters-of-made-up-topics": (
        *(Row(f"topic {topic}", letter(topic, _NOTICE), None) for topic in _TOPICS),
        Row("a model that no round made", letter("checkpoint-1", _MODEL, REQUESTER, _EVERYBODY), _ROUND),
        Row("a welcome to it", letter("welcome-1", 1000, REQUESTER, VICTIM), _ROUND),
        Row("a model for one site", letter("checkpoint-0", _MODEL, REQUESTER, VICTIM), _UNLISTED),
        Row("a decline of who is not listed", letter("decline-1", _NOTICE, STRANGER), _UNLISTED),
    ),
    "studies-with-a-dealer": (
        Row("a dealer's correlations", study_with(correlation_source="dealer"), _MALFORMED),
        Row("another roster", study_with(roster_digest="00" * 32), _MISMATCH),
        Row("created by a site", study_with(signer=VICTIM), _UNLISTED),
    ),
    "announcements-out-of-turn": (
        Row("another announcement of this round", announced(model_digest="22" * 32), _CONFLICT, recorded=True),
        Row("of a later round", announced(round=10**5), _ROUND, _SETTLED),
        Row("names unknown sites", announced(listed=(*SITES[1:], "nobody")), _MALFORMED, _SETTLED, says="nobody"),
        Row(
            "below the study's least number",
            announced(least_contributors=2),
            _MALFORMED,
            _SETTLED,
            says="below the study's 3",
        ),
        Row("fewer sites than it promises", too_few_listed, _MALFORMED, _SETTLED),
    ),
    "announcements-that-open-more": (
        Row("of another study", announced(study_digest="00" * 32), _MISMATCH, _SETTLED),
        Row("closes in centuries", announced(closes_at_s=10**10), _MALFORMED, _SETTLED, says="round_deadline_s"),
        *(
            Row(f"opens {opens.value}", announced(opens=opens), _MALFORMED, _SETTLED)
            for opens in (Needs.PAIRS, Needs.NORMS, Needs.INNER_PRODUCTS)
        ),
    ),
    "messages-in-the-requesters-place": (
        Row("announcement by a site", announced(signer=VICTIM), _UNSIGNED, _SETTLED),
        Row("ready for somebody else", ready_for_somebody_else, _UNLISTED),
        Row("queries of a site", queries(sender=VICTIM), _UNLISTED, _LOCKED),
        Row("a site as the other server", site_as_peer, _UNLISTED),
        Row("release by a site", release(signer=VICTIM), _UNSIGNED, _MEASURED),
    ),
    "messages-that-do-not-parse": (
        Row("malformed JSON", post(paths.ANNOUNCEMENT, b'{"message":'), _MALFORMED, says="JSON"),
        Row("JSON of another kind", post(paths.ANNOUNCEMENT, b"[1, 2]"), _MALFORMED),
        Row("five megabytes", post(paths.ANNOUNCEMENT, b" " * 5 * _MEGABYTE), _LARGE),
        Row("another version", wrong_version_of_a_study, E.OTHER_VERSION, says=_NO_VERSION),
        Row("unknown study", unknown_study, E.UNKNOWN_STUDY, says="elsewhere"),
    ),
    "queries-of-its-own-choice": (
        Row("wrong length", queries(length=SMALL + 1), _MALFORMED, _LOCKED, says="length"),
        Row("cut short", queries(short_by=8), _MALFORMED, _LOCKED, says="bytes"),
        Row("sites not in the set", queries(targets=(STRANGER, *SITES[2:])), _MALFORMED, _LOCKED),
        Row("one site only", queries(targets=(VICTIM,)), _MALFORMED, _LOCKED),
        Row("another challenge", queries(transcript_digest="00" * 32), E.TRANSCRIPT_MISMATCH, _LOCKED),
        Row("for the other side", queries(side=Side.A), _MALFORMED, _LOCKED),
        Row("before the lock", post(paths.QUERIES, b"x"), _ROUND),
        Row("other ones, later", queries(), _CONFLICT, _MEASURED, recorded=True),
    ),
    "release-of-two": (
        Row("below the announced number", release(*SITES[:3]), _MALFORMED, _MEASURED, says="at least 3"),
        Row("beyond the agreed set", release(*SITES, STRANGER), _MALFORMED, _MEASURED),
        Row("a site twice", release(*SITES, LAST), _MALFORMED, _MEASURED),
        Row("without the requester", release(*SITES[1:]), _MALFORMED, _MEASURED),
        Row("for another agreed set", release(agreed_set_digest="00" * 32), _MISMATCH, _MEASURED),
        Row("before the opening", release(), _ROUND, _LOCKED),
    ),
    "release-twice": (
        Row("at server A", release(*SITES[:4]), _CONFLICT, _RELEASED, recorded=True),
        Row("at server B", release(*SITES[:4], side=Side.B), _CONFLICT, _RELEASED, recorded=True),
        Row("of an older round", release_of_an_older_round, _ROUND),
    ),
    "output-for-an-outsider": (
        Row("not listed", lambda r: r.client(STRANGER).send(Side.A, "GET", r.path(paths.OUTPUT)), _UNLISTED, _RELEASED),
    ),
    "server-lies-about-who-contributed": (
        Row("a set that B does not hold", other_set_to_lock, E.PROTOCOL_VIOLATION),
        Row("another set after the lock", other_set_to_lock, _CONFLICT, _LOCKED),
    ),
    "server-sends-broken-frames": (
        Row("shorter than its length", as_peer(paths.PEER_EXTEND, b"\x00"), _MALFORMED),
        Row("says too much", as_peer(paths.PEER_EXTEND, b"\xff\xff\xff\xff{}"), _MALFORMED),
        Row("a broken message", as_peer(paths.PEER_EXTEND, b"\x00\x00\x00\x02{]"), _MALFORMED),
        Row("of another kind", as_peer(paths.PEER_PRODUCTS, _BATCH), _MALFORMED, _LOCKED),
        Row("for a session that is not open", as_peer(paths.PEER_EXTEND, _BATCH), E.UNKNOWN_RESOURCE),
        Row("other products for the same attempt", as_peer(paths.PEER_PRODUCTS, _PRODUCTS), _CONFLICT, _MEASURED),
    ),
    "requests-badly-signed": (
        Row("site not in the roster", site_not_in_the_roster, _UNSIGNED, says="does not match"),
        Row("signature of another key", signature_of_another_key, _UNSIGNED),
        Row("bad signature", bad_signature, _UNSIGNED),
        Row("missing signature", lambda r: r.sites.me.post(replace(_asked_view(r), headers=[])), _UNSIGNED),
        *(Row(f"{name} left out of the signature", component_left_out(name), _UNSIGNED) for name in _COMPONENTS),
        Row("a peer with another key", peer_with_another_key, _UNSIGNED),
    ),
    "requests-out-of-their-minute": (
        Row("expired signature", signed_at(-3600), _UNSIGNED, says="s ago"),
        Row("future-dated signature", signed_at(3600), _UNSIGNED, says="future"),
        Row("replayed signature", replayed, _UNSIGNED, says="nonce"),
        Row("replayed at the other server", replayed_at_the_other_server, _UNSIGNED),
    ),
    "requests-with-another-body": (
        Row("wrong content digest", wrong_content_digest, _UNSIGNED, says="digest"),
        Row("flat digest of a contribution", flat_digest_of_a_contribution, _UNSIGNED, says="sealed-digest"),
    ),
}
