"""Servers of several processes on PostgreSQL: two take uploads, one of two drives; each dies or stands still at a step.

Whoever stood by takes over, no step is done twice (the stores' own tables say so), and the final model has the bits of
a federation whose servers are one process each.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing

import pytest

from client_agent.net.ledger import read_ledger
from client_agent.site.events import RoundEnd
from harness.engine.parties import Parties
from harness.federation.learners import light_learner, light_sites, light_study
from harness.federation.processes import FederationSpec
from protocol.messages.control import RuleName, RuleSpec, Study
from protocol.sharing import Side
from tests.integration.agents import wait_for
from tests.integration.crashes import (
    REQUESTER,
    SITES,
    End,
    Outcome,
    Undisturbed,
    crash_federation,
    ended,
    light_study_of,
    over,
)
from tests.kit.disk import folder_on_disk
from tests.kit.postgres import Cluster, running_cluster
from tests.kit.several import Several, driver, upload
from tests.ports import free_ports

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]
WITHIN_S = 120.0
# The lease has to be over before another goes on: a round may be closed, and skipped, before that.
_ANY = frozenset({End.REPLAYED, End.BURNT, End.SKIPPED})
_ALL_STEPS = (
    "ot_base_midway",
    "ot_batch_midway",
    *(
        f"{when}_{step}"
        for step in ("lock_signed", "challenge_stored", "opening_stored")
        for when in ("before", "after")
    ),
    *(f"{when}_{step}" for step in ("mask_stored", "output_stored") for when in ("before", "after")),
)
DRIVER_STEPS = {
    Side.A: (
        *_ALL_STEPS,
        "before_challenge_sent",
        "before_correlations_marked",
        "after_correlations_marked",
        "after_masked_sent",
    ),
    Side.B: _ALL_STEPS,
}
UPLOAD_STEPS = ("upload_midway", "after_upload_written", "after_receipt_stored", "after_mail_stored")
PARTS_DIMENSION = 2**22 + 5
"""Two parts of 16 MiB and one short one."""
STANDS_AT = {
    Side.A: ("before_lock_signed", "after_correlations_marked", "before_opening_stored", "before_output_stored"),
    Side.B: ("before_challenge_stored", "before_opening_stored", "before_output_stored"),
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster() as running:
        yield running


@pytest.fixture(scope="module")
def federation(cluster: Cluster) -> Iterator[Several]:
    spec = FederationSpec("crashes", REQUESTER, light_sites(SITES), seed=5, ports=free_ports())
    with folder_on_disk() as folder:
        made = Several(folder, spec, light_learner, cluster)
        try:
            made.start_servers()
            made.start_agents()
            yield made
        finally:
            made.stop()


@pytest.fixture(scope="module")
def undisturbed() -> Iterator[Undisturbed]:
    """The study's model from servers of one process each."""
    with folder_on_disk() as folder, crash_federation(folder) as running:
        yield Undisturbed(running)


def armed(federation: Several, side: Side, failpoint: str) -> str:
    """The first driver of a side drives and is armed; the second stands by. -> the first"""
    first, second = driver(side, 1), driver(side, 2)
    for name in (first, second):
        if name in federation.running:
            federation.kill(name)
    federation.start_process(first, failpoint)
    wait_for(f"{first} drives", lambda: federation.drives(side) == first, WITHIN_S, federation.site_tails)
    federation.start_process(second)
    wait_for(f"{second} stands by", lambda: federation.ready(second), WITHIN_S)
    wait_for(f"{first} is ready", lambda: first_ready_or_gone(federation, first), WITHIN_S)
    return first


def first_ready_or_gone(federation: Several, name: str) -> bool:
    """A step of a session may come before any study."""
    return federation.ready(name) or federation.exit_code(name) is not None


def require_same_bits(undisturbed: Undisturbed, outcome: Outcome) -> None:
    assert ended(outcome) in _ANY
    released = sum(record.state is RoundEnd.RELEASED for record in outcome.records)
    assert set(outcome.models) == {undisturbed.model_after(released, False)}


def starts(federation: Several, side: Side) -> int:
    with closing(federation.database(side)) as database:
        return int(database.execute("select count(*) from boots").fetchone()[0])


