"""Requests whose signature, time or body is wrong."""

from __future__ import annotations

import secrets
from dataclasses import replace

import httpx

from harness.adversaries import requests
from harness.adversaries.hostile.act import Act, Round
from harness.adversaries.scripted_rounds import VICTIM
from harness.adversaries.signed_client import Outgoing, SignedClient
from protocol.sharing import Side
from protocol.wire import paths
from protocol.wire.channel.signing import DigestField
from protocol.wire.commitment import head_digest
from protocol.wire.keyfile import PartyKeys

HOUR_S = 3600


def asked_view(r: Round, created: int | None = None) -> Outgoing:
    return r.sites.me.enclose(Side.A, "GET", r.path(paths.VIEW), created=created)


def with_headers(asked: Outgoing, headers: requests.Headers) -> Outgoing:
    return replace(asked, headers=headers)


def as_somebody(r: Round, keys: PartyKeys, side: Side, path: str, body: bytes | None) -> httpx.Response:
    client = SignedClient(r.federation, keys)
    try:
        return client.send(side, "GET" if body is None else "POST", path, body or b"")
    finally:
        client.close()


def unknown_study(r: Round) -> httpx.Response:
    return r.sites.me.send(Side.A, "GET", paths.fill(paths.VIEW, study="elsewhere"))


def site_not_in_the_roster(r: Round) -> httpx.Response:
    return as_somebody(r, requests.nobody(r.sites.me.keys, bytes(32)), Side.A, r.path(paths.VIEW), None)


def signature_of_another_key(r: Round) -> httpx.Response:
    keys = requests.impostor(r.client(VICTIM).keys, secrets.token_bytes(32))
    return as_somebody(r, keys, Side.A, r.path(paths.VIEW), None)


def bad_signature(r: Round) -> httpx.Response:
    asked = asked_view(r)
    return r.sites.me.post(with_headers(asked, requests.signature_bit_flipped(asked.headers)))


def missing_signature(r: Round) -> httpx.Response:
    return r.sites.me.post(with_headers(asked_view(r), []))


def expired_signature(r: Round) -> httpx.Response:
    return r.sites.me.post(asked_view(r, int(r.federation.clock.now()) - HOUR_S))


def future_signature(r: Round) -> httpx.Response:
    return r.sites.me.post(asked_view(r, int(r.federation.clock.now()) + HOUR_S))


def replayed_signature(r: Round) -> httpx.Response:
    asked = asked_view(r)
    assert r.sites.me.post(asked).status_code == 200
    return r.sites.me.post(asked)


def replayed_at_the_other_server(r: Round) -> httpx.Response:
    asked = asked_view(r)
    assert r.sites.me.post(asked).status_code == 200
    return r.sites.me.post(replace(asked, side=Side.B, url=r.federation.url(Side.B) + paths.SEALED))


def component_left_out(without: str) -> Act:
    def attack(r: Round) -> httpx.Response:
        keys = r.sites.me.keys

        def signed(left_out: str) -> Outgoing:
            asked, now = asked_view(r), int(r.federation.clock.now())
            digest = head_digest(asked.content)
            headers = requests.signed_over_less(
                asked.url, digest, keys.signing, keys.key_id, created=now, nonce=asked.between.nonce, without=left_out
            )
            return with_headers(asked, headers)

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
