"""Rewards: rounds taken part in and sums of weights, from a site's own records."""

from __future__ import annotations

from typing import Any

from client_agent.site.events import Reward, RoundEnd, RoundRecord, rewards_of
from protocol.messages.control import ListedWeight, Purpose
from tests.kit.studies import round_record

LIST = (ListedWeight(site="c1", numerator=8), ListedWeight(site="c2", numerator=4))


def record(round_number: int, **changes: object) -> RoundRecord:
    usual: dict[str, Any] = {"weights": LIST, "grid": 8, "took_part": ("r0", "c1", "c2")}
    return round_record(round_number, **(usual | changes))


def test_rounds_and_weights_add_up() -> None:
    records = [record(1), record(2, took_part=("r0", "c1")), record(3, state=RoundEnd.SKIPPED, took_part=())]
    assert rewards_of(records, "c1", "r0") == (
        Reward(site="r0", rounds=2, weights=2.0),
        Reward(site="c1", rounds=2, weights=2.0),
        Reward(site="c2", rounds=1, weights=0.5),
    )


def test_a_round_recorded_twice_counts_once_and_counting_classes_does_not() -> None:
    records = [record(1, purpose=Purpose.COUNTS), record(2), record(2), record(4, state=RoundEnd.ALONE)]
    assert [entry.rounds for entry in rewards_of(records, "c1", "r0")] == [1, 1, 1]


def test_where_sites_weigh_themselves_only_the_own_sum_is_known() -> None:
    records = [record(1, own_weight=0.75), record(2, own_weight=0.5)]
    assert [entry.weights for entry in rewards_of(records, "c1", "r0")] == [None, 1.25, None]
    assert rewards_of([], "c1", "r0") == ()
