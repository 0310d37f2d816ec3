"""One study in which a server falsified what it put into the products, as a line of JSON."""

from __future__ import annotations

from typing import Final, TypeAlias

from pydantic import BaseModel, ConfigDict

from harness.adversaries.falsifying.questions import Question

FORMAT: Final = "moiety-leak/1"
LeakKey: TypeAlias = tuple[Question, bool, int, float, int, int]


class LeakLine(BaseModel):
    """``bits`` about one site's update, in at most ``rounds`` rounds, by a plan that means to spend ``failures``.

    ``clause``: whether the site goes by the clause on sites left out twice. ``canaries``: the chance of a round to be a
    canary. ``asked`` and ``failed``: rounds in which the server asked, and in which the site was left out with a failed
    check that all sites see. ``caught``: the round, counted from 1, in which what was opened showed the requester that
    a server deviates, which ends the study: in a canary round anything but what it knows, in others what cannot be.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    format: str = FORMAT
    question: Question
    clause: bool
    failures: int
    canaries: float
    rounds: int
    seed: int
    bits: float
    asked: int
    failed: int
    caught: int | None
    seconds: float
    versions: dict[str, str]

    @property
    def key(self) -> LeakKey:
        """What tells a line from another."""
        return (self.question, self.clause, self.failures, self.canaries, self.rounds, self.seed)
