"""The transition table: what it allows, and that it allows nothing else (docs/protocol.md 4, 7, 8)."""

from __future__ import annotations

import itertools

import pytest

from protocol.errors import ConflictingMessage, MalformedMessage, WrongRound
from protocol.messages.control import RoundState, StudyState
from protocol.rounds.agreement import LastRound, opens_round
from protocol.rounds.states import (
    FINAL_STATES,
    STUDY_TRANSITIONS,
    TRANSITIONS,
    RoundEvent,
    RoundProgress,
    StudyEvent,
    open_round,
    step,
    study_diagram,
    study_step,
    transition_diagram,
)
from tests.unit.parties import SITES, announcement

STUDY = "a" * 64
CONTRIBUTORS = frozenset(SITES[1:])
RELEASED = RoundProgress(round=1, attempt=1, state=RoundState.RELEASED)


def check(number: int, last: RoundProgress | None, state: StudyState = StudyState.OPEN, **changes: object) -> bool:
    before = None if last is None else LastRound(last, announcement(STUDY, last.round))
    return opens_round(announcement(STUDY, number, **changes), before, state, CONTRIBUTORS, 3)


def test_a_round_runs_from_announced_to_released() -> None:
    progress = open_round(3)
    for event in (
        RoundEvent.CONTRIBUTION_STORED,
        RoundEvent.CONTRIBUTION_STORED,
        RoundEvent.LOCKED,
        RoundEvent.MEASURED,
        RoundEvent.RELEASED,
    ):
        assert not progress.final
        progress = step(progress, event)
    assert progress == RoundProgress(round=3, attempt=1, state=RoundState.RELEASED)
    assert progress.final


def test_a_burnt_round_is_tried_again_under_the_next_attempt() -> None:
    locked = RoundProgress(round=3, attempt=1, state=RoundState.LOCKED)
    again = step(step(locked, RoundEvent.BURNT), RoundEvent.RETRIED)
    assert again == RoundProgress(round=3, attempt=2, state=RoundState.ANNOUNCED)


@pytest.mark.parametrize(("state", "event"), list(itertools.product(RoundState, RoundEvent)))
def test_every_other_event_is_refused_and_names_the_states_that_take_it(state: RoundState, event: RoundEvent) -> None:
    progress = RoundProgress(round=1, attempt=1, state=state)
    if (state, event) in TRANSITIONS:
        assert step(progress, event).state is TRANSITIONS[state, event]
    else:
        with pytest.raises(WrongRound, match=f"round 1 is {state}; '{event}' is possible only when"):
            step(progress, event)


def test_nothing_leaves_a_final_state_and_nothing_is_skipped_after_a_release() -> None:
    assert not {state for state, _ in TRANSITIONS} & FINAL_STATES
    assert (RoundState.MEASURED, RoundEvent.BURNT) not in TRANSITIONS


def test_the_first_and_the_next_announcement_are_taken() -> None:
    assert check(1, None)
    assert check(2, RELEASED)
    assert check(2, RELEASED, StudyState.PAUSED)


def test_the_same_announcement_again_opens_nothing() -> None:
    assert not check(1, RELEASED)
    assert not check(1, open_round(1), StudyState.CANCELLED)


@pytest.mark.parametrize(
    ("number", "last", "state", "changes", "error", "text"),
    [
        (1, RELEASED, StudyState.OPEN, {"model_version": 7}, ConflictingMessage, "announced once"),
        (2, None, StudyState.OPEN, {}, WrongRound, "no round was announced yet"),
        (3, RELEASED, StudyState.OPEN, {}, WrongRound, "next announcement is for round 2"),
        (2, open_round(1), StudyState.OPEN, {}, WrongRound, "round 1 is announced"),
        (2, RELEASED, StudyState.LOCAL_ONLY, {}, WrongRound, "the study is local_only"),
        (2, RELEASED, StudyState.OPEN, {"listed": (*SITES[1:], "stranger")}, MalformedMessage, "stranger"),
        (2, RELEASED, StudyState.OPEN, {"least_contributors": 2}, MalformedMessage, "below the study's 3"),
    ],
)
def test_what_is_refused(
    number: int,
    last: RoundProgress | None,
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


def test_the_diagrams_show_every_transition() -> None:
    for diagram, table in ((transition_diagram(), TRANSITIONS), (study_diagram(), STUDY_TRANSITIONS)):
        for (old, event), new in table.items():
            assert f"{old} --> {new}: {event}" in diagram
