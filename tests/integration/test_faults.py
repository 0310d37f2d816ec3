"""``moiety lab faults``: what a seed draws, schedules shrunk and run again, and whole studies under accidents."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

import moiety
from harness.attack.attack import taken_out
from harness.faults import cli
from harness.faults.cli import parsed
from harness.faults.drawing import Drawn
from harness.faults.schedule import (
    Away,
    FaultyNetwork,
    Full,
    Level,
    Parted,
    Schedule,
    Shrinking,
    Stepped,
    Troubled,
    shortest,
)
from harness.faults.simulation import Faults, Simulated, Tally
from harness.faults.simulator import replayed
from harness.federation.network import Fate, Passing
from protocol.errors import ConfigurationError
from protocol.sharing import Side
from tests.kit.mutations import MUTATIONS

_COPIED = tuple(
    Troubled(sender=site, to=Side.A, kind="contribution", of_kind=0, fate=Fate(again_after_s=0.5))
    for site in ("c1", "c2")
)


def a_schedule(*faults: Troubled | Away | Parted | Full | Stepped, delays_s: float = 0.0) -> Schedule:
    return Schedule(seed=3, delays_s=delays_s, faults=faults)


def test_a_seed_is_the_whole_schedule_and_seeds_differ() -> None:
    first, again = Drawn.of(3), Drawn.of(3)
    assert first.schedule == again.schedule
    assert [rate for rate, _ in first.rates] == [rate for rate, _ in again.rates]
    passings = [Passing("c1", Side.A, 0, 0, 0, "contribution", number) for number in range(100)]
    assert [first.fate(one) for one in passings] == [again.fate(one) for one in passings]
    drawn = [Drawn.of(seed) for seed in range(300)]
    assert {type(one) for many in drawn for one in many.schedule.timed} == {Away, Full, Parted, Stepped}
    assert {len(one.who) for many in drawn for one in many.schedule.timed if isinstance(one, Away)} >= {1, 2, 3}
    for place in range(len(drawn[0].rates)):
        assert {one.rates[place][0] == 0 for one in drawn} == {True, False}, place


def test_what_becomes_of_a_message_does_not_depend_on_what_passed_before() -> None:
    drawn = next(one for one in map(Drawn.of, range(100)) if one.rates[0][0] and one.rates[2][0])
    early, late = (Passing("c1", Side.A, number, 10 * number, 0, "contribution", 2) for number in (4, 90))
    assert drawn.fate(early) == drawn.fate(late)
    several = [drawn.fate(Passing("c1", Side.A, 0, 0, 0, "contribution", number)) for number in range(200)]
    assert len({str(fate) for fate in several}) > 3


def test_a_schedule_is_written_and_read_again() -> None:
    schedule = a_schedule(
        *_COPIED,
        Away(who=("c1", "server a"), at_s=1.0, for_s=None),
        Parted(sender="server a", to=Side.B, at_s=3.0, for_s=5.0),
        Full(who="server b", at_s=2.0, for_s=1.0),
        Stepped(who="c2", at_s=2.5, by_s=-5.0, for_s=30.0),
    )
    assert Schedule.read(schedule.model_dump_json(), "a file") == schedule
    assert [type(one) for one in schedule.timed] == [Away, Full, Stepped, Parted]
    assert schedule.gone == {"c1", "server a"}
    with pytest.raises(ConfigurationError, match="a file is no schedule of faults"):
        Schedule.read("{}", "a file")


@pytest.mark.parametrize(
    ("fault", "refused"),
    [
        ({"fault": "upgrade", "at_s": 0.1, "for_s": 1.0}, "faults of level 'servers' alone"),
        ({"fault": "lies", "lies": ["malformed"]}, "faults of level 'servers' alone"),
        ({"fault": "crash", "point": "nowhere", "of_point": 0, "for_s": 1.0}, "before_announcement_stored"),
    ],
)
def test_a_fault_that_would_do_nothing_is_refused(fault: dict[str, object], refused: str) -> None:
    schedule = {"seed": 1, "delays_s": 0.1, "level": "studies", "faults": [{"who": "server a", **fault}]}
    with pytest.raises(ConfigurationError, match=refused):
        Schedule.read(json.dumps(schedule), "a file")


@pytest.mark.parametrize(("length_bytes", "injected"), [(0, {}), (10, {"request cut": 1})])
def test_a_cut_of_nothing_counts_for_nothing(length_bytes: int, injected: dict[str, int]) -> None:
    network = FaultyNetwork(
        a_schedule(Troubled(sender="c1", to=Side.A, kind="output", of_kind=0, fate=Fate(cut_to=0.5)))
    )
    network.fate(Passing("c1", Side.A, 0, length_bytes, 0, "output"))
    assert network.injected == injected


@pytest.mark.parametrize("needed", [set(), {7}, {0, 19}, {3, 4, 11}])
def test_the_shortest_part_that_still_fails_is_left(needed: set[int]) -> None:
    assert set(shortest(range(20), lambda some: needed <= set(some))) == needed


def test_shrinking_keeps_a_promise_broken_and_ends() -> None:
    schedule = a_schedule(*_COPIED, Full(who="server b", at_s=2.0, for_s=1.0), delays_s=4.0)

    def broken(some: Schedule) -> frozenset[str]:
        return frozenset({"lost"} if _COPIED[1] in some.faults else {"another promise"})

    assert Shrinking(broken).shrunk(schedule, frozenset({"lost"})) == a_schedule(_COPIED[1])
    impatient = Shrinking(broken, most_runs=0)
    assert impatient.shrunk(schedule, frozenset({"lost"})) == schedule
    assert impatient.runs == 0


def test_seeds_are_a_number_or_a_range() -> None:
    assert (list(parsed("7")), list(parsed("2-4"))) == ([7], [2, 3, 4])
    for wrong in ("", "4-2", "-1", "a", "1,2", "0-99999999"):
        with pytest.raises(ConfigurationError, match="--seeds takes a number"):
            parsed(wrong)


def test_what_failed_is_shrunk_and_said_with_the_command_that_runs_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(seed: int) -> Simulated:
        return ran(a_schedule(*_COPIED) if seed == 1 else a_schedule(), seed)

    def ran(schedule: Schedule, seed: int = 1) -> Simulated:
        broken = ("no end: c1",) if _COPIED[0] in schedule.faults else ()
        return Simulated(
            seed, 10, Counter({"request lost": seed}), ("completed: all rounds are done",), schedule, broken
        )

    monkeypatch.setitem(cli.RUNS, Level.STUDIES, made)
    monkeypatch.setattr(cli, "replayed", ran)
    file = tmp_path / "found.json"
    app, runner = moiety.build("lab faults"), CliRunner()
    result = runner.invoke(app, ["lab", "faults", "--seeds", "0-2", "--out", str(file)])
    assert result.exit_code == 1
    assert "FAILED 1: no end: c1" in result.output
    kept = tmp_path / "faults-out" / "seed-1.json"
    assert f"1 of 2 faults are left; again: moiety lab faults --replay {kept}" in result.output
    assert "3 runs, 1 failed, 30 steps, 3 faults" in result.output
    assert [line for line in result.stderr.splitlines() if "runs done" in line] == [
        f"{done} of 3 runs done" for done in (1, 2, 3)
    ]
    assert Schedule.read(kept.read_text(), "kept") == a_schedule(_COPIED[0])
    found = json.loads(file.read_text())
    assert (found["runs"], found["failed"], found["steps"]) == (3, 1, 30)
    assert found["faults_injected"] == {"request lost": 3}
    again = f"moiety lab faults --replay {kept}"
    assert found["failures"] == [{"seed": 1, "broken": ["no end: c1"], "again": again, "faults": 1, "of_faults": 2}]
    replay = runner.invoke(app, ["lab", "faults", "--replay", str(kept)])
    assert (replay.exit_code, "FAILED 1: no end: c1" in replay.output) == (1, True)


def test_figures_are_kept_while_seeds_run_and_a_stop_is_gone_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []

    def stopped(seed: int) -> Simulated:
        if seed == 25:
            raise KeyboardInterrupt
        ran.append(seed)
        return Simulated(seed, 10, Counter({"request lost": 1}), ("completed: all rounds are done",), a_schedule())

    monkeypatch.setitem(cli.RUNS, Level.SERVERS, stopped)
    file = tmp_path / "found.json"
    arguments = ["lab", "faults", "--servers", "--seeds", "0-29", "--out", str(file), "--resume"]
    app, runner = moiety.build("lab faults"), CliRunner()
    assert runner.invoke(app, arguments).exit_code == 130
    kept = Faults.model_validate_json(file.read_text())
    assert (kept.runs, kept.next_seed, kept.seeds, kept.level) == (20, 20, "0-29", "servers")
    ran.clear()
    monkeypatch.setitem(cli.RUNS, Level.SERVERS, lambda seed: stopped(seed + 100))
    assert runner.invoke(app, arguments).exit_code == 0
    whole = Faults.model_validate_json(file.read_text())
    assert ran == list(range(120, 130))
    assert (whole.runs, whole.failed, whole.steps, whole.faults_injected) == (30, 0, 300, {"request lost": 30})
    assert whole.ends == {"completed": 30}


def test_figures_of_other_seeds_are_not_gone_on_with(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    Tally(file, "servers", range(5), go_on=False).write()
    assert Tally(file, "servers", range(5), go_on=True).left == range(5)
    with pytest.raises(ConfigurationError, match=r"figures of other seeds \(0-4\)"):
        Tally(file, "servers", range(6), go_on=True)
    file.write_text("{}")
    with pytest.raises(ConfigurationError, match="has no figures of faults"):
        Tally(file, "servers", range(5), go_on=True)


def test_nothing_is_broken_after_accidents_and_what_would_break_it_is_seen() -> None:
    schedule = a_schedule(
        *_COPIED,
        Away(who=("server b", "c1"), at_s=0.3, for_s=5.0),
        Full(who="server a", at_s=0.1, for_s=10.0),
        Stepped(who="c2", at_s=0.1, by_s=3600.0, for_s=20.0),
        delays_s=0.1,
    )
    found = replayed(schedule)
    assert found.failed == ()
    assert found.injected["restart of several at once"] == 1
    assert {"clock stepped", "disk full", "write refused", "request copied"} <= set(found.injected)
    with taken_out(next(one for one in MUTATIONS if one.name == "no nonces").put_in):
        assert "carried out twice" in replayed(schedule).promises
