"""The table of hostile messages that a server refuses: who sends what, when, and what comes back."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

import httpx
import numpy as np

from harness.adversaries import contributions as forged
from harness.adversaries import requester as malicious
from harness.adversaries import requests
from protocol.arithmetic.ring import to_bytes
from protocol.errors import ErrorCode
from protocol.sharing import Side
from protocol.wire import paths
from protocol.wire.authentic import sign
from protocol.wire.messages import AgreedSet, QueryHeader, ReadyNotice, ShareKind
from protocol.wire.peer_messages import BatchHeader, ProductsHeader, pack_frame
from tests.adversarial.running_pair import (
    EARLY,
    LARGE,
    LAST,
    OTHER,
    REQUESTER,
    SITES,
    SMALL,
    STRANGER,
    VICTIM,
    OpenRound,
    Phase,
)
from tests.integration.federation import SignedClient

Attack = Callable[[OpenRound], httpx.Response]
HOUR_S = 3600
SESSION = "00" * 32


@dataclass(frozen=True)
class Row:
    """One hostile message. ``recorded``: the server keeps a note of who sent it."""

    name: str
    attack: Attack
    status: int
    code: ErrorCode
    phase: Phase = Phase.COLLECTING
    recorded: bool = False
    dimension: int = SMALL
    says: str = ""


# --- requests ---------------------------------------------------------------------------------------------------------


def get_view(r: OpenRound, client: SignedClient, headers: requests.Headers | None = None) -> httpx.Response:
    return client.send(Side.A, "GET", r.path(paths.VIEW), headers=headers)


def view_headers(r: OpenRound, created: int | None = None) -> requests.Headers:
    return r.sites.me.headers("GET", r.federation.url(Side.A) + r.path(paths.VIEW), b"", created=created)


def as_somebody(r: OpenRound, keys: requests.PartyKeys, side: Side, path: str, body: bytes | None) -> httpx.Response:
    client = SignedClient(r.federation, keys)
    try:
        return client.send(side, "GET" if body is None else "POST", path, body or b"")
    finally:
        client.close()


def unknown_study(r: OpenRound) -> httpx.Response:
    return r.sites.me.send(Side.A, "GET", paths.fill(paths.VIEW, study="elsewhere"))


def site_not_in_the_roster(r: OpenRound) -> httpx.Response:
    return as_somebody(r, requests.nobody(r.sites.me.keys), Side.A, r.path(paths.VIEW), None)


def signature_of_another_key(r: OpenRound) -> httpx.Response:
    keys = requests.impostor(r.client(VICTIM).keys, secrets.token_bytes(32))
    return as_somebody(r, keys, Side.A, r.path(paths.VIEW), None)


def bad_signature(r: OpenRound) -> httpx.Response:
    return get_view(r, r.sites.me, requests.signature_bit_flipped(view_headers(r)))


def missing_signature(r: OpenRound) -> httpx.Response:
    return get_view(r, r.sites.me, [])


def expired_signature(r: OpenRound) -> httpx.Response:
    return get_view(r, r.sites.me, view_headers(r, int(time.time()) - HOUR_S))


def future_signature(r: OpenRound) -> httpx.Response:
    return get_view(r, r.sites.me, view_headers(r, int(time.time()) + HOUR_S))


def replayed_signature(r: OpenRound) -> httpx.Response:
    headers = view_headers(r)
    assert get_view(r, r.sites.me, headers).status_code == 200
    return get_view(r, r.sites.me, headers)


def replayed_at_the_other_server(r: OpenRound) -> httpx.Response:
    headers = view_headers(r)
    assert get_view(r, r.sites.me, headers).status_code == 200
    return r.sites.me.send(Side.B, "GET", r.path(paths.VIEW), headers=headers)


def component_left_out(without: str) -> Attack:
    def attack(r: OpenRound) -> httpx.Response:
        keys, url = r.sites.me.keys, r.federation.url(Side.A) + r.path(paths.VIEW)
        digest = hashlib.sha256(b"").digest()

        def signed(left_out: str) -> requests.Headers:
            made = {"created": int(time.time()), "nonce": secrets.token_urlsafe(18)}
            return requests.signed_over_less("GET", url, digest, keys.signing, keys.name, without=left_out, **made)

        assert get_view(r, r.sites.me, signed("")).status_code == 200
        return get_view(r, r.sites.me, signed(without))

    return attack


def wrong_content_digest(r: OpenRound) -> httpx.Response:
    path, client = r.path(paths.CONTRIBUTION), r.client(VICTIM)
    body = r.honest[VICTIM][Side.A].sealed()
    headers = client.headers("PUT", r.federation.url(Side.A) + path, body)
    return client.send(Side.A, "PUT", path, r.fresh(VICTIM)[Side.A].sealed(), headers)


# --- contributions ----------------------------------------------------------------------------------------------------


def share(make: Callable[[OpenRound], bytes], side: Side = Side.B, site: str = VICTIM) -> Attack:
    """Send what ``make`` returns to ``side``, which holds the victim's vector when it is B."""
    return lambda r: r.put(site, side, make(r))


