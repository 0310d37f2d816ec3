"""Wrong input of every ordinary kind: a clear problem+json answer, and the round goes on with the others."""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest

from harness.adversaries.forgeries import nobody
from harness.adversaries.scripted_requester import ScriptedSites, Sealed, make_study
from harness.adversaries.signed_client import Outgoing, SignedClient
from protocol.channel.keys import generate_signing_key
from protocol.channel.sealing import sealed_length, sealed_small_length
from protocol.messages import paths
from protocol.messages.control import Announcement, ReadyNotice, RoundState, Signed, sign
from protocol.messages.letter import NOTICE_BYTES
from protocol.messages.paths import EVERY_SITE
from protocol.roster.keyfile import PartyKeys
from protocol.sharing import Side
from tests.integration.test_server_round import NUMERATORS, SITES, D, expected_sum, updates
from tests.kit.processes import Federation, start_servers

EXTRA = "hospital-9"
PROBLEM = "application/problem+json"


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with start_servers(tmp_path_factory.mktemp("refusals"), [*SITES, EXTRA]) as running:
        yield running


@pytest.fixture(scope="module")
def sites(federation: Federation) -> Iterator[ScriptedSites]:
    made = ScriptedSites(federation, make_study(federation, D))
    made.create()
    yield made
    made.close()


@pytest.fixture(scope="module")
def first_round(sites: ScriptedSites) -> Announcement:
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


def contribution(sites: ScriptedSites, sender: str, announcement: Announcement, **changes: Any) -> Sealed:
    return sites.seal_contribution(sender, updates(1)[SITES[1]], announcement, **changes)


# --- requests ---------------------------------------------------------------------------------------------------------


def asked(sites: ScriptedSites, created: int | None = None) -> Outgoing:
    return sites.me.enclose(Side.A, "GET", paths.STUDIES, created=created)


def test_signature_missing(sites: ScriptedSites) -> None:
    detail = problem(sites.me.post(replace(asked(sites), headers=[])), 401, "bad_signature")
    assert "content-digest" in detail


@pytest.mark.parametrize("covered", ["@method", "@target-uri", "sealed-head-digest"])
def test_signature_without_a_required_component(sites: ScriptedSites, covered: str) -> None:
    whole = asked(sites)
    fewer = [(name, value.replace(f'"{covered}" ', "").replace(f' "{covered}"', "")) for name, value in whole.headers]
    assert fewer != whole.headers
    problem(sites.me.post(replace(whole, headers=fewer)), 401, "bad_signature")


def test_wrong_key(sites: ScriptedSites) -> None:
    stranger: PartyKeys = replace(sites.me.keys, signing=generate_signing_key(secrets.token_bytes(32)))
    client = SignedClient(sites.federation, stranger)
    problem(client.send(Side.A, "GET", paths.STUDIES), 401, "bad_signature")
    client.close()


def test_unknown_site(sites: ScriptedSites) -> None:
    client = SignedClient(sites.federation, nobody(sites.me.keys, bytes(32)))
    known = SignedClient(sites.federation, replace(sites.me.keys, name=SITES[2]))
    texts = [problem(one.send(Side.A, "GET", paths.STUDIES), 401, "bad_signature") for one in (client, known)]
    assert texts[0] == texts[1]
    client.close()
    known.close()


def test_replayed_request(sites: ScriptedSites) -> None:
    once = asked(sites)
    assert sites.me.post(once).status_code == 200
    assert "nonce" in problem(sites.me.post(once), 401, "bad_signature")


@pytest.mark.parametrize("offset_s", [-3600, 3600])
def test_expired_and_future_requests(sites: ScriptedSites, offset_s: int) -> None:
    problem(sites.me.post(asked(sites, created=int(time.time()) + offset_s)), 401, "bad_signature")


def test_other_body_than_signed(sites: ScriptedSites) -> None:
    other = sites.me.enclose(Side.A, "POST", sites.path(paths.READY), b"sent", stated=b"stated")
    problem(sites.me.post(other), 401, "bad_signature")


def test_a_site_is_not_the_peer_nor_the_requester(sites: ScriptedSites, first_round: Announcement) -> None:
    site = sites.clients[SITES[1]]
    problem(site.send(Side.B, "GET", "/v1/peer/sessions/" + "00" * 32), 403, "not_listed")
    body = sign(first_round, site.keys.name, site.keys.signing).canonical()
    path = sites.path(paths.ANNOUNCEMENT, round=1)
    problem(site.send(Side.A, "POST", path, body), 403, "not_listed")


def test_side_a_is_not_called(sites: ScriptedSites) -> None:
    operator = sites.federation.client("operator-b")
    detail = problem(operator.send(Side.A, "GET", "/v1/peer/sessions/" + "00" * 32), 403, "not_listed")
    assert "side A" in detail
    problem(operator.send(Side.A, "GET", paths.STUDIES), 403, "not_listed")
    operator.close()


