"""``moiety lab faults --servers``: one order for one seed, promises that hold, and mutations of the code seen."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from harness.attack.attack import taken_out
from harness.faults import simulator
from harness.faults.drawing import POINTS, Drawn
from harness.faults.isolation import Observer, update_of
from harness.faults.prepared_servers import DIMENSION, federation
from harness.faults.promises import Repeats, SignedOnce
from harness.faults.schedule import (
    SERVERS,
    Away,
    Crashed,
    FaultyNetwork,
    Full,
    Level,
    Lie,
    Lies,
    Migrated,
    Parted,
    RosterChanged,
    Schedule,
    Stepped,
    Timed,
)
from harness.faults.servers_alone import ServersAlone
from harness.faults.simulation import Simulated
from harness.faults.simulator import replayed, simulated
from protocol.messages.control import OutcomeCause, RoundOutcome, RoundState, sign
from protocol.sharing import Side
from servers.failpoints import Point
from tests.kit.mutations import MUTATIONS, Mutation, on_servers, seen

_BY_NAME = {one.name: one for one in MUTATIONS}
_COMPLETED = ("completed: all rounds are done",)
_GROUPS = 6


def servers(*faults: Away | Crashed | Full | Lies | Migrated | Parted | Stepped) -> Schedule:
    return Schedule(seed=0, delays_s=0.05, level=Level.SERVERS, faults=faults)


def crashed(who: str, point: Point) -> Crashed:
    return Crashed(who=who, point=point, of_point=0, for_s=0.1)


def test_a_seed_has_one_order_of_events() -> None:
    first, again = simulated(6, Level.SERVERS), simulated(6, Level.SERVERS)
    assert first == again
    assert first.steps > 100
    assert replayed(first.schedule) == first


def test_promises_hold_after_crashes_a_full_disk_a_jump_and_an_hour_apart() -> None:
    found = replayed(
        servers(
            crashed("server a", Point.AFTER_CORRELATIONS_MARKED),
            crashed("server b", Point.AFTER_OPENING_STORED),
            Away(who=("server a", "server b", "c1"), at_s=0.4, for_s=10.0),
            Full(who="server b", at_s=0.2, for_s=5.0),
            Stepped(who="server a", at_s=0.3, by_s=40.0, for_s=20.0),
            Parted(sender="server a", to=Side.B, at_s=12.0, for_s=3600.0),
        )
    )
    assert (found.failed, found.ends) == ((), _COMPLETED)
    assert {
        "restart of several at once",
        "disk full",
        "clock stepped",
        "parted",
        "crash at after_opening_stored",
    } <= set(found.injected)


@pytest.mark.parametrize("first", range(_GROUPS))
def test_promises_hold_after_both_servers_crash_at_every_point(first: int) -> None:
    """Several points in one study; the first crash ends an attempt, so that the points around an end are reached."""
    points = POINTS[first::_GROUPS]
    crashes = [crashed(who, point) for who in SERVERS for point in points]
    found = replayed(servers(*{crashed("server a", Point.AFTER_CORRELATIONS_MARKED): None, **dict.fromkeys(crashes)}))
    assert (found.failed, found.ends) == ((), _COMPLETED)
    assert {f"crash at {point}" for point in points} <= set(found.injected)


def test_no_round_waits_for_the_hour_that_a_clock_was_slow() -> None:
    slow = Stepped(who="server a", at_s=4.3, by_s=-3600.0, for_s=200.0)
    gone = Away(who=("c1",), at_s=0.7, for_s=None)
    found = replayed(Schedule(seed=0, delays_s=0.0, level=Level.SERVERS, smooth=1.0, faults=(slow, gone)))
    assert found.failed == ()


@pytest.mark.parametrize(
    ("name", "crash", "promise"),
    [
        ("unsynced", crashed("server b", Point.AFTER_LOCK_SIGNED), "lost"),
        ("early receipt", crashed("server a", Point.AFTER_RECEIPT_SENT), "lost"),
        ("unmarked", None, "unmarked"),
        ("ends alone", crashed("server a", Point.AFTER_CORRELATIONS_MARKED), "no rest"),
    ],
)
def test_a_fault_in_the_code_is_seen(name: str, crash: Crashed | None, promise: str) -> None:
    schedule = servers(*([] if crash is None else [crash]))
    with taken_out(_BY_NAME[name].put_in):
        assert promise in replayed(schedule).promises


def test_what_a_site_lies_is_refused_and_changes_nothing() -> None:
    found = replayed(servers(Lies(who="c2", lies=tuple(Lie))))
    assert (found.failed, found.ends) == ((), _COMPLETED)
    assert set(found.injected) == {f"lie: {lie}" for lie in Lie}


def test_a_site_with_two_faces_is_left_out_of_every_sum_and_seen_where_it_is_not() -> None:
    schedule = servers(Lies(who="c2", lies=(Lie.TWO_FACES,)))
    run = ServersAlone(schedule, FaultyNetwork(schedule))
    found = run.run()
    assert (found.failed, found.ends) == ((), _COMPLETED)
    assert [set(sites) for sites, _ in run.sites["requester"].journal.sums.values()] == [{"requester", "c1"}] * 2
    with taken_out(_BY_NAME["cohort not compared"].put_in):
        assert "another sum" in replayed(schedule).promises


def test_a_lie_that_is_taken_is_seen() -> None:
    takes_it = {"servers.rounds.contributions.same_receipt": lambda server, study, known, digest: known.receipt}
    with taken_out(takes_it):
        assert "took a lie" in replayed(servers(Lies(who="c2", lies=(Lie.ANOTHER_FOR_THE_SAME,)))).promises


def test_nothing_is_lost_where_a_database_of_the_schema_before_is_migrated() -> None:
    migrated = (Migrated(who="server a", at_s=0.5, for_s=1.0), Migrated(who="server b", at_s=3.0, for_s=1.0))
    found = replayed(servers(*migrated))
    assert (found.failed, found.ends, found.injected["upgrade"]) == ((), _COMPLETED, 2)


def changing(*faults: Timed | Lies, smooth: float) -> Schedule:
    return Schedule(seed=0, delays_s=0.05, level=Level.SERVERS, smooth=smooth, faults=faults)


def joins(at_s: float, other_after_s: float) -> RosterChanged:
    return RosterChanged(adds="c4", first=Side.B, at_s=at_s, for_s=other_after_s)


def removed(who: str, at_s: float, other_after_s: float) -> RosterChanged:
    return RosterChanged(removes=(who,), first=Side.A, at_s=at_s, for_s=other_after_s)


def test_promises_hold_where_a_site_comes_another_is_removed_and_a_third_never_comes_back() -> None:
    found = replayed(
        changing(
            joins(0.5, 3.0),
            removed("c2", 1.5, 20.0),
            Away(who=("c3",), at_s=2.0, for_s=None),
            Lies(who="c2", lies=(Lie.OTHER_ROUND, Lie.AS_REQUESTER)),
            smooth=0.0,
        )
    )
    assert found.failed == ()
    assert {"a site joined", "a site removed", "loss of a site"} <= set(found.injected)
    assert {"removed: both servers know this site no more", *_COMPLETED} <= set(found.ends)


def test_a_study_whose_sums_would_show_the_one_who_was_removed_ends_with_that_reason() -> None:
    found = replayed(changing(removed("c3", 1.5, 1.0), smooth=1.0))
    assert found.failed == ()
    assert "local_only: no list is left that shows no site's update" in found.ends


@pytest.mark.parametrize(
    ("name", "schedule", "promise"),
    [
        ("removed stay", changing(removed("c2", 0.5, 0.1), smooth=0.0), "removed"),
        ("sums forgotten", changing(Away(who=("c3",), at_s=1.5, for_s=None), smooth=1.0), "isolation"),
    ],
)
def test_a_fault_of_membership_or_of_what_sums_show_is_seen(name: str, schedule: Schedule, promise: str) -> None:
    assert replayed(schedule).failed == ()
    with taken_out(_BY_NAME[name].put_in):
        assert promise in replayed(schedule).promises


def test_the_observer_sees_what_sums_show_together_and_a_round_that_is_summed_twice() -> None:
    smooth, fresh = (Observer(update_of(one, DIMENSION), "requester") for one in (1.0, 0.0))
    for observer in (smooth, fresh):
        assert list(observer.released(1, ("requester", "c1", "c2", "c3"))) == []
    first, _ = smooth.released(2, ("requester", "c1", "c2"))
    assert "the update of c3 in round 1 is known with an error of 0.000" in first
    assert list(fresh.released(2, ("requester", "c1", "c2"))) == []
    assert "summed twice" in next(fresh.released(1, ("requester", "c1", "c3")))


def test_what_is_signed_twice_counts_once_it_has_left() -> None:
    keys = federation().keys_of("c1")
    watch = SignedOnce(when_it_leaves=True)
    made = []
    with watch.watching():
        for cause in (OutcomeCause.REQUESTER_MISSING, OutcomeCause.NOT_AGREED_IN_TIME):
            outcome = RoundOutcome(study_digest="00" * 32, round=1, attempt=1, outcome=RoundState.SKIPPED, cause=cause)
            made.append(sign(outcome, keys.name, keys.signing).canonical())
    watch.left(made[0])
    watch.left(made[0])
    assert watch.twice == []
    watch.left(made[1])
    assert watch.twice == ["c1 signed two of round_outcome for 1/1"]


def test_seeds_draw_sites_that_come_are_removed_or_never_come_back() -> None:
    drawn = [Drawn.of(seed, Level.SERVERS).schedule for seed in range(300)]
    changes = [one for many in drawn for one in many.faults if isinstance(one, RosterChanged)]
    assert {bool(one.adds) for one in changes} == {True, False}
    assert {one.first for one in changes} == set(Side)
    gone = [one for many in drawn for one in many.faults if isinstance(one, Away) and one.for_s is None]
    assert gone
    assert {one.smooth for one in drawn} == {None, 0.0, 0.8, 1.0}


def asked(body: bytes, kind: str = "products") -> httpx.Request:
    return httpx.Request("POST", "http://a/v1/peer/x", content=body, extensions={"purpose": kind})


def test_another_answer_to_the_same_question_is_seen() -> None:
    record = SimpleNamespace(key="round 1", state="measured")
    store = SimpleNamespace(studies=lambda: [SimpleNamespace(digest="s")], current_round=lambda study: record)
    server: Any = SimpleNamespace(side=Side.B, store=store)
    repeats = Repeats()
    repeats.answered(server, asked(b"one"), httpx.Response(200, content=b"first"))
    repeats.answered(server, asked(b"one"), httpx.Response(200, content=b"first"))
    repeats.answered(server, asked(b"two"), httpx.Response(409, content=b"no"))
    repeats.answered(server, asked(b"one"), httpx.Response(507, content=b"full"))
    repeats.answered(server, asked(b"one", "session"), httpx.Response(404, content=b"lost"))
    assert repeats.broken == []
    repeats.answered(server, asked(b"one"), httpx.Response(409, content=b"no"))
    assert repeats.broken == ["another answer: server b to the same products in the same round"]
    record.state = "burnt"
    repeats.answered(server, asked(b"one"), httpx.Response(409, content=b"over"))
    assert len(repeats.broken) == 1


def test_a_mutation_that_changes_nothing_is_not_found() -> None:
    harmless = Mutation("harmless", "nothing", 0, {}, lambda seed: replayed(servers()))
    found = seen(harmless, range(2))
    assert (found.seeds, found.by) == (2, "")


def test_servers_that_are_parted_for_good_end_the_study_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator.Federation, "pace", replace(simulator.Federation.pace, stuck_after_s=60.0))
    parted = Parted(sender="server a", to=Side.B, at_s=0.0, for_s=None)
    found: Simulated = replayed(Schedule(seed=0, delays_s=0.0, faults=(parted,)))
    assert found.failed == ()
    assert len(found.ends) == 1
    assert found.ends[0].startswith("failed: the servers did not end round 1 in the ")
    assert "server b round 1, attempt 1, collecting" in found.ends[0]


@pytest.mark.soak
@pytest.mark.parametrize("name", sorted(_BY_NAME))
def test_a_fault_in_the_code_is_found_by_its_seed(name: str) -> None:
    assert seen(_BY_NAME[name], [_BY_NAME[name].seed]).by, "python -m tests.kit.mutations finds another seed"


_FOUND_FAULTS_OF_THE_PRODUCT = {72, 98}


@pytest.mark.uncounted
@pytest.mark.parametrize(
    "seed", sorted(_FOUND_FAULTS_OF_THE_PRODUCT | {one.seed for one in MUTATIONS if one.runs is on_servers})
)
def test_promises_hold_after_what_a_seed_draws(seed: int) -> None:
    """These seeds find every mutation; ``make soak`` runs ten thousand."""
    assert simulated(seed, Level.SERVERS).failed == ()