def header(side: Side = Side.B, **changes: object) -> Attack:
    return share(lambda r: forged.with_header(r.honest[VICTIM][side], **changes).sealed(), side)


def vector_of(r: OpenRound, n: int) -> forged.Parts:
    """The victim's vector share at B, of another length, sound otherwise."""
    shorter = r.fresh(VICTIM, np.resize(r.x[VICTIM], n))
    return forged.with_header(shorter[Side.B], length=r.x[VICTIM].size)


def both_shares_to_one_server(r: OpenRound) -> httpx.Response:
    return r.put(EARLY, Side.A, forged.both_shares_to_one_server(r.honest[EARLY], Side.A))


def first_the_others_share(r: OpenRound) -> httpx.Response:
    return r.put(VICTIM, Side.A, forged.both_shares_to_one_server(r.honest[VICTIM], Side.A))


def in_another_name(r: OpenRound) -> httpx.Response:
    return r.put(VICTIM, Side.A, r.honest[OTHER][Side.A].sealed())


def for_another_announcement(r: OpenRound) -> httpx.Response:
    told = r.announcement.model_copy(update={"weight_list_digest": "22" * 32})
    return r.put(VICTIM, Side.A, r.fresh(VICTIM, announcement=told)[Side.A].sealed())


def same_id_other_bytes(r: OpenRound) -> httpx.Response:
    return r.put(EARLY, Side.A, r.fresh(EARLY)[Side.A].sealed())


# --- control messages -------------------------------------------------------------------------------------------------


def post(path: str, body: bytes, sender: str = REQUESTER, side: Side = Side.A) -> Attack:
    return lambda r: r.client(sender).send(side, "POST", r.path(path), body)


def announced(**changes: object) -> Attack:
    """The requester's announcement of this round, with other content."""

    def attack(r: OpenRound) -> httpx.Response:
        changed = r.announcement.model_copy(update=changes)
        return r.announce_as_is(sign(changed, REQUESTER, r.sites.me.keys.signing))

    return attack


def announced_by_a_site(r: OpenRound) -> httpx.Response:
    keys = r.client(VICTIM).keys
    return r.announce_as_is(sign(r.announcement, VICTIM, keys.signing))


def too_few_listed(r: OpenRound) -> httpx.Response:
    body = sign(r.announcement, REQUESTER, r.sites.me.keys.signing).canonical()
    fewer = body.replace(b',"hospital-3","hospital-4"]', b"]")
    assert fewer != body
    return r.sites.me.send(Side.A, "POST", r.path(paths.ANNOUNCEMENT), fewer)


def wrong_version_of_a_study(r: OpenRound) -> httpx.Response:
    body = sign(r.sites.study, REQUESTER, r.sites.me.keys.signing).canonical()
    return r.sites.me.send(Side.A, "POST", paths.STUDIES, body.replace(b'"moiety/1"', b'"moiety/2"'))


def ready_for_somebody_else(r: OpenRound) -> httpx.Response:
    notice = ReadyNotice(study_digest=r.sites.study.digest(), site=OTHER).canonical()
    return r.client(VICTIM).send(Side.A, "POST", r.path(paths.READY), notice)


# --- between the servers ----------------------------------------------------------------------------------------------


def as_peer(template: str, body: bytes, **values: str | int) -> Attack:
    """A frame that carries side A's own signature."""

    def attack(r: OpenRound) -> httpx.Response:
        client = r.federation.client("operator-a")
        try:
            return client.send(Side.B, "POST", r.path(template, session=SESSION, batch=0, **values), body)
        finally:
            client.close()

    return attack


