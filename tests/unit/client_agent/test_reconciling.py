"""The memory of sums: written before it is relied on, read back whole, held against receipts, lost only aloud."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from client_agent.cli import agent_work
from client_agent.site import sum_memory as remembered_sums
from client_agent.site.context import SiteContext, lost_rounds, reconcile, reconcile_budget
from client_agent.site.sum_memory import SumMemory, sum_memory
from harness.federation.clocks import ToldClock
from protocol.errors import BadSignature, Clause, ConfigurationError, PolicyRefusal, TranscriptMismatch, Unavailable
from protocol.messages.control import ContributedRound, ContributedRounds, Signed, sign
from protocol.policy.exposure import SummedRow, SummedWeight
from protocol.policy.memory import KEPT_LENGTH
from protocol.policy.site_policy import SitePolicy
from protocol.sharing import Side
from tests.unit.client_agent.announced_rounds import DIGEST, announced, decided, post, released, views, weights
from tests.unit.client_agent.benches import SITE, Bench, FakeServer
from tests.unit.client_agent.federation import REQUESTER, keys, operator_keys

# --- reconciling ------------------------------------------------------------------------------------------------------

Contributed = Callable[[str, ContributedRound | None], Signed[ContributedRounds]]
HELD = tuple(
    ContributedRound(study="earlier", study_digest="ab" * 32, round=number, attempt=1, body_digest="cd" * 32)
    for number in range(1, 8)
)


def context_of(bench: Bench) -> SiteContext:
    return bench.contributor.context


@pytest.mark.parametrize("side", list(Side))
def test_a_round_that_one_server_knows_of_is_missed(bench: Bench, side: Side) -> None:
    bench.servers[side].receipts = HELD
    listed = weights()
    decision = decided(bench, listed, views(announced(listed)))
    assert (decision.accepted, decision.clause) == (False, Clause.MEMORY_UNRECONCILED)
    assert "lacks 7 rounds" in decision.reason
    assert "earlier round 1, earlier round 2" in decision.reason
    assert "and 2 more; an older copy of the state folder was put back" in decision.reason
    assert "moiety agent accept-rollback" in decision.reason
    assert "earlier" not in bench.decline().reason
    assert not context_of(bench).sums.rounds()


def test_what_the_requester_shows_of_a_forgotten_sum_hides_nothing(bench: Bench) -> None:
    """An older copy of the state folder was put back: the list brings the evidence of a sum that the site was in."""
    listed = weights(round_number=3)
    post(bench, listed, previous=released(2, 0, sites=(SITE, "c3", REQUESTER)))
    for server in bench.servers.values():
        server.receipts = (
            ContributedRound(study="this-one", study_digest=DIGEST, round=2, attempt=1, body_digest="cd" * 32),
        )
    decision = bench.contributor.decisions.decide(*views(announced(listed, model_version=1)))
    assert (decision.accepted, decision.clause) == (False, Clause.MEMORY_UNRECONCILED)
    assert "this-one round 2; an older copy of the state folder was put back" in decision.reason
    assert "restore the newest backup of its state folder" in decision.reason
    assert not context_of(bench).sums.rounds()


def test_a_memory_that_knows_them_is_asked_now_and_then(bench: Bench) -> None:
    """A second agent with this key contributes elsewhere in the meantime: this one notices, and stops."""
    now_s = 1e6
    context = replace(context_of(bench), clock=ToldClock(lambda: now_s))
    context.__dict__["sums"] = context_of(bench).sums
    bench.servers[Side.A].receipts = HELD[:1]
    context.sums.remember(row(1, study="ab" * 32), UPDATE, proven=True)
    reconcile(context)
    bench.servers[Side.A].receipts = HELD
    now_s += 200
    reconcile(context)
    now_s += 200
    with pytest.raises(PolicyRefusal, match="lacks 6 rounds"):
        reconcile(context)
    context.sums.forget([(one.study_digest, one.round) for one in HELD])
    reconcile(context)
    assert context.sums.reconciled_at_s == now_s


def test_what_is_contributed_while_the_servers_are_asked_is_not_lost(bench: Bench) -> None:
    """Another study's thread remembers a row and sends its share between the question and the answer."""
    context, receipts = context_of(bench), bench.servers[Side.B].contributed

    def meanwhile(nonce: str, after: ContributedRound | None) -> Signed[ContributedRounds]:
        context.sums.remember(row(1, study="ab" * 32), UPDATE, proven=True)
        bench.servers[Side.B].receipts = HELD[:1]
        return receipts(nonce, after)

    bench.servers[Side.B].contributed = meanwhile  # type: ignore[method-assign]
    assert lost(context) == ()


