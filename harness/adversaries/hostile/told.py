"""Control messages, queries and release sets, of the requester or of a site that plays it."""

from __future__ import annotations

import secrets

import httpx
import numpy as np

from harness.adversaries import forgeries as forged
from harness.adversaries import requester as malicious
from harness.adversaries.hostile.act import Act, Round
from harness.adversaries.scripted.there import there
from harness.adversaries.scripted_rounds import OTHER, REQUESTER, SITES, SMALL, STRANGER, VICTIM
from protocol.arithmetic.ring import to_bytes
from protocol.bodies.query import Queries
from protocol.parameters import PROTOCOL_VERSION
from protocol.sharing import Side
from protocol.wire import paths
from protocol.wire.authentic import sign
from protocol.wire.messages import AgreedSet, QueryHeader, ReadyNotice

NO_VERSION = "moiety/999"


def post(path: str, body: bytes, sender: str = REQUESTER, side: Side = Side.A) -> Act:
    return lambda r: r.client(sender).send(side, "POST", r.path(path), body)


def announced(**changes: object) -> Act:
    """The requester's announcement of this round, with other content."""

    def attack(r: Round) -> httpx.Response:
        changed = r.announcement.model_copy(update=changes)
        return r.announce_as_is(sign(changed, REQUESTER, r.sites.me.keys.signing))

    return attack


def announced_by_a_site(r: Round) -> httpx.Response:
    keys = r.client(VICTIM).keys
    return r.announce_as_is(sign(r.announcement, VICTIM, keys.signing))


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


def queries(
    sender: str = REQUESTER, elements: int | None = None, side: Side = Side.B, short_by: int = 0, **changes: object
) -> Act:
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


def released(
    *sites: str, signer: str = REQUESTER, side: Side = Side.A, failed: tuple[str, ...] = (), **changes: object
) -> Act:
    """A release set over these sites, whoever signs it."""

    def attack(r: Round) -> httpx.Response:
        agreed = there(r.current.agreed_set, "agreed set").message
        chosen = malicious.release_set(agreed, sites or r.agreed, failed).model_copy(update=changes)
        body = sign(chosen, signer, r.client(signer).keys.signing).canonical()
        return r.sites.me.send(side, "PUT", r.path(paths.RELEASE_SET), body)

    return attack


def output_for_an_outsider(r: Round) -> httpx.Response:
    return r.client(STRANGER).send(Side.A, "GET", r.path(paths.OUTPUT))


def next_round_with_an_old_release(r: Round) -> httpx.Response:
    agreed = malicious.release_set(
        AgreedSet(
            study_digest=r.sites.study.digest(),
            round=max(1, r.number - 1),
            attempt=1,
            announcement_digest=r.announcement.digest(),
            contributions=(),
        ),
        SITES,
    )
    body = sign(agreed, REQUESTER, r.sites.me.keys.signing).canonical()
    return r.sites.me.send(Side.A, "PUT", r.path(paths.RELEASE_SET, round=max(1, r.number - 1)), body)
