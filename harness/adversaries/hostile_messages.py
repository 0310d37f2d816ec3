"""Messages that servers refuse, one function each; ``refused_messages.py`` says by which defence, and how."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import httpx
import numpy as np

from harness.adversaries import forgeries as forged
from harness.adversaries.scripted_rounds import EARLY, OTHER, REQUESTER, SITES, SMALL, STRANGER, VICTIM, RoundInMemory
from harness.adversaries.signed_client import Outgoing, SignedClient, there
from protocol.arithmetic.ring import to_bytes
from protocol.channel.commitment import head_digest
from protocol.channel.message import pack_frame
from protocol.channel.signing import DigestField
from protocol.messages import paths
from protocol.messages.bodies import Queries
from protocol.messages.control import AgreedSet, QueryHeader, ReadyNotice, sign
from protocol.messages.peer import BatchHeader, ProductsHeader
from protocol.parameters import PROTOCOL_VERSION
from protocol.roster.keyfile import PartyKeys
from protocol.sharing import Side

Round: TypeAlias = RoundInMemory
Act: TypeAlias = Callable[[Round], httpx.Response]
NO_VERSION = "moiety/999"
_HOUR_S = 3600
_SESSION = "00" * 32
BATCH = pack_frame(BatchHeader(session=_SESSION, batch=0, lengths=((1,),)))
PRODUCTS = pack_frame(ProductsHeader(transcript_digest=_SESSION, correlations=()))

# --- requests whose signature, time or body is wrong ------------------------------------------------------------------


def _asked_view(r: Round, created: int | None = None) -> Outgoing:
    return r.sites.me.enclose(Side.A, "GET", r.path(paths.VIEW), created=created)


def _as_somebody(
    r: Round, keys: PartyKeys, side: Side, path: str, body: bytes = b"", method: str = "GET"
) -> httpx.Response:
    client = SignedClient(r.federation, keys)
    try:
        return client.send(side, method, path, body)
    finally:
        client.close()


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


def missing_signature(r: Round) -> httpx.Response:
    return r.sites.me.post(replace(_asked_view(r), headers=[]))


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


def share(make: Callable[[Round], bytes], side: Side = Side.B, site: str = VICTIM) -> Act:
    """Send what ``make`` returns to ``side``, which holds the victim's vector when it is B."""
    return lambda r: r.put(site, side, make(r))


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


def in_another_name(r: Round) -> httpx.Response:
    return r.put(VICTIM, Side.A, r.honest[OTHER][Side.A].sealed())


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
    return r.sites.me.send(Side.A, "POST", paths.STUDIES, body.replace(PROTOCOL_VERSION.encode(), NO_VERSION.encode()))


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


def released(*sites: str, signer: str = REQUESTER, side: Side = Side.A, **changes: object) -> Act:
    """A release set over these sites, whoever signs it."""

    def attack(r: Round) -> httpx.Response:
        agreed = there(r.current.agreed_set, "agreed set").message
        chosen = forged.release_set(agreed, sites or r.agreed).model_copy(update=changes)
        body = sign(chosen, signer, r.client(signer).keys.signing).canonical()
        return r.sites.me.send(side, "PUT", r.path(paths.RELEASE_SET), body)

    return attack


def output_for_an_outsider(r: Round) -> httpx.Response:
    return r.client(STRANGER).send(Side.A, "GET", r.path(paths.OUTPUT))


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
        r,
        r.federation.keys("operator-a"),
        Side.B,
        r.path(template, session=_SESSION, batch=0, **values),
        body,
        "POST",
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
