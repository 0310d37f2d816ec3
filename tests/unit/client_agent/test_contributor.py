"""A contributor believes and declines: views made by hand, no server."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from client_agent.site.events import EventKind, RoundEnd
from protocol.errors import (
    AnnouncementMismatch,
    BadSignature,
    Clause,
    ErrorCode,
    MoietyError,
    Unavailable,
    UnknownResource,
    WrongRound,
)
from protocol.messages.control import (
    OutcomeCause,
    RoundOutcome,
    RoundState,
    RoundView,
    Signed,
    StudyState,
    StudyView,
    WeightList,
    sign,
)
from protocol.sharing import Side
from tests.unit.client_agent.announced_rounds import (
    DIGEST,
    STUDY,
    announced,
    decided,
    post,
    views,
    weights,
)
from tests.unit.client_agent.benches import Bench
from tests.unit.client_agent.federation import ended_as, ended_round, operator_keys


def test_a_sound_round_is_accepted_and_remembered_before_anything_leaves(bench: Bench) -> None:
    listed = weights()
    decision = decided(bench, listed, views(announced(listed)))
    assert decision.accepted
    assert bench.contributor.state.memory.last_listed == listed.weights
    assert bench.contributor.state.memory.measured_rounds == (1,)
    assert bench.contributor.decisions.decide(*views(announced(listed))) == decision
    assert bench.servers[Side.A].sent == {}


Change = Callable[[WeightList], tuple[RoundView, RoundView]]


@pytest.mark.parametrize(
    ("change", "code", "reason"),
    [
        (
            lambda w: views(announced(w), announced(w, closes_at_s=5)),
            ErrorCode.ANNOUNCEMENT_MISMATCH,
            "the two servers show different announcements",
        ),
        (lambda w: views(announced(w), requester="c2"), ErrorCode.BAD_SIGNATURE, "signature of 'r0' is missing"),
        (
            lambda w: views(announced(w, study_digest="00" * 32)),
            ErrorCode.ANNOUNCEMENT_MISMATCH,
            "for another study or round",
        ),
        (
            lambda w: views(announced(w, weight_list_digest="00" * 32)),
            ErrorCode.ANNOUNCEMENT_MISMATCH,
            "the weight list is not the announced one",
        ),
        (
            lambda w: views(announced(w, model_digest="00" * 32)),
            ErrorCode.MODEL_DIVERGED,
            "this site's model 0 is not the requester's",
        ),
        (lambda w: views(announced(w, model_version=2)), Clause.MODEL_BEHIND, "this site has 0"),
        (
            lambda w: views(announced(w, least_contributors=2)),
            Clause.LEAST_NUMBER,
            "least_number",
        ),
    ],
)
def test_what_does_not_hold_is_declined_with_the_reason(
    bench: Bench, change: Change, code: ErrorCode | Clause, reason: str
) -> None:
    listed = weights()
    decision = decided(bench, listed, change(listed))
    clause = code if isinstance(code, Clause) else None
    expected = (ErrorCode.POLICY_REFUSAL if clause else code, clause)
    assert (decision.accepted, decision.code, decision.clause) == (False, *expected)
    assert reason in decision.reason
    assert (bench.decline().code, bench.decline().clause) == expected
    assert reason in bench.decline().reason
    assert bench.contributor.state.memory.last_listed == ()
    again = bench.contributor.decisions.decide(*change(listed))
    assert again == decision
    assert [event.kind for event in bench.events].count(EventKind.DECLINED) == 1


def test_a_list_outside_the_policy_or_the_grid_is_declined(bench: Bench) -> None:
    heavy = weights((32, 4, 4))
    assert "largest_share" in decided(bench, heavy, views(announced(heavy))).reason
    beyond = weights((33, 32, 32), round_number=2)
    assert "grid" in decided(bench, beyond, views(announced(beyond))).reason


def test_a_missing_countersignature_is_declined(bench: Bench) -> None:
    listed = weights()
    a, b = views(announced(listed))
    bare = b.model_copy(update={"announcement": a.announcement})
    assert decided(bench, listed, (a, bare)).code == ErrorCode.BAD_SIGNATURE


def test_a_site_that_is_not_listed_says_nothing(bench: Bench) -> None:
    listed = weights()
    away = announced(listed, listed=("c2", "c3", "r0"))
    decision = decided(bench, listed, views(away))
    assert (decision.accepted, decision.listed, decision.code) == (False, False, None)
    assert bench.servers[Side.A].sent == {}


@pytest.mark.parametrize("number", ["\u00b2", "9" * 5000, "-1", ""])
def test_a_topic_that_names_no_version_is_no_welcome(bench: Bench, number: str) -> None:
    """One server's list of letters is its word alone, and must not end the look at both views."""
    shown = StudyView(study="unit", study_digest=DIGEST, cursor=1, ready=(), mail=(f"welcome-{number}/r0",))
    bench.contributor.take_welcome(shown)
    assert bench.servers[Side.A].sent == {}


