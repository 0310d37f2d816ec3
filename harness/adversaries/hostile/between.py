"""What server A, or somebody in its place, sends to server B."""

from __future__ import annotations

import secrets

import httpx

from harness.adversaries import requests
from harness.adversaries.hostile.act import Act, Round
from harness.adversaries.hostile.requests import as_somebody
from harness.adversaries.scripted_rounds import VICTIM
from harness.adversaries.signed_client import SignedClient
from protocol.sharing import Side
from protocol.wire import paths
from protocol.wire.authentic import sign
from protocol.wire.messages import AgreedSet
from protocol.wire.peer_messages import BatchHeader, ProductsHeader, pack_frame

SESSION = "00" * 32
BATCH = pack_frame(BatchHeader(session=SESSION, batch=0, lengths=((1,),)))
PRODUCTS = pack_frame(ProductsHeader(transcript_digest=SESSION, correlations=()))


def as_peer(template: str, body: bytes, **values: str | int) -> Act:
    """A frame that carries side A's own signature."""

    def attack(r: Round) -> httpx.Response:
        client = SignedClient(r.federation, r.federation.keys("operator-a"))
        try:
            return client.send(Side.B, "POST", r.path(template, session=SESSION, batch=0, **values), body)
        finally:
            client.close()

    return attack


def peer_with_another_key(r: Round) -> httpx.Response:
    keys = requests.impostor(r.federation.keys("operator-a"), secrets.token_bytes(32))
    return as_somebody(r, keys, Side.B, r.path(paths.PEER_COLLECTED), None)


def site_as_peer(r: Round) -> httpx.Response:
    return as_somebody(r, r.client(VICTIM).keys, Side.B, r.path(paths.PEER_COLLECTED), None)


def other_set_to_lock(r: Round) -> httpx.Response:
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
