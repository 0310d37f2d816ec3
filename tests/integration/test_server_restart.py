"""kill -9 of either server, and a requester that stays away: nothing acknowledged is lost, the study goes on."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterator

import numpy as np
import pytest

from harness.attack.scripted_requester import ScriptedRequester, make_study
from harness.attack.signed_client import digest_of
from protocol.channel.sealing import sealed_small_length
from protocol.channel.signing import DigestField
from protocol.messages import paths
from protocol.messages.control import (
    HeldUpload,
    OutcomeCause,
    PauseCause,
    PauseNotice,
    Receipt,
    RoundState,
    Signed,
    StudyState,
    require_signatures,
)
from protocol.messages.letter import NOTICE_BYTES
from protocol.sharing import Side
from tests.integration.test_server_round import NUMERATORS, SITES, D, expected_sum, run_round, updates
from tests.kit.disk import folder_on_disk
from tests.kit.present import present
from tests.kit.processes import Federation, start_servers


@pytest.fixture(scope="module")
def federation() -> Iterator[Federation]:
    limits = {"grace_s": 0.2, "pause_after_skips": 2}
    with folder_on_disk() as folder, start_servers(folder, SITES, limits=limits) as running:
        yield running


@pytest.fixture
def sites(federation: Federation, request: pytest.FixtureRequest) -> Iterator[ScriptedRequester]:
    """A study of its own for every test."""
    name = request.node.name.replace("_", "-").replace("[", "-").replace("]", "").lower()[:60].rstrip("-")
    made = ScriptedRequester(federation, make_study(federation, D, name=name))
    made.create()
    yield made
    made.end()
    made.close()


def finish(sites: ScriptedRequester, number: int, attempt: int = 1) -> None:
    """Run from the challenge to the release, for contributions that are all there."""
    x = updates(number)
    current = sites.wait_transcript(Side.A, number)
    assert current.attempt == attempt
    sites.send_queries(current, x[sites.requester], NUMERATORS)
    for side in Side:
        current = sites.wait_round(side, number, RoundState.MEASURED)
    assert all(opened.in_range for opened in sites.openings(current, NUMERATORS).values())
    sites.release(current)
    for side in Side:
        sites.wait_round(side, number, RoundState.RELEASED)
    assert np.array_equal(sites.output(SITES[1], number), expected_sum(x))


@pytest.mark.parametrize("side", list(Side))
def test_between_two_rounds(sites: ScriptedRequester, side: Side) -> None:
    for number in (1, 2, 3):
        x = updates(number)
        run_round(sites, number, x)
        before = sites.view(side)
        sites.federation.servers[side].restart()
        assert sites.view(side).current == before.current
        assert np.array_equal(sites.output(SITES[3], number), expected_sum(x))


@pytest.mark.parametrize("side", list(Side))
def test_after_a_receipt(sites: ScriptedRequester, side: Side) -> None:
    announcement = sites.announcement(1)
    sites.announce(announcement)
    x = updates(1)
    sealed = {site: sites.seal_contribution(site, x[site], announcement) for site in SITES}
    receipts = {site: sites.contribute(site, sealed[site], 1) for site in SITES[:2]}
    sites.federation.servers[side].restart()
    for site in SITES[:2]:
        assert sites.contribute(site, sealed[site], 1) == receipts[site]
    for site in SITES[2:]:
        sites.contribute(site, sealed[site], 1)
    finish(sites, 1)


def test_a_part_of_an_upload_survives_and_hostile_parts_do_not_count(sites: ScriptedRequester) -> None:
    """Parts are sent by hand, as an agent sends large ones: one part is all of this message."""
    announcement = sites.announcement(1)
    sites.announce(announcement)
    x = updates(1)
    sealed = {site: sites.seal_contribution(site, x[site], announcement) for site in SITES}
    site, client = SITES[1], sites.clients[SITES[1]]
    body = sealed[site][Side.A]
    digest = digest_of(body, DigestField.SEALED).hex()
    asked = f"?digest={digest}&length={len(body)}"

    def at(template: str, query: str = asked) -> str:
        return sites.path(template, round=1, attempt=1) + query

    def held() -> int:
        return HeldUpload.parse(client.ok(Side.A, "GET", at(paths.CONTRIBUTION_HELD))).held_bytes

    def refused(method: str, path: str, content: bytes = b"") -> int:
        return client.send(Side.A, method, path, content).status_code

    part = paths.CONTRIBUTION_PART
    assert refused("PUT", at(part, f"{asked}&offset=7"), body[7:]) == 400  # parts do not overlap
    assert refused("PUT", at(part, f"{asked}&offset=0"), body[:-1]) == 400  # nor are they cut short
    assert refused("PUT", at(part, f"{asked}&offset={2**22}"), body) == 400  # or begin behind the end
    huge = f"?digest={digest}&length={2**39}"
    assert refused("PUT", at(part, f"{huge}&offset=0"), body) == 413
    assert refused("POST", at(paths.CONTRIBUTION_WHOLE)) == 503  # parts are lacking
    assert held() == 0
    other = f"?digest={'0' * 64}&length={len(body)}"
    client.ok(Side.A, "PUT", at(part, f"{other}&offset=0"), body)
    assert refused("POST", at(paths.CONTRIBUTION_WHOLE, other)) == 503  # they are not that message, and are dropped
    assert HeldUpload.parse(client.ok(Side.A, "GET", at(paths.CONTRIBUTION_HELD, other))).held_bytes == 0
    client.ok(Side.A, "PUT", at(part, f"{asked}&offset=0"), body)
    sites.federation.servers[Side.A].restart()
    assert held() == len(body)
    client.ok(Side.A, "PUT", at(part, f"{asked}&offset=0"), body)  # once more: the answer was lost
    receipt = Signed[Receipt].parse(client.ok(Side.A, "POST", at(paths.CONTRIBUTION_WHOLE)))
    assert Signed[Receipt].parse(client.ok(Side.A, "POST", at(paths.CONTRIBUTION_WHOLE))) == receipt
    assert sites.contribute(site, sealed[site], 1)[Side.A] == receipt  # the same bytes in one request, too
    for other_site in SITES:
        sites.contribute(other_site, sealed[other_site], 1)
    finish(sites, 1)
    assert refused("GET", at(paths.CONTRIBUTION_HELD, other)) == 200  # it is stored: nothing more is needed


@pytest.mark.parametrize("side", list(Side))
def test_between_the_challenge_and_the_queries(sites: ScriptedRequester, side: Side) -> None:
    contribute_all(sites, 1)
    before = sites.wait_transcript(Side.A, 1).transcript
    sites.federation.servers[side].restart()
    assert sites.wait_transcript(Side.A, 1).transcript == before
    finish(sites, 1)


@pytest.mark.parametrize("side", list(Side))
def test_between_the_openings_and_the_release_set(sites: ScriptedRequester, side: Side) -> None:
    x = contribute_all(sites, 1)
    current = sites.wait_transcript(Side.A, 1)
    sites.send_queries(current, x[sites.requester], NUMERATORS)
    for each in Side:
        current = sites.wait_round(each, 1, RoundState.MEASURED)
    opening = sites.path(paths.OPENING, round=1, attempt=1)
    before = sites.me.ok(side, "GET", opening)
    sites.federation.servers[side].restart()
    assert sites.me.ok(side, "GET", opening) == before
    sites.release(current)
    for each in Side:
        sites.wait_round(each, 1, RoundState.RELEASED)
    assert np.array_equal(sites.output(SITES[1], 1), expected_sum(x))


def state_at(sites: ScriptedRequester, side: Side) -> RoundState:
    shown = present(sites.view(side).current)
    return shown.state


def contribute_all(sites: ScriptedRequester, number: int, attempt: int = 1) -> dict[str, np.ndarray]:
    shown = sites.view(Side.A).current if attempt > 1 else None
    announcement = sites.announcement(number) if shown is None else shown.announcement.message
    sites.announce(announcement)
    x = updates(number)
    for site in SITES:
        sealed = sites.seal_contribution(site, x[site], announcement, attempt)
        sites.contribute(site, sealed, number, attempt)
    return x


def test_correlations_lost_after_they_were_marked_burn_the_attempt(sites: ScriptedRequester) -> None:
    """Side A dies after it marked its correlations as used and before it has an opening."""
    contribute_all(sites, 1)
    sites.wait_transcript(Side.A, 1)
    sites.federation.kill("operator-a")
    with sqlite3.connect(sites.federation.folder / "operator-a" / "data" / "server.db") as database:
        row = ("ab" * 32, 0, 0, sites.study.digest(), 1, 1, SITES[0])
        database.execute("insert into correlations values (?, ?, ?, ?, ?, ?, ?)", row)
    database.close()
    sites.federation.start_server(Side.A)
    sites.federation.wait_for(Side.A, "/healthz")
    both = [sites.federation.roster.operator_a.name, sites.federation.roster.operator_b.name]
    for side in Side:
        current = sites.wait_round(side, 1, RoundState.ANNOUNCED)
        assert current.attempt == 2
        assert require_signatures(present(current.outcome), sites.federation.roster, both).outcome is RoundState.BURNT
        assert current.agreed_set is None
    contribute_all(sites, 1, attempt=2)
    finish(sites, 1, attempt=2)


def test_a_requester_that_stays_away_pauses_the_study(sites: ScriptedRequester) -> None:
    both = [sites.federation.roster.operator_a.name, sites.federation.roster.operator_b.name]
    for number in (1, 2):
        announcement = sites.announcement(number, closes_in_s=2)
        sites.announce(announcement)
        x = updates(number)
        for site in SITES:
            sites.contribute(site, sites.seal_contribution(site, x[site], announcement), number)
        for side in Side:
            current = sites.wait_round(side, number, RoundState.SKIPPED)
            outcome = require_signatures(present(current.outcome), sites.federation.roster, both)
            assert outcome.cause is OutcomeCause.QUERIES_MISSING
    for side in Side:
        view = sites.view(side)
        assert view.state is StudyState.PAUSED
        assert view.pause == PauseNotice(cause=PauseCause.REQUESTER_AWAY, skips=2)
    run_round(sites, 3, updates(3))
    assert all(sites.view(side).state is StudyState.OPEN for side in Side)


def test_too_few_contributions_skip_the_round(sites: ScriptedRequester) -> None:
    announcement = sites.announcement(1, closes_in_s=2)
    sites.announce(announcement)
    x = updates(1)
    for site in SITES[:3]:
        sites.contribute(site, sites.seal_contribution(site, x[site], announcement), 1)
    for side in Side:
        current = sites.wait_round(side, 1, RoundState.SKIPPED)
        assert current.outcome is not None
        assert current.outcome.message.cause is OutcomeCause.TOO_FEW_CONTRIBUTORS
        assert (current.outcome.message.found, current.outcome.message.needed) == (2, 3)
    run_round(sites, 2, updates(2))


def test_a_round_that_too_few_take_part_in_ends_once_the_last_site_has_declined(sites: ScriptedRequester) -> None:
    """Long before its time; while one site is silent it goes on."""
    announcement = sites.announcement(1, closes_in_s=500)
    sites.announce(announcement)
    one, *others = sites.contributors
    sites.contribute(one, sites.seal_contribution(one, updates(1)[one], announcement), 1)
    letter = sites.path(paths.MAIL, topic="decline-1", recipient=sites.requester)
    for site in others:
        assert all(state_at(sites, side) is not RoundState.SKIPPED for side in Side)
        notice = secrets.token_bytes(sealed_small_length(NOTICE_BYTES))
        sites.clients[site].ok(Side.A, "PUT", letter, notice)
    both = [sites.federation.roster.operator_a.name, sites.federation.roster.operator_b.name]
    for side in Side:
        current = sites.wait_round(side, 1, RoundState.SKIPPED)
        outcome = require_signatures(present(current.outcome), sites.federation.roster, both)
        assert outcome.cause is OutcomeCause.TOO_FEW_CONTRIBUTORS
        assert (outcome.found, outcome.needed) == (1, 3)
    assert {f"decline-1/{site}" for site in others} <= set(sites.view(Side.A).mail)
    run_round(sites, 2, updates(2))
