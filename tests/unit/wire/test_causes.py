"""Causes as fields: which of them pause a study, and what a person reads."""

from __future__ import annotations

from protocol.messages.control import PauseCause, PauseNotice
from protocol.messages.purpose import OutcomeCause


def test_only_the_requesters_own_silence_pauses_a_study() -> None:
    absent = {cause for cause in OutcomeCause if cause.requester_absent}
    assert absent == {
        OutcomeCause.REQUESTER_MISSING,
        OutcomeCause.QUERIES_MISSING,
        OutcomeCause.RELEASE_SET_MISSING,
        OutcomeCause.GO_MISSING,
    }


def test_a_pause_says_why_and_what_resumes_the_study() -> None:
    away = PauseNotice(cause=PauseCause.REQUESTER_AWAY, skips=3).reason
    assert away.startswith("3 rounds in a row were skipped")
    silent = PauseNotice(cause=PauseCause.REQUESTER_SILENT, skips=1).reason
    assert silent.startswith("the requester has announced no round for long")
    assert all("next announcement resumes the study" in text for text in (away, silent))
    restored = PauseNotice(cause=PauseCause.SERVER_RESTORED, skips=1).reason
    assert "restored from an older database" in restored
    assert "resumes" not in restored
