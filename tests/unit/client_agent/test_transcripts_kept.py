"""Signed messages of a study's newest rounds stay, and those that prove who altered a sum."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel

from client_agent.site.journal import StudyJournal
from client_agent.transcripts import keeping
from client_agent.transcripts.keeping import TRANSCRIPTS, keep_transcript

KEPT = 100
ALTERED = 7


class Shown(BaseModel):
    """In a transcript's place."""

    round: int


def test_the_newest_stay_and_those_of_an_altered_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "shown", lambda digest, site, views, **said: Shown(round=views[0].round))
    monkeypatch.setattr(keeping, "KEPT_ROUNDS", KEPT)
    journal = StudyJournal(tmp_path, "long")
    context = SimpleNamespace(site="c1")
    owner: Any = SimpleNamespace(journal=journal, context=context, study_digest="d")
    folder = journal.folder / TRANSCRIPTS

    def kept() -> list[int]:
        return sorted(int(path.stem.split("-")[1]) for path in folder.glob("round-*.json"))

    for number in range(1, 3 * KEPT + 1):
        view: Any = SimpleNamespace(round=number, attempt=1 + number % 2)
        keep_transcript(owner, (view, view))
        if number == ALTERED:
            (folder / f"round-{number:06d}-{view.attempt:02d}.vector").write_bytes(b"as it was served")
        assert set(range(max(1, number - KEPT), number + 1)) <= set(kept())
        assert len(kept()) <= KEPT + 51 + 1
    assert kept() == [ALTERED, *range(2 * KEPT, 3 * KEPT + 1)]
