"""Contributions to a study: rounds taken part in and the sum of weights, per site (the basis of any reward).

Computed from this site's own records of the rounds. Where every site weighs itself, a site knows its own weight alone;
the others' sums are then unknown, here as everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pydantic import BaseModel, ConfigDict

from client_agent.site.events import RoundEnd, RoundRecord

_SHARED: Final = frozenset({RoundEnd.RELEASED, RoundEnd.DISCARDED})


class Reward(BaseModel):
    """One site's part in a study; ``weights`` is None where only the site itself knows them."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    site: str
    rounds: int
    weights: float | None


def rewards_in(sums: Sequence[Mapping[str, float | None]]) -> tuple[Reward, ...]:
    """Every site's part in released sums, each given as the weight of every site in it, None where it is unknown."""
    names = dict.fromkeys(name for weights in sums for name in weights)
    return tuple(_reward(name, [weights[name] for weights in sums if name in weights]) for name in names)


def rewards_of(records: Sequence[RoundRecord], own: str, requester: str) -> tuple[Reward, ...]:
    """The sites that took part in a released sum of updates, the requester first, then in the order of the lists.

    A round that is recorded twice, by a crash in between, counts once. The requester's weight is 1 unless the list
    says another.
    """
    rounds = {record.round: record for record in records if _counts(record)}
    return rewards_in(
        [{name: _weight(name, record, own, requester) for name in record.took_part} for record in rounds.values()]
    )


def _reward(site: str, weights: Sequence[float | None]) -> Reward:
    known = [weight for weight in weights if weight is not None]
    return Reward(site=site, rounds=len(weights), weights=sum(known) if len(known) == len(weights) else None)


def _counts(record: RoundRecord) -> bool:
    return record.state in _SHARED and record.purpose.plan.steps_model


def _weight(name: str, record: RoundRecord, own: str, requester: str) -> float | None:
    if record.own_weight is not None:
        return record.own_weight if name == own else None
    if name == requester:
        return 1.0 if record.requester_numerator is None else record.requester_numerator / record.grid
    return next((w.numerator / record.grid for w in record.weights if w.site == name), None)