def test_no_such_route_and_malformed_parameters(sites: ScriptedSites) -> None:
    problem(sites.me.send(Side.A, "GET", "/v1/nothing"), 404, "unknown_resource")
    problem(sites.me.send(Side.A, "PUT", paths.STUDIES), 405, "unknown_resource")
    detail = problem(sites.me.send(Side.A, "GET", sites.path(paths.VIEW) + "?wait_s=soon"), 400, "malformed_message")
    assert "wait_s" in detail


# --- studies ----------------------------------------------------------------------------------------------------------


def test_unknown_study(sites: ScriptedSites) -> None:
    path = paths.fill(paths.VIEW, study="elsewhere")
    assert "elsewhere" in problem(sites.me.send(Side.A, "GET", path), 404, "unknown_study")


def test_the_same_study_again_and_another_of_its_name(sites: ScriptedSites) -> None:
    assert sites.create() == sites.create()
    other = make_study(sites.federation, D, rounds=7)
    body = sign(other, sites.requester, sites.me.keys.signing).canonical()
    problem(sites.me.send(Side.A, "POST", paths.STUDIES, body), 409, "conflicting_message")
    assert ("hospital-0", "conflicting_message") in refusals(sites.federation)


def refusals(federation: Federation) -> list[tuple[str, str]]:
    with sqlite3.connect(federation.folder / "operator-a" / "data" / "server.db") as database:
        return list(database.execute("select party, code from refusals"))


@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [
        ({"correlation_source": "dealer"}, 400, "malformed_message"),
        ({"roster_digest": "00" * 32}, 409, "announcement_mismatch"),
    ],
)
def test_studies_this_server_cannot_serve(
    sites: ScriptedSites, changes: dict[str, Any], status: int, code: str
) -> None:
    study = make_study(sites.federation, D, name="other", **changes)
    body = sign(study, sites.requester, sites.me.keys.signing).canonical()
    problem(sites.me.send(Side.A, "POST", paths.STUDIES, body), status, code)


def test_ready_for_somebody_else(sites: ScriptedSites) -> None:
    notice = ReadyNotice(study_digest=sites.study.digest(), site=SITES[2]).canonical()
    problem(sites.clients[SITES[1]].send(Side.A, "POST", sites.path(paths.READY), notice), 403, "not_listed")


# --- mail -------------------------------------------------------------------------------------------------------------


def mail(sites: ScriptedSites, topic: str, recipient: str) -> str:
    return sites.path(paths.MAIL, topic=topic, recipient=recipient)


def test_mail(sites: ScriptedSites, first_round: Announcement) -> None:
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


def test_mail_of_many_senders_and_to_every_site(sites: ScriptedSites, first_round: Announcement) -> None:
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


# --- rounds -----------------------------------------------------------------------------------------------------------


def test_announcements(sites: ScriptedSites, first_round: Announcement) -> None:
    sites.announce(first_round)
    path = sites.path(paths.ANNOUNCEMENT, round=1)
    other = sign(first_round.model_copy(update={"weight_list_digest": "22" * 32}), SITES[0], sites.me.keys.signing)
    problem(sites.me.send(Side.A, "POST", path, other.canonical()), 409, "conflicting_message")
    second = sign(sites.announcement(2), SITES[0], sites.me.keys.signing)
    problem(sites.me.send(Side.A, "POST", path, second.canonical()), 409, "wrong_round")
    path = sites.path(paths.ANNOUNCEMENT, round=2)
    problem(sites.me.send(Side.A, "POST", path, second.canonical()), 409, "wrong_round")
    site = sites.clients[SITES[1]].keys
    forged = Signed[Announcement](message=first_round, signatures=sign(first_round, site.name, site.signing).signatures)
    problem(
        sites.me.send(Side.A, "POST", sites.path(paths.ANNOUNCEMENT, round=1), forged.canonical()), 401, "bad_signature"
    )


