"""Causes as fields: which of them pause a study, and what a person reads."""

from __future__ import annotations

from protocol.wire.causes import OutcomeCause
from protocol.wire.messages import PauseCause, PauseNotice


def test_only_the_requesters_own_silence_pauses_a_study() -> None:
    absent = {cause for cause in OutcomeCause if cause.requester_absent}
    assert absent == {
        OutcomeCause.REQUESTER_MISSING,
        OutcomeCause.QUERIES_MISSING,
        OutcomeCause.RELEASE_SET_MISSING,
        OutcomeCause.GO_MISSING,
    }


def test_a_pause_says_how_many_rounds_and_what_resumes_the_study() -> None:
    (cause,) = PauseCause
    text = PauseNotice(cause=cause, skips=3).reason
    assert text.startswith("3 rounds in a row were skipped")
    assert "next announcement resumes the study" in text
