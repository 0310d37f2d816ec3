"""The interface of everything that a simulation trains, and the one loop over its rounds.

A study's rounds (:class:`harness.engine.loop.StudyRounds`, plain or protected), the baselines of the literature and
the schemes of personal models (:mod:`harness.engine.all_sites`) are schemes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from protocol.errors import LocalOptimumReached

S = TypeVar("S")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Scheme(Protocol[S, R_co]):
    """``S`` is all that moves from round to round, ``R_co`` the record of one round; rounds are counted from 1."""

    def start(self) -> S:
        """Return the state before round 1."""
        ...

    def round(self, state: S, number: int) -> tuple[S, R_co]:
        """Do one round. Raises: LocalOptimumReached, with the state as it was; UnusableUpdate"""
        ...


@dataclass(frozen=True, eq=False)
class Progress(Generic[S, R]):
    """The progress of a run after a round: all that the next round depends on, and the records so far."""

    state: S
    records: tuple[R, ...] = ()


def train(
    scheme: Scheme[S, R],
    begun: Progress[S, R] | None,
    over: Callable[[Progress[S, R]], bool],
    after_round: Callable[[Progress[S, R]], None],
) -> tuple[Progress[S, R], str | None]:
    """Do all rounds that are left; where ``after_round`` was last called, a run goes on to the same bits.

    Returns the end, and why the run stopped at a local optimum (None where it did not).
    """
    progress = Progress(scheme.start()) if begun is None else begun
    while not over(progress):
        try:
            state, record = scheme.round(progress.state, len(progress.records) + 1)
        except LocalOptimumReached as optimum:
            return progress, optimum.detail
        progress = Progress(state, (*progress.records, record))
        after_round(progress)
    return progress, None
