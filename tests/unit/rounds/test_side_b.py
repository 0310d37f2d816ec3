"""Side B's answers: what holds whatever comes, in whatever order (docs/protocol.md 4, 7 to 11).

What it answers to what, in these rounds and more, is recorded in tests/frozen/recorded/decisions.json.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from protocol.errors import AnnouncementMismatch, MoietyError, Unavailable, WrongRound
from protocol.messages.control import (
    AgreedSet,
    Go,
    OutcomeCause,
    ReleaseSet,
    RoundOutcome,
    RoundState,
    Signed,
    SumRelease,
    TagSeed,
    TagsFailed,
)
from protocol.messages.peer import HandOver, LockRequest, ProductsHeader
from protocol.rounds import side_b
from protocol.rounds.agreement import agree, nonce_commitment
from protocol.rounds.side_a import outcome_of
from protocol.rounds.side_b import Answer, Move, Reply
from protocol.rounds.states import EndAgreed, Queried, RoundEvent
from tests.unit.parties import SITES
from tests.unit.rounds.traces_a import ANNOUNCED, CLOSES_S, HELD, OTHER, ROSTER, TAGGED
from tests.unit.rounds.traces_b import Answered, Trace

SEEDS = range(10_000, 10_500)


@pytest.fixture(scope="module")
def rounds() -> list[list[Answered]]:
    return [Trace(seed).run() for seed in SEEDS] + [Trace(seed, TAGGED).run() for seed in SEEDS]


@pytest.fixture(scope="module")
def answered(rounds: list[list[Answered]]) -> list[Answered]:
    return [one for trace in rounds for one in trace]


def taken(trace: list[Answered], *kinds: type) -> Iterator[tuple[Any, Answer]]:
    for one in trace:
        if isinstance(one.message, kinds) and one.taken:
            assert not isinstance(one.answer, MoietyError)
            yield one.message, one.answer


def named(message: Any) -> Any:
    if isinstance(message, HandOver):
        return message.go.message
    return message.agreed_set.message if isinstance(message, LockRequest) else message


@pytest.mark.parametrize("kind", [LockRequest, AgreedSet, ReleaseSet, SumRelease, TagSeed])
def test_of_each_kind_one_message_is_taken_in_a_round_and_again_as_often_as_it_comes(
    rounds: list[list[Answered]], kind: type
) -> None:
    repeats = 0
    for trace in rounds:
        accepted = list(taken(trace, kind))
        assert all(message == accepted[0][0] for message, _ in accepted)
        assert [answer is Reply.AGAIN for _, answer in accepted[1:]] == [True] * (len(accepted) - 1)
        repeats += len(accepted) > 1
    assert repeats > 3


def test_what_names_another_study_round_or_attempt_is_refused(answered: list[Answered]) -> None:
    strange = 0
    for one in answered:
        message, key = named(one.message), one.record.key
        own = {"study_digest": key.study, "round": key.round, "attempt": key.attempt}
        if any(getattr(message, field, value) != value for field, value in own.items()):
            strange += 1
            assert isinstance(one.answer, MoietyError), one
    assert strange > 75


def test_a_sum_and_a_skip_exclude_each_other(rounds: list[list[Answered]]) -> None:
    both = 0
    for trace in rounds:
        sums = [answer for _, answer in taken(trace, SumRelease)]
        ends = [message for message, _ in taken(trace, RoundOutcome)]
        skips = [end for end in ends if end.outcome is RoundState.SKIPPED]
        tried = any(isinstance(one.message, SumRelease) and isinstance(one.state.end, EndAgreed) for one in trace)
        both += tried
        assert not (sums and skips), trace
    assert both > 1


def test_a_sum_is_of_the_release_set_that_this_side_holds(answered: list[Answered]) -> None:
    ended = [one for one in answered if isinstance(one.message, SumRelease) and isinstance(one.answer, Move)]
    assert ended
    for one in ended:
        with pytest.raises(AnnouncementMismatch, match="of another release set than this side holds"):
            side_b.answer(one.state, one.message.model_copy(update={"release_digest": OTHER}), ROSTER)


def test_with_tags_only_a_go_that_a_handed_over_releases_and_a_skip_excludes_it(rounds: list[list[Answered]]) -> None:
    released = skipped = offered_and_skipped = 0
    for trace in rounds:
        if not trace[0].record.announcement.message.tagged:
            continue
        handed = [answer for _, answer in taken(trace, HandOver) if isinstance(answer, Move)]
        skips = [answer for message, answer in taken(trace, RoundOutcome) if message.outcome is RoundState.SKIPPED]
        assert not (handed and skips), trace
        assert len(handed) <= 1
        released, skipped = released + len(handed), skipped + bool(skips)
        offered_and_skipped += bool(skips) and trace[-1].record.go is not None
        for one in trace:
            assert not (isinstance(one.message, Go | TagsFailed | TagSeed) and isinstance(one.answer, Move))
            assert not (isinstance(one.answer, Move) and one.answer.event is RoundEvent.RELEASED) or isinstance(
                one.message, HandOver
            )
    assert min(released, skipped) > 2
    assert offered_and_skipped


def test_one_verdict_a_round_over_this_sides_own_words(rounds: list[list[Answered]]) -> None:
    again = 0
    for trace in rounds:
        kept = [message for message, answer in taken(trace, Go, TagsFailed)]
        kept += [message.go.message for message, answer in taken(trace, HandOver)]
        assert all(verdict == kept[0] for verdict in kept)
        again += len(kept) > 1
    assert again > 12


def test_products_are_taken_between_the_challenge_and_an_opening(answered: list[Answered]) -> None:
    for one in answered:
        if isinstance(one.message, ProductsHeader) and isinstance(one.answer, Move):
            assert one.record.state is RoundState.LOCKED
            assert isinstance(one.state.toss, Queried)
            assert one.message.transcript_digest == one.state.toss.transcript.message.digest() != OTHER


def test_an_opening_made_meanwhile_counts_where_products_would(answered: list[Answered]) -> None:
    kept = 0
    for one in answered:
        if one.record.state is RoundState.LOCKED and not isinstance(one.state.end, EndAgreed):
            kept += 1
            assert side_b.opened(one.state) is RoundState.MEASURED
        else:
            with pytest.raises(WrongRound, match="became"):
                side_b.opened(one.state)
    assert kept


def test_what_sums_nothing_is_never_released_and_ends_as_its_purpose_says(answered: list[Answered]) -> None:
    for one in answered:
        plan = one.record.announcement.message.purpose.plan
        if isinstance(one.message, ReleaseSet) and not plan.summed:
            assert isinstance(one.answer, MoietyError)
        if isinstance(one.answer, Move) and one.answer.event in (RoundEvent.RANKED, RoundEvent.CLOSED):
            assert one.answer.event.value == plan.ends_as


def test_what_was_measured_to_be_opened_alone_is_not_skipped(answered: list[Answered]) -> None:
    found = 0
    for one in answered:
        measured = one.record.state is RoundState.MEASURED and not isinstance(one.state.end, EndAgreed)
        if measured and not one.record.announcement.message.purpose.plan.summed:
            found += 1
            skip = outcome_of(one.record.key, RoundState.SKIPPED, OutcomeCause.QUERIES_MISSING)
            with pytest.raises(WrongRound, match="not skipped after that"):
                side_b.answer(one.state, skip, ROSTER)
    assert found


def test_an_answer_follows_from_its_arguments_alone(answered: list[Answered]) -> None:
    for one in answered[::5]:
        if not isinstance(one.answer, MoietyError):
            assert side_b.answer(one.state, one.message, ROSTER) == one.answer


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize(
    ("now_s", "declined", "signs"),
    [
        (CLOSES_S - 1, (), False),
        (CLOSES_S - 1, (SITES[1],), False),
        (CLOSES_S - 1, (SITES[3],), True),
        (CLOSES_S, (), True),
    ],
)
def test_side_a_alone_leaves_nobody_out_early(
    now_s: float, declined: tuple[str, ...], signs: bool, encrypted: bool
) -> None:
    """A set without the last site is signed early only if that site's decline is here, too."""
    announced = next(one for one in ANNOUNCED if one.protection.plan.keyed is encrypted and one.round == 1)
    trace = Trace(0, (announced,))
    contributions = tuple(HELD[announced, site, False] for site in SITES)
    trace.held, trace.of = () if encrypted else contributions, announced
    agreed = agree(announced, 1, ROSTER, contributions[:3], contributions[:3])
    asked: Any = agreed
    if not encrypted:
        commitment = nonce_commitment(1, agreed.digest(), bytes(32))
        asked = LockRequest(agreed_set=Signed[AgreedSet](message=agreed), commitment_a=commitment)
    state = trace.standing(now_s, declined)
    if signs:
        assert isinstance(side_b.answer(state, asked, ROSTER), Move)
    else:
        with pytest.raises(Unavailable, match=f"{SITES[3]} may still contribute"):
            side_b.answer(state, asked, ROSTER)
