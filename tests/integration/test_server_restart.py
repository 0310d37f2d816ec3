"""Uploads in parts and lost correlations across a kill -9 of a server.

Servers that die at every step of a round are in ``test_crashes.py``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import numpy as np
import pytest

from harness.attack.scripted_requester import ScriptedRequester, make_study
from harness.attack.signed_client import digest_of
from protocol.channel.signing import DigestField
from protocol.messages import paths
from protocol.messages.control import (
    HeldUpload,
    Receipt,
    RoundState,
    Signed,
)
from protocol.sharing import Side
from tests.integration.test_server_round import NUMERATORS, SITES, D, expected_sum, signed_outcome, updates
from tests.kit.disk import folder_on_disk
from tests.kit.processes import Federation, start_servers


@pytest.fixture(scope="module")
def federation() -> Iterator[Federation]:
    with folder_on_disk() as folder, start_servers(folder, SITES) as running:
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
    current = sites.measured(number, x[sites.requester], NUMERATORS)
    assert current.attempt == attempt
    assert all(opened.in_range for opened in sites.openings(current, NUMERATORS).values())
    sites.release(current)
    sites.released(number)
    assert np.array_equal(sites.output(SITES[1], number), expected_sum(x))


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


def contribute_all(sites: ScriptedRequester, number: int, attempt: int = 1) -> None:
    shown = sites.view(Side.A).current if attempt > 1 else None
    announcement = sites.announcement(number) if shown is None else shown.announcement.message
    sites.announce(announcement)
    sites.contribute_all(announcement, updates(number), attempt)


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
    for side in Side:
        current = sites.wait_round(side, 1, RoundState.ANNOUNCED)
        assert current.attempt == 2
        assert signed_outcome(sites, current).outcome is RoundState.BURNT
        assert current.agreed_set is None
    contribute_all(sites, 1, attempt=2)
    finish(sites, 1, attempt=2)