def test_one_server_that_says_a_site_is_not_listed_is_not_believed(bench: Bench) -> None:
    """Nothing is journalled by its word alone: the site takes part once it shows what was announced."""
    listed = weights()
    away = announced(listed, listed=("c2", "c3", "r0"))
    at_a, at_b = views(announced(listed))
    forged = sign(away, operator_keys(Side.A).name, operator_keys(Side.A).signing)
    with pytest.raises(BadSignature):
        decided(bench, listed, (at_a.model_copy(update={"announcement": forged}), at_b))
    with pytest.raises(AnnouncementMismatch):
        decided(bench, listed, views(away, announced(listed)))
    assert decided(bench, listed, (at_a, at_b)).accepted


def test_too_late_is_no_reason_to_decline(bench: Bench) -> None:
    listed = weights()
    at = views(announced(listed))
    decision = decided(bench, listed, at)
    bench.servers[Side.A].refuses = bench.servers[Side.B].refuses = WrongRound("locked")
    assert bench.contributor.carry_out(decision, 1) == decision
    assert [event.text for event in bench.events if event.kind is EventKind.PROBLEM] == ["locked"]
    assert bench.servers[Side.A].sent == {}


def test_a_server_that_is_away_leaves_the_contribution_to_be_resent(bench: Bench) -> None:
    listed = weights()
    decision = decided(bench, listed, views(announced(listed)))
    bench.servers[Side.A].refuses = bench.servers[Side.B].refuses = Unavailable("down")
    folder = bench.contributor.journal.attempt_folder(1, 1)
    with pytest.raises(Unavailable):
        bench.contributor.carry_out(decision, 1)
    first = (folder / "a.sealed").read_bytes()
    with pytest.raises(Unavailable):
        bench.contributor.carry_out(decision, 1)
    assert (folder / "a.sealed").read_bytes() == first
    assert not (folder / "done").exists()


skip_of = partial(ended_round, DIGEST)


def with_outcomes(
    at: tuple[RoundView, RoundView], at_a: Signed[RoundOutcome] | None, at_b: Signed[RoundOutcome] | None
) -> tuple[RoundView, RoundView]:
    return at[0].model_copy(update={"outcome": at_a}), at[1].model_copy(update={"outcome": at_b})


