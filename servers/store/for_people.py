"""Summaries of a store for people, without reading contents."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from protocol.messages.control import RoundState
from protocol.rounds.states import RoundKey


class Kept(StrEnum):
    """The kinds of content of files, sealed or as one half of a split."""

    SHARES = "shares"
    QUERIES = "queries"
    OUTPUTS = "outputs"
    LETTERS = "letters"


@dataclass(frozen=True)
class Holdings:
    """One study's holdings: the files that rows name; letters and answers, by number; attempts with seeds or nonces."""

    files: tuple[str, ...]
    letters: int
    answers: int
    rounds: int


@dataclass(frozen=True)
class SeenRound:
    """An attempt as an operator reads it; the times, since 1970, are None for attempts of an earlier release."""

    round: int
    attempt: int
    state: RoundState
    began_at_s: float | None
    state_since_s: float | None
    closes_at_s: float

    def key(self, study: str) -> RoundKey:
        return RoundKey(study, self.round, self.attempt)
