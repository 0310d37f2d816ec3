"""A stored share that a disk or anybody else cuts, alters or deletes ends its round at once, and both are named.

Real servers; the share is altered on disk after its receipt, before the challenge or between measurement and sum.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.attack.scripted_rounds import SITES, AttackedPair, OpenRound, database
from harness.federation.server_apps import ServersInMemory
from protocol.messages.control import OutcomeCause, RoundState
from protocol.mpc.sketch import sketch_shares
from protocol.parameters import Needs
from protocol.sharing import Side
from servers.rounds import side_a
from tests.kit.present import present

LENGTH = 70_000
AT = {Side.A: OutcomeCause.SHARE_ALTERED_AT_A, Side.B: OutcomeCause.SHARE_ALTERED_AT_B}
Harm = Callable[[Path], None]


def cut(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(2**18)


def altered(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(300_000)
        file.write(bytes(8))


def deleted(path: Path) -> None:
    path.unlink()


def vector_of(opened: OpenRound[ServersInMemory], side: Side) -> tuple[str, Path]:
    """A site whose vector this side keeps, and the file."""
    folder = opened.federation.folder / opened.federation.roster.operator(side).name / "data" / "shares"
    connection = database(opened.federation, side)
    try:
        asked = "select site, file from contributions where study = ? and round = ? order by site desc"
        rows = connection.execute(asked, [opened.sites.study.digest(), opened.number]).fetchall()
    finally:
        connection.close()
    return next((site, folder / file) for site, file in rows if (folder / file).stat().st_size > LENGTH)


def require_named(opened: OpenRound[ServersInMemory], side: Side, site: str) -> None:
    before_s = opened.federation.clock.now()
    view = opened.sites.wait_round(Side.A, opened.number, RoundState.SKIPPED)
    assert view.outcome is not None
    outcome = view.outcome.message
    assert (outcome.cause, outcome.site) == (AT[side], site)
    assert f"server {side.value.upper()} no longer holds what {site} sent" in outcome.reason
    assert len(view.outcome.signatures) == 2
    assert opened.federation.clock.now() < before_s + 60, "it was not waited for"
    assert opened.sites.wait_round(Side.B, opened.number, RoundState.SKIPPED).outcome == view.outcome


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("harm", [cut, altered, deleted])
def test_before_the_challenge(pair: AttackedPair[ServersInMemory], side: Side, harm: Harm) -> None:
    opened = pair.round(LENGTH, opens=Needs.NOTHING)
    opened.sites.announce(opened.announcement)
    for site in SITES[:-1]:
        opened.contribute(site)
    site, path = vector_of(opened, side)
    harm(path)
    opened.contribute(SITES[-1])
    require_named(opened, side, site)


@pytest.mark.parametrize("masks", Side)
@pytest.mark.parametrize("side", Side)
def test_between_measurement_and_sum(pair: AttackedPair[ServersInMemory], side: Side, masks: Side) -> None:
    """In rounds that either side masks: nothing of the sum was served, so both sign the skip."""
    opened = pair.round(LENGTH, opens=Needs.NOTHING)
    if (opened.number % 2 == 1) != (masks is Side.A):
        opened.finish()
        opened = pair.round(LENGTH, opens=Needs.NOTHING)
    opened.sites.announce(opened.announcement)
    opened.lock()
    opened.measure()
    site, path = vector_of(opened, side)
    altered(path)
    opened.sites.release(opened.current)
    require_named(opened, side, site)
    pair.round(LENGTH, opens=Needs.NOTHING).finish()


@pytest.mark.parametrize("failures", [2, None])
def test_a_sketch_that_fails_is_made_again_until_the_rounds_time_is_over(
    pair: AttackedPair[ServersInMemory], monkeypatch: pytest.MonkeyPatch, failures: int | None
) -> None:
    """The requester is not blamed: its queries are there."""
    works, failed, logged = sketch_shares, list[int](), list[str]()

    def sketch(*given: Any, **named: Any) -> Any:
        if failures is None or len(failed) < failures:
            failed.append(1)
            raise OSError(errno.EMFILE, "too many open files")
        return works(*given, **named)

    monkeypatch.setattr("servers.store.shares.sketch_shares", sketch)
    monkeypatch.setattr(side_a._log, "exception", lambda event, **_: logged.append(event))
    closes_at_s = int(pair.federation.clock.now()) + 9
    opened = pair.round(LENGTH, opens=Needs.NOTHING, closes_at_s=closes_at_s)
    if failures is not None:
        opened.finish()
        assert len(failed) == failures
        return
    opened.sites.announce(opened.announcement)
    opened.lock()
    for side in Side:
        outcome = present(opened.sites.wait_round(side, opened.number, RoundState.SKIPPED).outcome)
        assert outcome.message.cause is OutcomeCause.NOT_MEASURED_IN_TIME
        assert not outcome.message.cause.requester_absent
    assert logged[-1] == "not_measured"