def peer_with_another_key(r: OpenRound) -> httpx.Response:
    keys = requests.impostor(r.federation.keys("operator-a"), secrets.token_bytes(32))
    return as_somebody(r, keys, Side.B, r.path(paths.PEER_COLLECTED), None)


def site_as_peer(r: OpenRound) -> httpx.Response:
    return as_somebody(r, r.client(VICTIM).keys, Side.B, r.path(paths.PEER_COLLECTED), None)


def other_set_to_lock(r: OpenRound) -> httpx.Response:
    empty = AgreedSet(
        study_digest=r.sites.study.digest(),
        round=r.number,
        attempt=1,
        announcement_digest=r.announcement.digest(),
        contributions=(),
    )
    signed = sign(empty, "operator-a", r.federation.keys("operator-a").signing)
    body = b'{"agreed_set":' + signed.canonical() + b',"commitment_a":"' + b"00" * 32 + b'"}'
    return as_peer(paths.PEER_LOCK, body)(r)


BATCH = pack_frame(BatchHeader(session=SESSION, batch=0, lengths=((1,),)))
PRODUCTS = pack_frame(ProductsHeader(transcript_digest=SESSION, correlations=()))


# --- queries ----------------------------------------------------------------------------------------------------------


def queries(
    sender: str = REQUESTER, elements: int | None = None, side: Side = Side.B, short_by: int = 0, **changes: object
) -> Attack:
    """The vector half of the requester's queries for B, with another header or length."""

    def attack(r: OpenRound) -> httpx.Response:
        assert r.current.transcript is not None
        targets = tuple(site for site in r.agreed if site != REQUESTER)
        values: dict[str, object] = {
            "transcript_digest": r.current.transcript.message.digest(),
            "side": Side.B,
            "share_kind": ShareKind.VECTOR,
            "targets": targets,
            "length": SMALL,
        }
        stated = QueryHeader(**(values | changes))  # type: ignore[arg-type]
        body = to_bytes(np.zeros(SMALL * len(targets), dtype=np.uint64))
        parts = forged.Parts(
            stated.canonical(),
            body[: len(body) - short_by],
            forged.sealing_key(r.federation.roster, Side.B),
            secrets.token_bytes(32),
            secrets.token_bytes(32),
        )
        return r.client(sender).send(side, "POST", r.path(paths.QUERIES), parts.sealed())

    return attack


# --- release sets -----------------------------------------------------------------------------------------------------


def released(
    *sites: str, signer: str = REQUESTER, side: Side = Side.A, failed: tuple[str, ...] = (), **changes: object
) -> Attack:
    """A release set over these sites, whoever signs it."""

    def attack(r: OpenRound) -> httpx.Response:
        assert r.current.agreed_set is not None
        chosen = malicious.release_set(r.current.agreed_set.message, sites or r.agreed, failed).model_copy(
            update=changes
        )
        body = sign(chosen, signer, r.client(signer).keys.signing).canonical()
        return r.sites.me.send(side, "PUT", r.path(paths.RELEASE_SET), body)

    return attack


def output_for_an_outsider(r: OpenRound) -> httpx.Response:
    return r.client(STRANGER).send(Side.A, "GET", r.path(paths.OUTPUT))


def next_round_with_an_old_release(r: OpenRound) -> httpx.Response:
    agreed = malicious.release_set(
        AgreedSet(
            study_digest=r.sites.study.digest(),
            round=r.number - 1,
            attempt=1,
            announcement_digest=r.announcement.digest(),
            contributions=(),
        ),
        SITES,
    )
    body = sign(agreed, REQUESTER, r.sites.me.keys.signing).canonical()
    return r.sites.me.send(Side.A, "PUT", r.path(paths.RELEASE_SET, round=r.number - 1), body)


E_ = ErrorCode
COMPONENTS = ("@method", "@target-uri", "content-digest", "created", "keyid", "alg", "nonce", "tag")