def test_a_study_has_the_bits_of_one_process(federation: Several, undisturbed: Undisturbed) -> None:
    study = light_study_of(federation, "several")
    federation.hand_in(study)
    outcome = over(federation, study)
    assert [(r.state, r.attempt) for r in outcome.records] == [(RoundEnd.RELEASED, 1)] * len(outcome.records)
    require_same_bits(undisturbed, outcome)
    for side in Side:
        for number in (1, 2):
            assert federation.bytes_in(upload(side, number), "contribute"), "sites came to both"
        assert starts(federation, side) == 1
        assert '"route": "/drives"' not in federation.log_of(driver(side, 2)), "a proxy asks every second"


@pytest.mark.parametrize(
    ("side", "step"), [pytest.param(side, step, id=f"{side}-{step}") for side in Side for step in DRIVER_STEPS[side]]
)
def test_the_driver_is_killed_in_a_step(federation: Several, undisturbed: Undisturbed, side: Side, step: str) -> None:
    first = armed(federation, side, f"{step}:1")
    before = starts(federation, side)
    study = light_study_of(federation, f"killed-{side}-{step}".replace("_", "-").lower())
    federation.hand_in(study)
    wait_for("the kill", lambda: federation.exit_code(first) == -signal.SIGKILL, WITHIN_S, federation.site_tails)
    require_same_bits(undisturbed, over(federation, study))
    assert federation.drives(side) == driver(side, 2)
    assert starts(federation, side) == before + 1


@pytest.mark.parametrize(
    ("side", "step"), [pytest.param(side, step, id=f"{side}-{step}") for side in Side for step in STANDS_AT[side]]
)
def test_a_driver_that_stood_still_changes_nothing_when_it_goes_on(
    federation: Several, undisturbed: Undisturbed, side: Side, step: str
) -> None:
    first = armed(federation, side, f"{step}:1:stop")
    study = light_study_of(federation, f"stood-{side}-{step}".replace("_", "-").lower())
    federation.hand_in(study)
    wait_for("the other drives", lambda: federation.drives(side) == driver(side, 2), WITHIN_S, federation.site_tails)
    federation.running[first].process.send_signal(signal.SIGCONT)
    wait_for("its end", lambda: federation.exit_code(first) is not None, WITHIN_S)
    assert federation.exit_code(first) == 1  # so that whatever starts again what failed starts it again
    assert "lease_lost" in federation.log_of(first)
    require_same_bits(undisturbed, over(federation, study))


@pytest.mark.parametrize("step", UPLOAD_STEPS)
def test_a_process_that_takes_uploads_is_killed(federation: Several, undisturbed: Undisturbed, step: str) -> None:
    name = upload(Side.A, 1)
    federation.kill(name)
    federation.start_process(name, f"{step}:1")
    wait_for("it is ready", lambda: federation.ready(name), WITHIN_S)
    study = light_study_of(federation, f"upload-{step}".replace("_", "-"))
    federation.hand_in(study)
    wait_for("the kill", lambda: federation.exit_code(name) == -signal.SIGKILL, WITHIN_S, federation.site_tails)
    federation.start_process(name)
    require_same_bits(undisturbed, over(federation, study))


def test_parts_of_one_contribution_that_come_to_different_processes_are_one(
    federation: Several, undisturbed: Undisturbed
) -> None:
    """The proxy sends each request to the other one: neither takes a part that does not follow on what it has, the one
    that has all of them puts them together, and what is left at the other goes.
    """

    def large(parties: Parties) -> Study:
        return light_study(parties, "in-parts", RuleSpec(name=RuleName.FEDAVG), rounds=1, dimension=PARTS_DIMENSION)

    before = {upload(side, n): federation.bytes_in(upload(side, n), "part") for side in Side for n in (1, 2)}
    study = large(federation.parties)
    federation.hand_in(study)
    outcome = over(federation, study)
    assert [record.state for record in outcome.records] == [RoundEnd.RELEASED]
    assert set(outcome.models) == {undisturbed.model_of(large)}
    for name, bytes_before in before.items():
        assert federation.bytes_in(name, "part") > bytes_before, f"{name} got none"
    entries = [one for site in SITES for one in read_ledger(federation.state(site) / "ledger.jsonl")]
    assert {one.purpose for one in entries} >= {"contribution part", "held"}
    wait_for("what is left at the other goes", lambda: not list(federation.folder.rglob("uploads/*/*")), WITHIN_S)
