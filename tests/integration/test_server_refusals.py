"""Refusals that no attack tries, and requests that are sent twice; the round goes on with the others.

What a hostile party sends is in the catalogue of attacks: ``requests-...``, ``share-...``, ``messages-...``,
``announcements-...``, ``release-...`` and ``letters-...``.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterator
from dataclasses import replace

import httpx
import numpy as np
import pytest

from harness.attack.forgeries import nobody
from harness.attack.scripted_requester import ScriptedRequester, make_study
from harness.attack.signed_client import SignedClient
from protocol.channel.sealing import sealed_length, sealed_small_length
from protocol.messages import paths
from protocol.messages.control import Announcement, sign
from protocol.messages.letter import NOTICE_BYTES
from protocol.messages.paths import EVERY_SITE
from protocol.sharing import Side
from tests.integration.test_server_round import NUMERATORS, SITES, D, expected_sum, updates
from tests.kit.processes import Federation, servers_in_memory

EXTRA = "hospital-9"
PROBLEM = "application/problem+json"


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with servers_in_memory(tmp_path_factory.mktemp("refusals"), [*SITES, EXTRA]) as running:
        yield running


@pytest.fixture(scope="module")
def sites(federation: Federation) -> Iterator[ScriptedRequester]:
    made = ScriptedRequester(federation, make_study(federation, D))
    made.create()
    yield made
    made.close()


@pytest.fixture(scope="module")
def first_round(sites: ScriptedRequester) -> Announcement:
    """Round 1 lists everybody but the extra site, and stays open for contributions."""
    announcement = sites.announcement(1, listed=SITES[1:])
    sites.announce(announcement)
    return announcement


def problem(response: httpx.Response, status: int, code: str) -> str:
    """The detail, after checking that this is the expected problem."""
    assert response.headers.get("content-type", PROBLEM) == PROBLEM, "of an answer in the open"
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"type", "title", "status", "detail", "code"}
    assert (body["status"], body["code"]) == (status, code), body
    return str(body["detail"])


def refusals(federation: Federation) -> list[tuple[str, str]]:
    with sqlite3.connect(federation.folder / "operator-a" / "data" / "server.db") as database:
        return list(database.execute("select party, code from refusals"))


def test_a_stranger_does_not_learn_who_is_in_the_roster(sites: ScriptedRequester) -> None:
    unknown = SignedClient(sites.federation, nobody(sites.me.keys, bytes(32)))
    known = SignedClient(sites.federation, replace(sites.me.keys, name=SITES[2]))
    texts = [problem(one.send(Side.A, "GET", paths.STUDIES), 401, "bad_signature") for one in (unknown, known)]
    assert texts[0] == texts[1]
    unknown.close()
    known.close()


def test_side_a_is_not_called(sites: ScriptedRequester) -> None:
    operator = sites.federation.client("operator-b")
    detail = problem(operator.send(Side.A, "GET", "/v1/peer/sessions/" + "00" * 32), 403, "not_listed")
    assert "side A" in detail
    problem(operator.send(Side.A, "GET", paths.STUDIES), 403, "not_listed")
    operator.close()


def test_no_such_route_and_malformed_parameters(sites: ScriptedRequester) -> None:
    problem(sites.me.send(Side.A, "GET", "/v1/nothing"), 404, "unknown_resource")
    problem(sites.me.send(Side.A, "PUT", paths.STUDIES), 405, "unknown_resource")
    detail = problem(sites.me.send(Side.A, "GET", sites.path(paths.VIEW) + "?wait_s=soon"), 400, "malformed_message")
    assert "wait_s" in detail


def test_the_same_study_again_and_another_of_its_name(sites: ScriptedRequester) -> None:
    assert sites.create() == sites.create()
    other = make_study(sites.federation, D, rounds=7)
    body = sign(other, sites.requester, sites.me.keys.signing).canonical()
    problem(sites.me.send(Side.A, "POST", paths.STUDIES, body), 409, "conflicting_message")
    assert ("hospital-0", "conflicting_message") in refusals(sites.federation)


def mail(sites: ScriptedRequester, topic: str, recipient: str) -> str:
    return sites.path(paths.MAIL, topic=topic, recipient=recipient)


def test_mail(sites: ScriptedRequester, first_round: Announcement) -> None:
    reader, other = sites.clients[SITES[1]], sites.clients[SITES[2]]
    path = mail(sites, "weights-1", SITES[1])
    sites.me.ok(Side.A, "PUT", path, b"sealed")
    sites.me.ok(Side.A, "PUT", path, b"sealed")
    problem(sites.me.send(Side.A, "PUT", path, b"other bytes"), 409, "conflicting_message")
    assert reader.ok(Side.A, "GET", path) == b"sealed"
    problem(other.send(Side.A, "GET", path), 403, "not_listed")
    problem(other.send(Side.A, "PUT", path, b"x"), 403, "not_listed")
    problem(sites.me.send(Side.A, "PUT", mail(sites, "weights-1", "stranger"), b"x"), 404, "unknown_party")
    problem(sites.me.send(Side.A, "PUT", mail(sites, "weights-1", EXTRA), b"x"), 403, "not_listed")
    assert f"weights-1/{sites.requester}" in sites.view(Side.A, SITES[1]).mail
    assert f"weights-1/{sites.requester}" not in sites.view(Side.A, SITES[2]).mail


def test_mail_of_many_senders_and_to_every_site(sites: ScriptedRequester, first_round: Announcement) -> None:
    path = mail(sites, "decline-1", sites.requester)
    notices = {name: secrets.token_bytes(sealed_small_length(NOTICE_BYTES)) for name in SITES[1:3]}
    for name, notice in notices.items():
        sites.clients[name].ok(Side.A, "PUT", path, notice)
    problem(sites.me.send(Side.A, "GET", path), 404, "unknown_resource")
    assert sites.me.ok(Side.A, "GET", f"{path}?sender={SITES[2]}") == notices[SITES[2]]
    assert {f"decline-1/{name}" for name in SITES[1:3]} <= set(sites.view(Side.A).mail)
    everybody = mail(sites, "checkpoint-0", EVERY_SITE)
    body = secrets.token_bytes(sealed_length(4 * D))
    sites.me.ok(Side.A, "PUT", everybody, body)
    assert all(sites.clients[name].ok(Side.A, "GET", everybody) == body for name in SITES[1:3])


def test_a_round_in_which_everything_is_sent_twice_or_asked_for_too_early(
    sites: ScriptedRequester, first_round: Announcement
) -> None:
    """The sum is exact all the same."""
    sites.announce(first_round)
    client = sites.clients[SITES[1]]
    problem(client.send(Side.A, "GET", sites.path(paths.OUTPUT, round=1)), 404, "unknown_resource")
    problem(sites.me.send(Side.A, "GET", sites.path(paths.OPENING, round=1, attempt=1)), 404, "unknown_resource")
    x = updates(1)
    sealed = {site: sites.seal_contribution(site, x[site], first_round) for site in SITES}
    for site in SITES:
        receipts = sites.contribute(site, sealed[site], 1)
        assert sites.contribute(site, sealed[site], 1) == receipts
    sites.wait_transcript(Side.A, 1)
    assert sites.contribute(SITES[1], sealed[SITES[1]], 1)
    sites.release(sites.measured(1, x[SITES[0]], NUMERATORS), to=[Side.B])
    sites.released(1)
    assert np.array_equal(sites.output(SITES[2], 1), expected_sum(x))