REQUEST_ROWS = (
    Row("unknown study", unknown_study, 404, E_.UNKNOWN_STUDY, says="elsewhere"),
    Row("site not in the roster", site_not_in_the_roster, 401, E_.BAD_SIGNATURE, says="nobody"),
    Row("signature of another key", signature_of_another_key, 401, E_.BAD_SIGNATURE),
    Row("bad signature", bad_signature, 401, E_.BAD_SIGNATURE),
    Row("missing signature", missing_signature, 401, E_.BAD_SIGNATURE),
    Row("expired signature", expired_signature, 401, E_.BAD_SIGNATURE, says="s ago"),
    Row("future-dated signature", future_signature, 401, E_.BAD_SIGNATURE, says="future"),
    Row("replayed signature", replayed_signature, 401, E_.BAD_SIGNATURE, says="nonce"),
    Row("request replayed at the other server", replayed_at_the_other_server, 401, E_.BAD_SIGNATURE),
    *(Row(f"{name} left out of the signature", component_left_out(name), 401, E_.BAD_SIGNATURE) for name in COMPONENTS),
    Row("wrong content digest", wrong_content_digest, 401, E_.BAD_SIGNATURE, says="digest"),
)

CONTRIBUTION_ROWS = (
    Row(
        "share sealed to the wrong key",
        share(lambda r: forged.sealed_to_the_wrong_key(r.honest[VICTIM], Side.B)),
        400,
        E_.BROKEN_SEAL,
    ),
    Row(
        "share for the other side",
        share(lambda r: r.honest[VICTIM][Side.A].sealed()),
        400,
        E_.MALFORMED_MESSAGE,
        says="side 'a'",
    ),
    Row("both shares to one server", both_shares_to_one_server, 409, E_.CONFLICTING_MESSAGE, recorded=True),
    Row("the other side's share first", first_the_others_share, 400, E_.MALFORMED_MESSAGE, says="vector"),
    Row(
        "wrong commitment",
        share(lambda r: forged.another_share_than_committed(r.honest[VICTIM], Side.B)),
        400,
        E_.COMMITMENT_MISMATCH,
    ),
    Row("wrong length in the header", header(length=SMALL + 1), 400, E_.MALFORMED_MESSAGE),
    Row("vector too short", share(lambda r: vector_of(r, SMALL - 1).sealed()), 400, E_.MALFORMED_MESSAGE, says="152"),
    Row("vector too long", share(lambda r: vector_of(r, SMALL + 1).sealed()), 400, E_.MALFORMED_MESSAGE, says="168"),
    Row("truncated", share(lambda r: forged.truncated(r.honest[VICTIM][Side.B].sealed())), 400, E_.BROKEN_SEAL),
    Row("over-long", share(lambda r: forged.over_long(r.honest[VICTIM][Side.B].sealed())), 400, E_.BROKEN_SEAL),
    Row(
        "a megabyte over-long",
        share(lambda r: forged.over_long(r.honest[VICTIM][Side.B].sealed(), 2**20)),
        413,
        E_.TOO_LARGE,
    ),
    Row("bit flipped", share(lambda r: forged.bit_flipped(r.honest[VICTIM][Side.B].sealed())), 400, E_.BROKEN_SEAL),
    Row("header changed after sealing", share(lambda r: altered_header(r)), 400, E_.BROKEN_SEAL),
    Row("not sealed at all", share(lambda r: b"\x00" * 3000), 400, E_.MALFORMED_MESSAGE),
    Row("empty body", share(lambda r: b""), 400, E_.BROKEN_SEAL),
    Row(
        "chunks swapped",
        share(lambda r: forged.chunks_swapped(r.honest[VICTIM][Side.B])),
        400,
        E_.BROKEN_SEAL,
        dimension=LARGE,
    ),
    Row(
        "last chunk missing",
        share(lambda r: forged.last_chunk_missing(r.honest[VICTIM][Side.B])),
        400,
        E_.BROKEN_SEAL,
        dimension=LARGE,
        says="last chunk",
    ),
    Row("wrong round in the header", header(round=999), 409, E_.WRONG_ROUND),
    Row("wrong attempt in the header", header(attempt=2), 409, E_.WRONG_ROUND),
    Row("wrong round in the address", lambda r: r.put(VICTIM, Side.A, b"x", round=999), 409, E_.WRONG_ROUND),
    Row("wrong protocol version", header(version="moiety/2"), 400, E_.MALFORMED_MESSAGE, says="version"),
    Row("unknown field in the header", header(note="x"), 400, E_.MALFORMED_MESSAGE, says="note"),
    Row("another study's digest", header(study_digest="00" * 32), 409, E_.ANNOUNCEMENT_MISMATCH),
    Row("bound to another announcement", for_another_announcement, 409, E_.ANNOUNCEMENT_MISMATCH),
    Row("in another site's name", in_another_name, 403, E_.NOT_LISTED),
    Row("a site that is not listed", lambda r: r.put(STRANGER, Side.A, b"x"), 403, E_.NOT_LISTED, says="is not listed"),
    Row("same id with other bytes", same_id_other_bytes, 409, E_.CONFLICTING_MESSAGE, recorded=True),
    Row("after the lock, other bytes", same_id_other_bytes, 409, E_.CONFLICTING_MESSAGE, Phase.LOCKED, recorded=True),
    Row("after the lock, a late site", lambda r: r.put(STRANGER, Side.A, b"x"), 409, E_.WRONG_ROUND, Phase.LOCKED),
    Row("before the announcement", share(lambda r: b"x"), 409, E_.WRONG_ROUND, Phase.SETTLED),
)


