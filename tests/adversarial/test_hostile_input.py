"""Hostile input over real HTTPS: a clear error for the sender, nothing changed, and the round goes on to its sum."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from harness.adversaries.scripted.rounds import SITES, STRANGER, Pair, Phase, refusals
from protocol.parameters import Needs
from protocol.sharing import Side
from tests.adversarial.hostile_rows import ROWS, Row
from tests.kit.processes import start_servers

pytestmark = pytest.mark.uncounted


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with start_servers(tmp_path_factory.mktemp("hostile"), [*SITES, STRANGER]) as federation:
        made = Pair(federation)
        yield made
        made.close()


def require_problem(response: httpx.Response, row: Row) -> None:
    """The refusal is a problem+json of the expected kind that says what is wrong."""
    body = response.json()
    assert (response.status_code, body["status"], body["code"]) == (row.status, row.status, row.code), body
    assert set(body) == {"type", "title", "status", "detail", "code"}
    assert row.says in body["detail"], body


@pytest.mark.parametrize("row", ROWS, ids=[row.name.replace(" ", "-") for row in ROWS])
def test_refused(pair: Pair, row: Row) -> None:
    """The attack changes nothing durable at either server nor in another site's view; the round completes."""
    opened = pair.round(
        row.dimension, opens=Needs.DISTANCES if row.phase in (Phase.LOCKED, Phase.MEASURED) else Needs.NOTHING
    )
    opened.advance(row.phase)
    before, kept = opened.everything_stored(), refusals(pair.federation)
    response = row.attack(opened)
    require_problem(response, row)
    assert opened.everything_stored() == before
    assert [code for _, _, code in refusals(pair.federation)[len(kept) :]] == [row.code] * row.recorded
    opened.finish()
    assert opened.agreed == SITES


def test_the_same_contribution_again_gets_the_same_receipt(pair: Pair) -> None:
    opened = pair.round()
    bodies = {side: opened.honest["hospital-1"][side].sealed() for side in Side}
    opened.sites.announce(opened.announcement)
    first = {side: opened.put("hospital-1", side, bodies[side]).content for side in Side}
    before = opened.everything_stored()
    assert {side: opened.put("hospital-1", side, bodies[side]).content for side in Side} == first
    assert opened.everything_stored() == before
    opened.sent.add("hospital-1")
    opened.finish()
    assert opened.put("hospital-1", Side.A, bodies[Side.A]).content == first[Side.A]