def test_a_skipped_round_is_recorded_once_and_settled(bench: Bench) -> None:
    """Side A may show its own signature only, while side B has both."""
    listed = weights()
    decided(bench, listed, views(announced(listed)))
    assert bench.contributor.state.memory.unsettled == 1
    at = with_outcomes(views(announced(listed), state=RoundState.SKIPPED), skip_of(1, (Side.A,)), skip_of())
    bench.contributor.follow(*at)
    bench.contributor.follow(*at)
    records = [event.record for event in bench.events if event.record is not None]
    assert [(record.round, record.state, record.reason) for record in records] == [
        (1, RoundEnd.SKIPPED, OutcomeCause.NOT_AGREED_IN_TIME.said())
    ]
    assert bench.contributor.state.memory.unsettled is None


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (None, UnknownResource),
        (skip_of(1, (Side.A,)), UnknownResource),
        (skip_of(2), AnnouncementMismatch),
        (skip_of(study_digest="00" * 32), AnnouncementMismatch),
        (skip_of(outcome=RoundState.BURNT, cause=OutcomeCause.CORRELATIONS_LOST), AnnouncementMismatch),
    ],
)
def test_a_skip_that_not_both_servers_signed_settles_nothing(
    bench: Bench, outcome: Signed[RoundOutcome] | None, error: type[MoietyError]
) -> None:
    listed = weights()
    decided(bench, listed, views(announced(listed)))
    with pytest.raises(error):
        bench.contributor.follow(*with_outcomes(views(announced(listed), state=RoundState.SKIPPED), outcome, outcome))
    assert bench.contributor.state.memory.unsettled == 1
    assert bench.contributor.state.last_recorded_round == 0


@pytest.mark.parametrize(
    ("skipped", "code"),
    [
        ((), Clause.OUTCOME_UNKNOWN),
        ((skip_of(2),), Clause.OUTCOME_UNKNOWN),
        ((skip_of(1, (Side.B,)),), ErrorCode.BAD_SIGNATURE),
        ((skip_of(outcome=RoundState.BURNT, cause=OutcomeCause.CORRELATIONS_LOST),), ErrorCode.ANNOUNCEMENT_MISMATCH),
        ((skip_of(), skip_of(2)), None),
    ],
)
def test_a_site_that_missed_a_rounds_end_needs_proof_before_the_next_on_the_same_model(
    bench: Bench, skipped: tuple[Signed[RoundOutcome], ...], code: ErrorCode | Clause | None
) -> None:
    """It accepted round 1, slept through two skips, and is back in round 3."""
    first, third = weights(), weights(round_number=3)
    decided(bench, first, views(announced(first)))
    post(bench, third, skipped)
    decision = bench.contributor.decisions.decide(*views(announced(third)))
    assert (decision.accepted, decision.clause or decision.code) == (code is None, code)
    assert bench.contributor.state.memory.unsettled == (3 if decision.accepted else 1)


def seen(state: StudyState, current: RoundView) -> StudyView:
    return StudyView(
        study=STUDY.name, study_digest=DIGEST, end=ended_as(state, DIGEST), cursor=1, ready=(), mail=(), current=current
    )


@pytest.mark.parametrize("old", list(Side))
def test_an_old_view_does_not_hide_the_last_release(bench: Bench, old: Side) -> None:
    """A server that was away still shows the round before its release when the other one shows the study's end."""
    listed = weights()
    decided(bench, listed, views(announced(listed)))
    past = views(announced(listed), state=RoundState.MEASURED)[0]
    now = views(announced(listed), state=RoundState.RELEASED)[0]
    both = {old: seen(StudyState.OPEN, past), old.other: seen(StudyState.COMPLETED, now)}
    bench.contributor.watch.both = lambda: (both[Side.A], both[Side.B])  # type: ignore[method-assign]
    assert not bench.contributor.react()
    assert bench.contributor.state.finished is None


def test_a_study_that_ended_before_both_released_is_over(bench: Bench) -> None:
    listed = weights()
    decided(bench, listed, views(announced(listed)))
    measured, released = (
        views(announced(listed), state=state)[0] for state in (RoundState.MEASURED, RoundState.RELEASED)
    )
    ended = seen(StudyState.CANCELLED, measured), seen(StudyState.CANCELLED, released)
    bench.contributor.watch.both = lambda: ended  # type: ignore[method-assign]
    assert bench.contributor.react()
    assert bench.contributor.state.finished == "cancelled: as asked"