def altered_header(r: OpenRound) -> bytes:
    """The sealed share of one header under another, just as acceptable one."""
    parts = r.honest[VICTIM][Side.B]
    other = forged.with_header(parts, commitment_a="33" * 32)
    sealed = parts.sealed()
    return sealed.replace(parts.header, other.header)


CONTROL_ROWS = (
    Row("malformed JSON", post(paths.ANNOUNCEMENT, b'{"message":'), 400, E_.MALFORMED_MESSAGE, says="JSON"),
    Row("JSON of another kind", post(paths.ANNOUNCEMENT, b"[1, 2]"), 400, E_.MALFORMED_MESSAGE),
    Row("five megabytes of JSON", post(paths.ANNOUNCEMENT, b" " * 5 * 2**20), 413, E_.TOO_LARGE),
    Row("wrong version of a study", wrong_version_of_a_study, 400, E_.MALFORMED_MESSAGE, says="version"),
    Row("announcement by a site", announced_by_a_site, 401, E_.BAD_SIGNATURE, Phase.SETTLED),
    Row(
        "another announcement of this round",
        announced(model_digest="22" * 32),
        409,
        E_.CONFLICTING_MESSAGE,
        recorded=True,
    ),
    Row("announcement of a later round", announced(round=10**5), 409, E_.WRONG_ROUND, Phase.SETTLED),
    Row(
        "announcement that names unknown sites",
        announced(listed=(*SITES[1:], "nobody")),
        409,
        E_.CONFLICTING_MESSAGE,
        Phase.SETTLED,
        recorded=True,
        says="nobody",
    ),
    Row(
        "announcement below the study's least number",
        announced(least_contributors=2),
        409,
        E_.CONFLICTING_MESSAGE,
        Phase.SETTLED,
        recorded=True,
        says="below the study's 3",
    ),
    Row(
        "announcement with fewer sites than it promises",
        too_few_listed,
        400,
        E_.MALFORMED_MESSAGE,
        Phase.SETTLED,
    ),
    Row(
        "announcement of another study",
        announced(study_digest="00" * 32),
        409,
        E_.ANNOUNCEMENT_MISMATCH,
        Phase.SETTLED,
    ),
    Row("ready for somebody else", ready_for_somebody_else, 403, E_.NOT_LISTED),
)

PEER_ROWS = (
    Row("a peer with another key", peer_with_another_key, 401, E_.BAD_SIGNATURE),
    Row("a site as peer", site_as_peer, 403, E_.NOT_LISTED),
    Row("frame shorter than its length field", as_peer(paths.PEER_EXTEND, b"\x00"), 400, E_.MALFORMED_MESSAGE),
    Row("frame that says too much", as_peer(paths.PEER_EXTEND, b"\xff\xff\xff\xff{}"), 400, E_.MALFORMED_MESSAGE),
    Row("frame with a broken message", as_peer(paths.PEER_EXTEND, b"\x00\x00\x00\x02{]"), 400, E_.MALFORMED_MESSAGE),
    Row("frame of another kind", as_peer(paths.PEER_PRODUCTS, BATCH), 400, E_.MALFORMED_MESSAGE, Phase.LOCKED),
    Row("frame for a session that is not open", as_peer(paths.PEER_EXTEND, BATCH), 404, E_.UNKNOWN_RESOURCE),
    Row(
        "other products for the same attempt",
        as_peer(paths.PEER_PRODUCTS, PRODUCTS),
        409,
        E_.CONFLICTING_MESSAGE,
        Phase.MEASURED,
    ),
    Row("a lock on a set that B does not hold", other_set_to_lock, 409, E_.PROTOCOL_VIOLATION),
    Row("another set for a round that is locked", other_set_to_lock, 409, E_.CONFLICTING_MESSAGE, Phase.LOCKED),
)

