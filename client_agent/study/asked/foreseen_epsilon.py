"""Foresee what a study with noise would spend if all its rounds take place (docs/protocol.md 19)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from client_agent.site.budget.accounting import accountant, epsilon_of
from client_agent.study.asked.most_spent import most_spent
from protocol.messages.control import Roster, Study


@dataclass(frozen=True)
class ForeseenEpsilon:
    """``epsilon`` at ``delta`` for one record, over all ``rounds`` of the study alone.

    ``examples``: it is that of a site with so many, which of all declared numbers spends most.
    """

    epsilon: float
    delta: float
    rounds: int
    examples: int
    accountant: str

    @property
    def words(self) -> str:
        """One line for a person."""
        what = f"one record at a site of {self.examples} examples"
        spent = f"epsilon {self.epsilon:.3f} at delta {self.delta:g}"
        return f"{spent} of {what} over {self.rounds} rounds ({self.accountant})"


def foreseen_epsilon(study: Study, roster: Roster, delta: float, own: Iterable[int] = ()) -> ForeseenEpsilon | None:
    """At the site that would spend most, by what the roster declares; None for a study without noise.

    ``own``: numbers of examples that are looked at too, such as what this site has, whatever it declared
    """
    if study.record_noise is None:
        return None
    counts = {*(party.samples or 1 for party in roster.sites), *own}
    examples, epsilon = most_spent(study, study.record_noise, counts, lambda steps: epsilon_of([steps], delta))
    return ForeseenEpsilon(epsilon, delta, study.rounds, examples, accountant())


def own_examples(folder: Path) -> tuple[int, ...]:
    """Return the number of training examples in a site's data folder; None where that is unknown, as of a plug-in."""
    try:
        with np.load(folder / "train.npz", allow_pickle=False) as archive:
            return (len(archive["y"]),) if len(archive["y"]) else ()
    except (OSError, KeyError, ValueError, TypeError):
        return ()