def test_both_servers_must_answer(bench: Bench) -> None:
    def away(nonce: str, after: ContributedRound | None) -> Signed[ContributedRounds]:
        raise Unavailable("server B is away")

    bench.servers[Side.B].contributed = away  # type: ignore[method-assign]
    listed = weights()
    with pytest.raises(Unavailable):
        decided(bench, listed, views(announced(listed)))
    assert context_of(bench).sums.reconciled_at_s is None


def lost(context: SiteContext) -> tuple[ContributedRound, ...]:
    return lost_rounds(context.sums, context.clients, context.roster, context.site)


def test_pages_are_read_to_the_end(bench: Bench) -> None:
    def in_pages(nonce: str, after: ContributedRound | None) -> Signed[ContributedRounds]:
        begin = 0 if after is None else HELD.index(after) + 1
        page = ContributedRounds(site=SITE, nonce=nonce, rounds=HELD[begin : begin + 3], more=begin + 3 < len(HELD))
        return sign(page, operator_keys(Side.A).name, operator_keys(Side.A).signing)

    bench.servers[Side.A].contributed = in_pages  # type: ignore[method-assign]
    assert lost(context_of(bench)) == HELD


def endless(side: Side, asked: list[int], step: int, page_rounds: int) -> Contributed:
    """A server whose pages never end: each round ``step`` after the one before."""

    def answer(nonce: str, after: ContributedRound | None) -> Signed[ContributedRounds]:
        if len(asked) == 40:
            raise AssertionError("asked on and on")
        first = len(asked) * page_rounds * step + 1
        asked.append(first)
        rounds = (
            tuple(
                ContributedRound(study="s", study_digest="ab" * 32, round=number, attempt=1, body_digest="cd" * 32)
                for number in range(first, first + page_rounds * step, step or 1)
            )
            or HELD[:1]
        )
        page = ContributedRounds(site=SITE, nonce=nonce, rounds=rounds, more=True)
        return sign(page, operator_keys(side).name, operator_keys(side).signing)

    return answer


