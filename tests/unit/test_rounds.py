"""States of a round, agreed sets, the coin toss and the model digest (docs/protocol.md 3, 4, 7, 8)."""

from __future__ import annotations

import itertools
from functools import partial

import pytest

from protocol.errors import ConflictingMessage, MalformedMessage, ProtocolViolation, TranscriptMismatch, WrongRound
from protocol.messages.control import AgreedSet, CollectedContribution, OutcomeCause, RoundState, StudyState
from protocol.rounds import agreement as lock
from protocol.rounds.agreement import opens_round
from protocol.rounds.states import (
    FINAL_STATES,
    STUDY_TRANSITIONS,
    TRANSITIONS,
    Attempt,
    RoundEvent,
    RoundKey,
    StudyEvent,
    study_step,
)
from tests.kit.round_messages import collected
from tests.unit.parties import REQUESTER, SITES, announcement, parties

# --- rounds -----------------------------------------------------------------------------------------------------------

STUDY = "a" * 64
CONTRIBUTORS = frozenset(SITES[1:])


def first(state: RoundState) -> Attempt:
    """The study's first round."""
    return Attempt(RoundKey(STUDY, 1, 1), state, announcement(STUDY, 1), 0.0)


RELEASED, ANNOUNCED = first(RoundState.RELEASED), first(RoundState.ANNOUNCED)


def check(number: int, last: Attempt | None, state: StudyState = StudyState.OPEN, **changes: object) -> bool:
    return opens_round(announcement(STUDY, number, **changes), last, state, CONTRIBUTORS, 3)


def test_a_round_runs_from_announced_to_released() -> None:
    begun = ANNOUNCED
    for event in (
        RoundEvent.CONTRIBUTION_STORED,
        RoundEvent.CONTRIBUTION_STORED,
        RoundEvent.LOCKED,
        RoundEvent.MEASURED,
        RoundEvent.RELEASED,
    ):
        assert not begun.final
        begun = first(begun.after(event))
    assert begun.state is RoundState.RELEASED
    assert begun.final


@pytest.mark.parametrize(("state", "event"), list(itertools.product(RoundState, RoundEvent)))
def test_every_other_event_is_refused_and_names_the_states_that_take_it(state: RoundState, event: RoundEvent) -> None:
    if (state, event) in TRANSITIONS:
        assert first(state).after(event) is TRANSITIONS[state, event]
    else:
        with pytest.raises(WrongRound, match=f"round 1 is {state}; '{event}' is possible only when"):
            first(state).after(event)


def test_nothing_leaves_a_final_state_and_nothing_is_skipped_after_a_release() -> None:
    assert not {state for state, _ in TRANSITIONS} & FINAL_STATES
    assert (RoundState.MEASURED, RoundEvent.BURNT) not in TRANSITIONS


def test_the_first_and_the_next_announcement_are_taken() -> None:
    assert check(1, None)
    assert check(2, RELEASED)
    assert check(2, RELEASED, StudyState.PAUSED)


def test_the_same_announcement_again_opens_nothing() -> None:
    assert not check(1, RELEASED)
    assert not check(1, ANNOUNCED, StudyState.CANCELLED)


@pytest.mark.parametrize(
    ("number", "last", "state", "changes", "error", "text"),
    [
        (1, RELEASED, StudyState.OPEN, {"model_version": 7}, ConflictingMessage, "announced once"),
        (2, None, StudyState.OPEN, {}, WrongRound, "no round was announced yet"),
        (3, RELEASED, StudyState.OPEN, {}, WrongRound, "next announcement is for round 2"),
        (2, ANNOUNCED, StudyState.OPEN, {}, WrongRound, "round 1 is announced"),
        (2, RELEASED, StudyState.LOCAL_ONLY, {}, WrongRound, "the study is local_only"),
        (2, RELEASED, StudyState.OPEN, {"listed": (*SITES[1:], "stranger")}, MalformedMessage, "stranger"),
        (2, RELEASED, StudyState.OPEN, {"least_contributors": 2}, MalformedMessage, "below the study's 3"),
    ],
)
def test_what_is_refused(
    number: int,
    last: Attempt | None,
    state: StudyState,
    changes: dict[str, object],
    error: type[Exception],
    text: str,
) -> None:
    with pytest.raises(error, match=text):
        check(number, last, state, **changes)


@pytest.mark.parametrize(("state", "event"), list(itertools.product(StudyState, StudyEvent)))
def test_a_study_takes_the_events_of_its_table_and_no_other(state: StudyState, event: StudyEvent) -> None:
    if (state, event) in STUDY_TRANSITIONS:
        assert study_step(state, event) is STUDY_TRANSITIONS[state, event]
    else:
        with pytest.raises(WrongRound, match=f"the study is {state}; '{event}' is not possible"):
            study_step(state, event)


