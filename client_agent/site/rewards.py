"""Who gave what to a study: rounds taken part in and the sum of weights, a site (the basis of any reward).

Computed from this site's own records of the rounds. Where every site weighs itself, a site knows its own weight alone;
the others' sums are then unknown, here as everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pydantic import BaseModel, ConfigDict

from client_agent.site.events import RoundEnd, RoundRecord
from protocol.wire.messages import Purpose

_SHARED: Final = frozenset({RoundEnd.RELEASED, RoundEnd.DISCARDED})


class Reward(BaseModel):
    """One site's part in a study; ``weights`` is None where only the site itself knows them."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    site: str
    rounds: int
    weights: float | None


def rewards_of(records: Sequence[RoundRecord], own: str, requester: str) -> tuple[Reward, ...]:
    """The sites that took part in a released sum of updates, the requester first, then in the order of the lists.

    A round that is recorded twice, by a crash in between, counts once. The requester's weight is 1.
    """
    rounds = {record.round: record for record in records if _counts(record)}
    names = list(dict.fromkeys(name for record in rounds.values() for name in record.took_part))
    return tuple(_reward(name, tuple(rounds.values()), own, requester) for name in names)


def _counts(record: RoundRecord) -> bool:
    return record.state in _SHARED and record.purpose is Purpose.UPDATE


def _reward(name: str, records: tuple[RoundRecord, ...], own: str, requester: str) -> Reward:
    taken = [record for record in records if name in record.took_part]
    weights = [_weight(name, record, own, requester) for record in taken]
    known = [weight for weight in weights if weight is not None]
    return Reward(site=name, rounds=len(taken), weights=sum(known) if len(known) == len(weights) else None)


def _weight(name: str, record: RoundRecord, own: str, requester: str) -> float | None:
    if record.own_weight is not None:
        return record.own_weight if name == own else None
    if name == requester:
        return 1.0
    return next((w.numerator / record.grid for w in record.weights if w.site == name), None)
