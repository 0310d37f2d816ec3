"""Hostile messages to running servers, one function each; ``hostile_rows`` says what must come back."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import replace

import httpx
import numpy as np

from harness.adversaries import contributions as forged
from harness.adversaries import requester as malicious
from harness.adversaries import requests
from harness.adversaries.scripted.rounds import (
    EARLY,
    OTHER,
    REQUESTER,
    SITES,
    SMALL,
    STRANGER,
    VICTIM,
    OpenRound,
)
from harness.adversaries.scripted.signed_client import Outgoing, SignedClient
from protocol.arithmetic.ring import to_bytes
from protocol.bodies.query import Queries
from protocol.sharing import Side
from protocol.wire import paths
from protocol.wire.authentic import sign
from protocol.wire.channel.signing import DigestField
from protocol.wire.commitment import head_digest
from protocol.wire.keyfile import PartyKeys
from protocol.wire.messages import AgreedSet, QueryHeader, ReadyNotice
from protocol.wire.peer_messages import BatchHeader, ProductsHeader, pack_frame

Attack = Callable[[OpenRound], httpx.Response]
HOUR_S = 3600
SESSION = "00" * 32


# --- requests ---------------------------------------------------------------------------------------------------------


def asked_view(r: OpenRound, created: int | None = None) -> Outgoing:
    return r.sites.me.enclose(Side.A, "GET", r.path(paths.VIEW), created=created)


def with_headers(asked: Outgoing, headers: requests.Headers) -> Outgoing:
    return replace(asked, headers=headers)


def as_somebody(r: OpenRound, keys: PartyKeys, side: Side, path: str, body: bytes | None) -> httpx.Response:
    client = SignedClient(r.federation, keys)
    try:
        return client.send(side, "GET" if body is None else "POST", path, body or b"")
    finally:
        client.close()


def unknown_study(r: OpenRound) -> httpx.Response:
    return r.sites.me.send(Side.A, "GET", paths.fill(paths.VIEW, study="elsewhere"))


def site_not_in_the_roster(r: OpenRound) -> httpx.Response:
    return as_somebody(r, requests.nobody(r.sites.me.keys, bytes(32)), Side.A, r.path(paths.VIEW), None)


def signature_of_another_key(r: OpenRound) -> httpx.Response:
    keys = requests.impostor(r.client(VICTIM).keys, secrets.token_bytes(32))
    return as_somebody(r, keys, Side.A, r.path(paths.VIEW), None)


def bad_signature(r: OpenRound) -> httpx.Response:
    asked = asked_view(r)
    return r.sites.me.post(with_headers(asked, requests.signature_bit_flipped(asked.headers)))


def missing_signature(r: OpenRound) -> httpx.Response:
    return r.sites.me.post(with_headers(asked_view(r), []))


def expired_signature(r: OpenRound) -> httpx.Response:
    return r.sites.me.post(asked_view(r, int(time.time()) - HOUR_S))


def future_signature(r: OpenRound) -> httpx.Response:
    return r.sites.me.post(asked_view(r, int(time.time()) + HOUR_S))


def replayed_signature(r: OpenRound) -> httpx.Response:
    asked = asked_view(r)
    assert r.sites.me.post(asked).status_code == 200
    return r.sites.me.post(asked)


def replayed_at_the_other_server(r: OpenRound) -> httpx.Response:
    asked = asked_view(r)
    assert r.sites.me.post(asked).status_code == 200
    return r.sites.me.post(replace(asked, side=Side.B, url=r.federation.url(Side.B) + paths.SEALED))


def component_left_out(without: str) -> Attack:
    def attack(r: OpenRound) -> httpx.Response:
        keys = r.sites.me.keys

        def signed(left_out: str) -> Outgoing:
            asked, now = asked_view(r), int(time.time())
            digest = head_digest(asked.content)
            headers = requests.signed_over_less(
                asked.url, digest, keys.signing, keys.key_id, created=now, nonce=asked.between.nonce, without=left_out
            )
            return with_headers(asked, headers)

        assert r.sites.me.post(signed("")).status_code == 200
        return r.sites.me.post(signed(without))

    return attack


def wrong_content_digest(r: OpenRound) -> httpx.Response:
    path, client = r.path(paths.CONTRIBUTION), r.client(VICTIM)
    body = r.honest[VICTIM][Side.A].sealed()
    return client.post(client.enclose(Side.A, "PUT", path, r.fresh(VICTIM)[Side.A].sealed(), stated=body))


def flat_digest_of_a_contribution(r: OpenRound) -> httpx.Response:
    """The share is sound, but stated by the digest that other requests take."""
    path, client = r.path(paths.CONTRIBUTION), r.client(VICTIM)
    body = r.honest[VICTIM][Side.A].sealed()
    return client.post(client.enclose(Side.A, "PUT", path, body, digest_field=DigestField.CONTENT))


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


def altered_header(r: OpenRound) -> bytes:
    """The sealed share of one header under another, just as acceptable one."""
    parts = r.honest[VICTIM][Side.B]
    other = forged.with_header(parts, commitment_a="33" * 32)
    sealed = parts.sealed()
    return sealed.replace(parts.header, other.header)


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
    return r.sites.me.send(Side.A, "POST", paths.STUDIES, body.replace(b'"moiety/2"', b'"moiety/3"'))


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
        honest = Queries(r.current.transcript.message.digest(), Side.B, targets, SMALL).header(1)
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
