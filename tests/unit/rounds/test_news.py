"""News to a contributor: every end and beginning, every letter but weight lists; no state between."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.messages.control import (
    PauseCause,
    PauseNotice,
    RoundState,
    RoundView,
    StudyView,
    news,
    news_of,
    shared_news,
    sign,
)
from protocol.sharing import Side
from tests.unit.client_agent.federation import REQUESTER, ended_round, keys, release, study, study_end

PAST = release()
DIGEST = study().digest()
ANNOUNCED = RoundView(
    round=1,
    attempt=1,
    state=RoundState.ANNOUNCED,
    announcement=sign(PAST.announcement, REQUESTER, keys(REQUESTER).signing),
)
LETTERS = ("welcome-0/c1",)


def view(current: RoundView | None = ANNOUNCED, **changes: Any) -> StudyView:
    fields: dict[str, Any] = {"study": "unit", "study_digest": DIGEST, "cursor": 7, "ready": ("c1",), "mail": LETTERS}
    return StudyView(**fields | changes, current=current)


def moved(state: RoundState, **shown: Any) -> RoundView:
    return ANNOUNCED.model_copy(update={"state": state, **shown})


EVIDENCE = {"agreed_set": PAST.agreed_set, "release_set": PAST.release_set}


@pytest.mark.parametrize(
    "same",
    [
        view(cursor=9),
        view(ready=("c1", "c2")),
        view(mail=("welcome-0/c1", "weights-2/c1")),
        *(view(moved(state)) for state in (RoundState.COLLECTING, RoundState.COMMITTED, RoundState.BURNT)),
        view(moved(RoundState.LOCKED, agreed_set=PAST.agreed_set)),
        view(moved(RoundState.MEASURED, **EVIDENCE)),
    ],
)
def test_what_no_contributor_acts_on_is_no_news(same: StudyView) -> None:
    assert news_of(same) == news_of(view())


OTHERS = {
    "no round": view(None),
    "the next round": view(ANNOUNCED.model_copy(update={"round": 2})),
    "the next attempt": view(ANNOUNCED.model_copy(update={"attempt": 2})),
    "a release": view(moved(RoundState.RELEASED, **EVIDENCE)),
    "a release without its evidence": view(moved(RoundState.RELEASED)),
    "a skip": view(moved(RoundState.SKIPPED)),
    "a ranking's end": view(moved(RoundState.RANKED)),
    "an end without a sum": view(moved(RoundState.CLOSED)),
    "an end": view(end=study_end(DIGEST)),
    "a pause": view(pause=PauseNotice(cause=PauseCause.REQUESTER_AWAY, skips=2)),
    "a letter": view(mail=("welcome-0/c1", "welcome-1/c1")),
    "no letter": view(mail=()),
    "a change of the roster": view(roster_changes=1),
}


def test_whatever_a_contributor_acts_on_is_news() -> None:
    found = [news_of(one) for one in (view(), *OTHERS.values())]
    assert len(set(found)) == len(found)


def test_the_second_signature_under_an_end_is_news() -> None:
    """A site takes a skip only with both."""
    shown = (None, ended_round(DIGEST, 1, (Side.A,)), ended_round(DIGEST))
    assert len({news_of(view(moved(RoundState.SKIPPED, outcome=one))) for one in shown}) == len(shown)


def test_of_a_view_is_of_what_all_are_shown_and_of_the_letters() -> None:
    assert shared_news(view(mail=())) == shared_news(view())
    assert news(shared_news(view()), LETTERS) == news_of(view())
