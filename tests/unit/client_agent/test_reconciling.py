"""A memory that lacks a round with a receipt contributes nothing until it is restored or said to be lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from client_agent.cli import agent_work
from client_agent.site.context import SiteContext, lost_rounds, reconcile, reconcile_budget
from client_agent.site.sum_memory import sum_memory
from harness.federation.clocks import ToldClock
from protocol.errors import BadSignature, Clause, PolicyRefusal, TranscriptMismatch, Unavailable
from protocol.messages.control import ContributedRound, ContributedRounds, Signed, sign
from protocol.policy.site_policy import SitePolicy
from protocol.sharing import Side
from tests.unit.client_agent.announced_rounds import DIGEST, announced, decided, post, released, views, weights
from tests.unit.client_agent.benches import SITE, Bench, FakeServer
from tests.unit.client_agent.federation import REQUESTER, keys, operator_keys
from tests.unit.client_agent.test_remembered_sums import UPDATE, row

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