@pytest.mark.parametrize("side", list(Side))
def test_pages_that_never_end_are_refused(bench: Bench, side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same page again and again, or ever new rounds: a server can make this site hold no more than a bound."""
    asked = list[int]()
    bench.servers[side].contributed = endless(side, asked, 0, 1)  # type: ignore[method-assign, assignment]
    with pytest.raises(TranscriptMismatch, match=f"server {side} names rounds out of their order, or one twice"):
        lost(context_of(bench))
    assert len(asked) == 2
    asked.clear()
    monkeypatch.setattr("client_agent.site.context.MOST_LOST", 30)
    bench.servers[side].contributed = endless(side, asked, 2, 5)  # type: ignore[method-assign, assignment]
    with pytest.raises(TranscriptMismatch, match=f"server {side} says .* in more than 30 rounds that nothing here"):
        lost(context_of(bench))
    assert len(asked) == 7


def test_rounds_that_are_remembered_count_towards_no_bound(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("client_agent.site.context.MOST_LOST", 1)
    context = context_of(bench)
    context.sums.forget([(one.study_digest, one.round) for one in HELD[1:]])
    for side in Side:
        bench.servers[side].receipts = HELD
    assert lost(context) == HELD[:1]


@pytest.mark.parametrize("rounds", [(2, 1), (1, 1)])
def test_a_page_out_of_order_is_refused(bench: Bench, rounds: tuple[int, ...]) -> None:
    bench.servers[Side.B].receipts = tuple(HELD[number] for number in rounds)
    with pytest.raises(TranscriptMismatch, match="server b names rounds out of their order, or one twice"):
        lost(context_of(bench))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"nonce": "00" * 32}, TranscriptMismatch),
        ({"site": "c2"}, TranscriptMismatch),
        ({"more": True}, TranscriptMismatch),
    ],
)
def test_an_answer_to_another_question_counts_for_nothing(
    bench: Bench, change: dict[str, object], error: type[Exception]
) -> None:
    def other(nonce: str, after: ContributedRound | None) -> Signed[ContributedRounds]:
        page = ContributedRounds(site=SITE, nonce=nonce, rounds=(), more=False).model_copy(update=change)
        return sign(page, operator_keys(Side.A).name, operator_keys(Side.A).signing)

    bench.servers[Side.A].contributed = other  # type: ignore[method-assign]
    with pytest.raises(error):
        lost(context_of(bench))


def test_one_server_cannot_answer_for_the_other(bench: Bench) -> None:
    bench.servers[Side.A].contributed = replace(bench.servers[Side.A], side=Side.B).contributed  # type: ignore[method-assign]
    with pytest.raises(BadSignature):
        lost(context_of(bench))


def test_a_count_of_a_budget_that_was_put_back_spends_nothing(bench: Bench) -> None:
    """An older copy knows the first rounds; the servers have receipts for more."""
    now_s = 1e6
    policy = SitePolicy(epsilon=8.0)
    context = replace(context_of(bench), clock=ToldClock(lambda: now_s), policy=policy)
    context.budget.begin_after([(one.study_digest, one.round) for one in HELD[:2]])
    older = (context.state_dir / "budget").rglob("spent.json")
    (path,) = older
    kept = path.read_bytes()
    context.budget.begin_after([(one.study_digest, one.round) for one in HELD[:4]])
    bench.servers[Side.B].receipts = HELD[:4]
    reconcile_budget(context)
    path.write_bytes(kept)
    restarted = replace(context)
    with pytest.raises(PolicyRefusal, match="earlier round 3, earlier round 4; stop the agent") as refused:
        reconcile_budget(restarted)
    assert refused.value.clause is Clause.BUDGET_UNRECONCILED
    assert refused.value.clause.passes
    assert "earlier" not in refused.value.told
    assert restarted.budget.reconciled_at_s is None


def test_a_budget_is_asked_about_only_where_there_is_one_and_now_and_then(bench: Bench) -> None:
    now_s = 1e6
    without = context_of(bench)
    bench.servers[Side.A].receipts = HELD[:1]
    reconcile_budget(without)
    context = replace(without, clock=ToldClock(lambda: now_s), policy=SitePolicy(epsilon=8.0))
    context.budget.begin_after([(HELD[0].study_digest, HELD[0].round)])
    reconcile_budget(context)
    bench.servers[Side.A].receipts = HELD
    now_s += 200
    reconcile_budget(context)
    now_s += 200
    with pytest.raises(PolicyRefusal, match="lacks 6 rounds that servers have its receipts for"):
        reconcile_budget(context)


# --- memory cli -------------------------------------------------------------------------------------------------------


def forgotten(folder: Path) -> frozenset[tuple[str, int]]:
    return sum_memory(folder, keys(SITE).party().signing_key, lambda: bytes(32)).rounds()


def test_it_asks_first(servers: dict[Side, FakeServer], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = SimpleNamespace(state_dir=tmp_path, site=SITE, policy=SitePolicy())
    agent_work.go_on_without(settings, yes=False)  # type: ignore[arg-type]
    assert "nothing is lost" in capsys.readouterr().out
    servers[Side.B].receipts = HELD[:2]
    agent_work.go_on_without(settings, yes=False)  # type: ignore[arg-type]
    said = capsys.readouterr().out
    assert "earlier round 1\nearlier round 2\n" in said
    assert "can show single updates of this site" in said
    assert "nothing was changed" in said
    assert not forgotten(tmp_path)
    agent_work.go_on_without(settings, yes=True)  # type: ignore[arg-type]
    assert "2 rounds are forgotten" in capsys.readouterr().out
    assert forgotten(tmp_path) == {("ab" * 32, 1), ("ab" * 32, 2)}
    agent_work.go_on_without(settings, yes=True)  # type: ignore[arg-type]
    assert "nothing is lost" in capsys.readouterr().out


# --- remembered sums --------------------------------------------------------------------------------------------------


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
