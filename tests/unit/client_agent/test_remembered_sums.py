"""The memory of sums: written before it is relied on, read back whole, narrowed by evidence, lost only aloud."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from client_agent.site import remembered_sums
from client_agent.site.remembered_sums import SumMemory, sum_memory
from protocol.errors import Clause, ConfigurationError, PolicyRefusal
from protocol.policy.exposure import SummedRow, SummedWeight
from protocol.policy.memory import KEPT_LENGTH
from protocol.policy.site_policy import SitePolicy
from tests.unit.client_agent.federation import keys

UPDATE = np.array([1.0, -2.0, 0.5])
POLICY = SitePolicy()


def row(number: int, sites: str = "abcd", *, study: str = "one", least: int | None = None) -> SummedRow:
    return SummedRow(
        study_digest=study,
        round=number,
        dimension=len(UPDATE),
        weights=tuple(SummedWeight(site=site, weight=1.0) for site in sites),
        least=len(sites) if least is None else least,
    )


@pytest.fixture
def memory(tmp_path: Path) -> SumMemory:
    return opened(tmp_path)


def opened(folder: Path) -> SumMemory:
    return SumMemory(folder / "sums", lambda: bytes(32))


def test_what_was_agreed_to_is_there_after_a_restart(memory: SumMemory, tmp_path: Path) -> None:
    found = memory.agree(row(1), UPDATE, POLICY, 0)
    assert found.least == pytest.approx(np.sqrt(3 / 4), abs=1e-5)
    (again,) = opened(tmp_path).known()
    assert again.row == row(1)
    np.testing.assert_array_equal(again.update, UPDATE)
    assert opened(tmp_path).rounds() == {("one", 1)}


def test_a_refused_sum_is_not_remembered(memory: SumMemory) -> None:
    memory.agree(row(1), UPDATE, POLICY, 0)
    with pytest.raises(PolicyRefusal, match=r"relative error of 0\.000") as refused:
        memory.agree(row(2, "bcd"), UPDATE, POLICY, 0)
    assert refused.value.clause is Clause.ISOLATION
    assert "0.000" not in refused.value.told
    assert memory.rounds() == {("one", 1)}
    memory.agree(row(2, "bcd"), UPDATE, SitePolicy(least_isolation=0.0), 0)


def test_agreeing_again_changes_nothing_and_to_another_list_is_refused(memory: SumMemory) -> None:
    first = memory.agree(row(1), UPDATE, POLICY, 0)
    assert memory.agree(row(1), UPDATE, POLICY, 0) == first
    assert len(memory.known()) == 1
    with pytest.raises(PolicyRefusal, match="one round has one list"):
        memory.agree(row(1, "abce"), UPDATE, POLICY, 0)


def test_a_proposal_gives_way_to_another(memory: SumMemory, tmp_path: Path) -> None:
    memory.propose(row(1), UPDATE, POLICY, 0)
    memory.propose(row(1, "abce"), 2 * UPDATE, POLICY, 0)
    (kept,) = opened(tmp_path).known()
    assert kept.row == row(1, "abce")
    np.testing.assert_array_equal(kept.update, 2 * UPDATE)


def test_a_release_narrows_and_a_skip_removes(memory: SumMemory, tmp_path: Path) -> None:
    memory.agree(row(1, least=3), UPDATE, POLICY, 0)
    with pytest.raises(PolicyRefusal):
        memory.agree(row(2), UPDATE, POLICY, 0)
    memory.settle(("one", 1), ("a", "b", "c", "d"))
    memory.agree(row(2), UPDATE, POLICY, 0)
    memory.drop(("one", 1))
    assert [known.row.round for known in opened(tmp_path).known()] == [1, 2], "a released sum stays"
    memory.drop(("one", 2))
    assert [known.row.round for known in opened(tmp_path).known()] == [1]
    assert opened(tmp_path).rounds() == {("one", 1), ("one", 2)}, "a skipped round is known of"
    memory.settle(("one", 9), ("a",))
    memory.drop(("one", 9))
    assert len(memory.rounds()) == 2


def test_the_nearest_own_update_stands_in(memory: SumMemory) -> None:
    memory.remember(row(1, study="other"), 7 * UPDATE, proven=True)
    memory.remember(row(2), UPDATE, proven=True)
    memory.remember(row(5), None, proven=True)
    memory.remember(row(6), 3 * UPDATE, proven=True)
    memory.remember(row(9, study="third"), None, proven=True)
    stood_in = [known.update for known in memory.known()]
    for found, times in zip(stood_in, (7, 1, 3, 3, 3), strict=True):
        np.testing.assert_array_equal(found, times * UPDATE)


def test_without_any_own_update_the_newest_stands_in(memory: SumMemory) -> None:
    memory.remember(row(1), None, proven=True)
    assert memory.known()[0].update is None
    with pytest.raises(PolicyRefusal):
        memory.agree(row(2, "bcd"), UPDATE, POLICY, 0)


def test_old_updates_go_and_their_rounds_stay_known(
    memory: SumMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remembered_sums, "MOST_KEPT", 5)
    for number in range(1, 8):
        memory.remember(row(number), UPDATE, proven=True)
    assert len(memory.known()) == 5
    assert len(list((tmp_path / "sums").glob("*.f64"))) == 5
    assert ("one", 1) in memory.rounds()


def test_short_and_long_updates_are_compared(memory: SumMemory) -> None:
    """One coordinate beyond the length up to which an update is kept whole."""
    long = np.random.default_rng(2).normal(size=KEPT_LENGTH + 1)
    short = long[:-1]
    memory.remember(row(1, study="long").model_copy(update={"dimension": long.size}), memory.kept(long), proven=True)
    with pytest.raises(PolicyRefusal):
        memory.agree(row(1, "bcd").model_copy(update={"dimension": short.size}), memory.kept(short), POLICY, 0)
    memory.remember(row(2).model_copy(update={"dimension": short.size}), memory.kept(short), proven=True)
    memory.remember(row(3).model_copy(update={"dimension": 7}), None, proven=True)
    with pytest.raises(PolicyRefusal):
        memory.agree(row(4, "bcd").model_copy(update={"dimension": long.size}), memory.kept(long), POLICY, 0)


def test_a_lost_seed_stops_a_site_that_has_sketches(memory: SumMemory, tmp_path: Path) -> None:
    long = np.ones(KEPT_LENGTH + 1)
    memory.remember(row(1).model_copy(update={"dimension": long.size}), None, proven=True)
    memory.remember(row(2).model_copy(update={"dimension": long.size}), memory.kept(long), proven=True)
    (tmp_path / "sums" / "sketch.seed").unlink()
    with pytest.raises(ConfigurationError, match=r"sketch\.seed is missing"):
        opened(tmp_path).kept(long)


def test_forgetting_is_kept(memory: SumMemory, tmp_path: Path) -> None:
    memory.forget([("gone", 3), ("gone", 4)])
    memory.forget([("gone", 4), ("gone", 5)])
    assert opened(tmp_path).rounds() == {("gone", 3), ("gone", 4), ("gone", 5)}


def test_long_updates_are_sketched_under_one_seed(tmp_path: Path) -> None:
    update = np.random.default_rng(1).normal(size=10_000).astype(np.float32)
    first = opened(tmp_path).kept(update)
    other_draw = SumMemory(tmp_path / "sums", lambda: bytes([1]) * 32)
    np.testing.assert_array_equal(other_draw.kept(update), first)
    (tmp_path / "sums" / "sketch.seed").write_bytes(b"short")
    with pytest.raises(ConfigurationError, match="holds 5 bytes"):
        opened(tmp_path).kept(update)


def test_a_broken_file_stops_the_site(memory: SumMemory, tmp_path: Path) -> None:
    memory.remember(row(1), UPDATE, proven=True)
    (tmp_path / "sums" / "00000001.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="not a file of this site's memory of sums"):
        opened(tmp_path)


def test_an_update_without_its_row_is_no_round(memory: SumMemory, tmp_path: Path) -> None:
    """A crash between the two writes: the number is taken again."""
    memory.remember(row(1), UPDATE, proven=True)
    (tmp_path / "sums" / "00000002.f64").write_bytes(b"half")
    after = opened(tmp_path)
    after.remember(row(2), UPDATE, proven=True)
    np.testing.assert_array_equal(after.known()[1].update, UPDATE)


def test_a_memory_belongs_to_a_key(tmp_path: Path) -> None:
    sum_memory(tmp_path, keys("c1").party().signing_key, lambda: bytes(32)).remember(row(1), UPDATE, proven=True)
    assert sum_memory(tmp_path, keys("c1").party().signing_key, lambda: bytes(32)).rounds()
    assert not sum_memory(tmp_path, keys("c2").party().signing_key, lambda: bytes(32)).rounds()


# --- whether every earlier round is accounted for ---


def test_rounds_that_were_agreed_to_skipped_or_sum_no_updates_are_accounted_for(tmp_path: Path) -> None:
    memory = opened(tmp_path)
    memory.agree(row(1), UPDATE, POLICY, 0)
    memory.agree(row(2), UPDATE, POLICY, 0)
    memory.drop(("one", 2))
    memory.drop(("one", 3))
    memory.rule_out(("one", 4))
    memory.rule_out(("one", 4))
    for one in (memory, opened(tmp_path)):
        assert one.told_of_all(row(5))
        assert not one.told_of_all(row(6))
        assert not one.told_of_all(row(2, study="two"))
        assert one.rounds() == {("one", 1), ("one", 2)}
        accounted = [number for number in range(1, 6) if one.accounted(("one", number))]
        assert accounted == [2, 3, 4], "of round 1 it can still learn who was summed"
    memory.settle(("one", 1), tuple("abcd"))
    assert memory.accounted(("one", 1))


def test_a_sum_on_the_requesters_word_counts_and_accounts_for_nothing_until_servers_show_it(memory: SumMemory) -> None:
    memory.remember(row(1).model_copy(update={"released": tuple("abc")}), None, proven=False)
    assert len(memory.known()) == 1
    assert not memory.told_of_all(row(2))
    assert not memory.accounted(("one", 1))
    memory.settle(("one", 1), tuple("abcd"))
    assert memory.told_of_all(row(2))


def test_a_refused_round_that_left_nothing_here_blinds(memory: SumMemory) -> None:
    memory.agree(row(1), UPDATE, POLICY, 0)
    with pytest.raises(PolicyRefusal, match=r"relative error of 0\.000"):
        memory.agree(row(3, "bcdef"), UPDATE, POLICY, 0)
    memory.rule_out(("one", 2))
    memory.agree(row(3, "bcdef"), UPDATE, POLICY, 0)


def test_a_memory_of_an_earlier_version_proves_nothing_but_its_skips(memory: SumMemory, tmp_path: Path) -> None:
    """Its rows say not whose word they are; a skip was always both servers'."""
    for number in (1, 2):
        memory.agree(row(number), UPDATE, POLICY, 0)
    memory.drop(("one", 1))
    for path in (tmp_path / "sums").glob("0*.json"):
        text = json.loads(path.read_text())
        del text["proven"]
        path.write_text(json.dumps(text))
    old = opened(tmp_path)
    assert old.told_of_all(row(2))
    assert not old.told_of_all(row(3))
    old.agree(row(3), UPDATE, POLICY, 0)  # the same sites as ever: nothing is linked
    old.settle(("one", 2), tuple("abcd"))
    assert old.told_of_all(row(3)), "a release that servers show still proves it"


def test_a_requester_that_asked_for_all_sums_is_never_blind(memory: SumMemory) -> None:
    memory.propose(row(1), UPDATE, POLICY, 0)
    memory.propose(row(7, "bcdef"), UPDATE, POLICY, 0)