def test_contributions_that_are_refused(sites: ScriptedSites, first_round: Announcement) -> None:
    name = SITES[1]
    client, path = sites.clients[name], sites.contribution_path(1)

    def put(sealed: Sealed, side: Side = Side.A, to: str = path) -> httpx.Response:
        return client.send(side, "PUT", to, sealed.bodies[side])

    good = contribution(sites, name, first_round)
    problem(put(contribution(sites, name, first_round, site=SITES[2])), 403, "not_listed")
    problem(put(contribution(sites, name, first_round, length=D + 1)), 400, "malformed_message")
    problem(put(contribution(sites, name, first_round, side=Side.B)), 400, "malformed_message")
    problem(put(contribution(sites, name, first_round, round=2)), 409, "wrong_round")
    problem(put(contribution(sites, name, first_round, announcement_digest="00" * 32)), 409, "announcement_mismatch")
    problem(put(contribution(sites, name, first_round, commitment_a="00" * 32)), 400, "commitment_mismatch")
    problem(put(good, to=sites.contribution_path(2)), 409, "wrong_round")
    problem(put(good, to=sites.contribution_path(1, 2)), 409, "wrong_round")
    problem(client.send(Side.A, "PUT", path, good.bodies[Side.B]), 400, "malformed_message")
    problem(client.send(Side.A, "PUT", path, good.bodies[Side.A][:-1]), 400, "broken_seal")
    problem(client.send(Side.A, "PUT", path, good.bodies[Side.A] + bytes(2**20)), 413, "too_large")
    problem(client.send(Side.A, "PUT", path, b"not sealed at all"), 400, "malformed_message")
    too_short = sites.seal_contribution(name, updates(1, dimension=D - 1)[name], first_round, length=D)
    vector_at = Side.A if sites.federation.roster.place(name) % 2 == 0 else Side.B
    assert f"{8 * (D - 1)} bytes" in problem(put(too_short, vector_at), 400, "malformed_message")
    stranger = sites.clients[EXTRA]
    sealed = contribution(sites, EXTRA, first_round)
    problem(stranger.send(Side.A, "PUT", path, sealed.bodies[Side.A]), 403, "not_listed")


def test_the_round_goes_on_with_the_others(sites: ScriptedSites, first_round: Announcement) -> None:
    """Identical redelivery, other bytes, after the lock, too early: then the round's sum is exact all the same."""
    x = updates(1)
    sealed = {site: sites.seal_contribution(site, x[site], first_round) for site in SITES}
    for site in SITES[:-1]:
        receipts = sites.contribute(site, sealed[site], 1)
        assert sites.contribute(site, sealed[site], 1) == receipts
    path, client = sites.contribution_path(1), sites.clients[SITES[1]]
    other = contribution(sites, SITES[1], first_round)
    problem(client.send(Side.A, "PUT", path, other.bodies[Side.A]), 409, "conflicting_message")
    assert (SITES[1], "conflicting_message") in refusals(sites.federation)
    queries = sites.path(paths.QUERIES, round=1, attempt=1)
    problem(sites.me.send(Side.A, "POST", queries, b"x"), 409, "wrong_round")
    problem(client.send(Side.A, "GET", sites.path(paths.OUTPUT, round=1)), 404, "unknown_resource")
    opening = sites.path(paths.OPENING, round=1, attempt=1)
    problem(sites.me.send(Side.A, "GET", opening), 404, "unknown_resource")
    sites.contribute(SITES[-1], sealed[SITES[-1]], 1)
    current = sites.wait_transcript(Side.A, 1)
    assert sites.contribute(SITES[1], sealed[SITES[1]], 1)
    sites.send_queries(current, x[SITES[0]], NUMERATORS)
    for side in Side:
        current = sites.wait_round(side, 1, RoundState.MEASURED)
    late = sites.path(paths.RELEASE_SET, round=1, attempt=1)
    too_few = sites.release_body(current, SITES[:3])
    problem(sites.me.send(Side.A, "PUT", late, too_few), 400, "malformed_message")
    without_me = sites.release_body(current, SITES[1:])
    problem(sites.me.send(Side.A, "PUT", late, without_me), 400, "malformed_message")
    sites.release(current, to=[Side.B])
    for side in Side:
        sites.wait_round(side, 1, RoundState.RELEASED)
    assert np.array_equal(sites.output(SITES[2], 1), expected_sum(x))
    outsider = sites.clients[EXTRA].send(Side.A, "GET", sites.path(paths.OUTPUT, round=1))
    problem(outsider, 403, "not_listed")


# --- operation --------------------------------------------------------------------------------------------------------


def test_health_metrics_and_api_description(sites: ScriptedSites) -> None:
    for side in Side:
        assert sites.me.http.get(sites.federation.url(side) + "/healthz").json() == {"status": "ok"}
        url = sites.federation.servers[side].operations_url
        assert sites.me.http.get(url + "/healthz").json() == {"status": "ok"}
        assert sites.me.http.get(url + "/readyz").json()["ot_session"] == "open"
        metrics = sites.me.http.get(url + "/metrics").text
        assert 'moiety_refusals_total{code="bad_signature"}' in metrics or side is Side.B
        assert "moiety_correlations_in_pool" in metrics
        described = sites.me.http.get(url + "/openapi.json").json()["paths"]
        assert {paths.VIEW, paths.CONTRIBUTION, paths.PEER_PRODUCTS} <= set(described)
        assert sites.me.http.get(url + "/docs").status_code == 200


def test_operations_are_not_on_the_public_port(sites: ScriptedSites) -> None:
    for side in Side:
        for path in ("/readyz", "/metrics", "/docs", "/redoc", "/openapi.json"):
            problem(sites.me.http.get(sites.federation.url(side) + path), 404, "unknown_resource")