QUERY_ROWS = (
    Row("queries of a wrong length", queries(length=SMALL + 1), 400, E_.MALFORMED_MESSAGE, Phase.LOCKED, says="length"),
    Row("queries cut short", queries(short_by=8), 400, E_.MALFORMED_MESSAGE, Phase.LOCKED, says="bytes"),
    Row(
        "queries for sites not in the set",
        queries(targets=(STRANGER, *SITES[2:])),
        400,
        E_.MALFORMED_MESSAGE,
        Phase.LOCKED,
    ),
    Row("queries for one site only", queries(targets=(VICTIM,)), 400, E_.MALFORMED_MESSAGE, Phase.LOCKED),
    Row(
        "queries for another challenge",
        queries(transcript_digest="00" * 32),
        409,
        E_.TRANSCRIPT_MISMATCH,
        Phase.LOCKED,
    ),
    Row("queries for the other side", queries(side=Side.A), 400, E_.MALFORMED_MESSAGE, Phase.LOCKED),
    Row("queries of a site", queries(sender=VICTIM), 403, E_.NOT_LISTED, Phase.LOCKED),
    Row("queries before the lock", post(paths.QUERIES, b"x"), 409, E_.WRONG_ROUND, Phase.COLLECTING),
    Row("other queries for the same attempt", queries(), 409, E_.CONFLICTING_MESSAGE, Phase.MEASURED, recorded=True),
)

RELEASE_ROWS = (
    Row(
        "release set beyond the agreed set",
        released(*SITES, STRANGER),
        400,
        E_.MALFORMED_MESSAGE,
        Phase.MEASURED,
    ),
    Row("release set naming a site twice", released(*SITES, LAST), 400, E_.MALFORMED_MESSAGE, Phase.MEASURED),
    Row(
        "release set below the announced number",
        released(*SITES[:3]),
        400,
        E_.MALFORMED_MESSAGE,
        Phase.MEASURED,
        says="at least 3",
    ),
    Row("release set without the requester", released(*SITES[1:]), 400, E_.MALFORMED_MESSAGE, Phase.MEASURED),
    Row(
        "release set for another agreed set",
        released(agreed_set_digest="00" * 32),
        409,
        E_.ANNOUNCEMENT_MISMATCH,
        Phase.MEASURED,
    ),
    Row("release set signed by a site", released(signer=VICTIM), 401, E_.BAD_SIGNATURE, Phase.MEASURED),
    Row("release set before the opening", released(), 409, E_.WRONG_ROUND, Phase.LOCKED),
    Row(
        "release of a contribution that was released",
        released(*SITES[:4]),
        409,
        E_.CONFLICTING_MESSAGE,
        Phase.RELEASED,
        recorded=True,
    ),
    Row(
        "release of it at the other server",
        released(*SITES[:4], side=Side.B),
        409,
        E_.CONFLICTING_MESSAGE,
        Phase.RELEASED,
        recorded=True,
    ),
    Row("release of an older round", next_round_with_an_old_release, 409, E_.WRONG_ROUND),
    Row(
        "another contribution after the release",
        same_id_other_bytes,
        409,
        E_.CONFLICTING_MESSAGE,
        Phase.RELEASED,
        recorded=True,
    ),
    Row("output for a site that was not listed", output_for_an_outsider, 403, E_.NOT_LISTED, Phase.RELEASED),
)

ROWS = REQUEST_ROWS + CONTRIBUTION_ROWS + CONTROL_ROWS + PEER_ROWS + QUERY_ROWS + RELEASE_ROWS