def test_nothing_leaves_an_ended_study_and_every_end_can_be_reached() -> None:
    assert not any(state.ended for state, _ in STUDY_TRANSITIONS)
    assert set(STUDY_TRANSITIONS.values()) == set(StudyState)


# --- lock -------------------------------------------------------------------------------------------------------------

ROSTER = parties().roster.message
OPENED = announcement("a" * 64)
NONCE_A, NONCE_B = b"\x01" * 32, b"\x02" * 32


held = partial(collected, on=OPENED)
ALL = [held(site) for site in SITES]


def agreed(mine: list[CollectedContribution], theirs: list[CollectedContribution]) -> AgreedSet:
    return lock.agree(OPENED, 1, ROSTER, mine, theirs)


def test_both_servers_compute_the_same_set_in_roster_order() -> None:
    assert agreed(ALL, ALL[::-1]) == agreed(ALL[::-1], ALL)
    assert agreed(ALL[::-1], ALL).sites == SITES


@pytest.mark.parametrize(
    "theirs",
    [
        ALL[:3],
        [*ALL[:3], held(SITES[3], commitment_b="5" * 64)],
        [*ALL[:3], held(SITES[3], announcement_digest="6" * 64)],
    ],
    ids=["only one share", "another commitment", "another announcement"],
)
def test_a_site_counts_only_with_both_matching_shares(theirs: list[CollectedContribution]) -> None:
    assert agreed(ALL, theirs).sites == SITES[:3]
    assert agreed(theirs, ALL).sites == SITES[:3]


def test_a_contribution_bound_to_another_announcement_does_not_count_even_if_both_hold_it() -> None:
    other = [*ALL[:3], held(SITES[3], announcement_digest="6" * 64)]
    assert agreed(other, other).sites == SITES[:3]


def test_a_site_that_is_not_listed_does_not_count() -> None:
    narrow = announcement("a" * 64, listed=SITES[1:3], least_contributors=2)
    both = [held(site, announcement_digest=narrow.digest()) for site in SITES]
    assert lock.agree(narrow, 1, ROSTER, both, both).sites == SITES[:3]


def test_shortfall_names_what_is_missing() -> None:
    assert lock.shortfall(agreed(ALL, ALL), OPENED, REQUESTER) is None
    assert lock.shortfall(agreed(ALL[1:], ALL), OPENED, REQUESTER) == lock.Shortfall(OutcomeCause.REQUESTER_MISSING)
    few = lock.shortfall(agreed(ALL[:3], ALL), OPENED, REQUESTER)
    assert few == lock.Shortfall(OutcomeCause.TOO_FEW_CONTRIBUTORS, 2, 3)
    assert few.reason == "2 contributors, the announcement asks for at least 3"


def test_the_challenge_depends_on_every_part_of_the_transcript() -> None:
    digest = agreed(ALL, ALL).digest()
    base = lock.transcript(1, digest, NONCE_A, NONCE_B)
    others = [
        lock.transcript(1, digest, NONCE_B, NONCE_B),
        lock.transcript(1, digest, NONCE_A, NONCE_A),
        lock.transcript(1, "7" * 64, NONCE_A, NONCE_B),
    ]
    assert base.challenge not in {other.challenge for other in others}
    assert lock.nonce_commitment(2, digest, NONCE_A) != base.commitment_a


def test_the_transcript_is_recomputed_by_whoever_receives_it() -> None:
    chosen = agreed(ALL, ALL)
    good = lock.transcript(1, chosen.digest(), NONCE_A, NONCE_B)
    assert lock.check_transcript(1, chosen, good) == bytes.fromhex(good.challenge)
    for field in ("challenge", "commitment_a", "nonce_a", "nonce_b", "agreed_set_digest"):
        forged = good.model_copy(update={field: "8" * 64})
        with pytest.raises(TranscriptMismatch):
            lock.check_transcript(1, chosen, forged)
    with pytest.raises(ProtocolViolation, match="round 1, expected 2"):
        lock.check_transcript(2, chosen, good)


def test_the_model_digest_depends_on_key_study_round_and_model() -> None:
    base = lock.model_digest(b"k" * 32, "a" * 64, 1, b"model")
    assert base == lock.model_digest(b"k" * 32, "a" * 64, 1, b"model")
    changed = [
        lock.model_digest(b"l" * 32, "a" * 64, 1, b"model"),
        lock.model_digest(b"k" * 32, "b" * 64, 1, b"model"),
        lock.model_digest(b"k" * 32, "a" * 64, 2, b"model"),
        lock.model_digest(b"k" * 32, "a" * 64, 1, b"models"),
    ]
    assert base not in changed
