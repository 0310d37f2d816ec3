"""Studies that rank their sites first: what they may say, and what their rounds are (docs/protocol.md 8)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from harness.simulate.ranking import RankOptions
from protocol.errors import ErrorCode, MalformedMessage
from protocol.messages.control import (
    MOST_COUNTS_ROUNDS,
    MOST_RANKING_ROUNDS,
    OutcomeCause,
    Purpose,
    RankingSpec,
    RoundOutcome,
    RoundState,
    RuleName,
    Study,
)
from protocol.parameters import Needs
from tests.unit.parties import announcement, parties, study

PLAIN = study(parties().roster.message.digest())


def changed(**changes: Any) -> Study:
    fields = PLAIN.model_dump(mode="json") | {"ranking": {"clip_norm": 8.0}} | changes
    return Study.parse(json.dumps(fields).encode())


def test_a_rankings_vectors_have_their_own_length_and_clip_norm() -> None:
    """Three features and the constant: 10 of the triangle, 4 per class."""
    of = changed().parameters_in(Purpose.RANKING)
    assert (of.dimension, of.clip_norm, of.exact_distances) == (10 + 8, 8.0, True)
    assert of.least_contributors == PLAIN.parameters.least_contributors
    for purpose in (Purpose.UPDATE, Purpose.COUNTS):
        assert changed().parameters_in(purpose) == PLAIN.parameters
    assert PLAIN.parameters_in(Purpose.RANKING) == PLAIN.parameters


def test_rankings_come_first_then_counts_then_updates() -> None:
    assert [PLAIN.last_round(purpose) for purpose in (Purpose.RANKING, Purpose.COUNTS, Purpose.UPDATE)] == [0, 0, 5]
    with_counts = changed(
        rule={"name": "wfedavg"}, parameters=PLAIN.parameters.model_dump(mode="json") | {"dimension": 7}
    )
    counts = MOST_RANKING_ROUNDS + MOST_COUNTS_ROUNDS
    assert with_counts.last_round(Purpose.RANKING) == MOST_RANKING_ROUNDS
    assert with_counts.last_round(Purpose.COUNTS) == counts
    assert with_counts.last_round(Purpose.UPDATE) == counts + PLAIN.rounds


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"protection": "ckks", "rule": {"name": "fedavg"}}, "'ckks' opens nothing about single sites: leave ranking"),
        ({"rule": {"name": RuleName.LOCAL.value}}, "no contributor to rank: leave ranking out"),
        ({"model": {**PLAIN.model.model_dump(mode="json"), "inputs": []}}, "fill in model.inputs"),
        (
            {"model": {**PLAIN.model.model_dump(mode="json"), "inputs": [28, 28]}},
            r"784 features and 2 classes takes vectors of 310075 coordinates, at most 131072 can be opened exactly",
        ),
        ({"ranking": {"clip_norm": 3.0}}, "power of two, found 3.0; use 2.0 or 4.0"),
        ({"ranking": {"clip_norm": 0.5}}, "greater than or equal to 1"),
        ({"ranking": {"clip_norm": 2048.0}}, "less than or equal to 1024"),
        ({"ranking": {"penalty": 9e-3}}, "greater than or equal to 0.01"),
        ({"ranking": {"penalty": 1.5}}, "less than or equal to 1"),
    ],
)
def test_what_cannot_be_ranked_is_refused_with_what_to_do(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(MalformedMessage, match=text):
        changed(**changes)


def test_a_ranking_opens_inner_products_and_nothing_else() -> None:
    told = announcement("a" * 64, opens=Needs.INNER_PRODUCTS, purpose=Purpose.RANKING)
    assert told.measured
    for opens in Needs:
        if opens is not Needs.INNER_PRODUCTS:
            with pytest.raises(ValidationError, match="a ranking opens inner products"):
                announcement("a" * 64, opens=opens, purpose=Purpose.RANKING)
    with pytest.raises(ValidationError, match="only updates about which nothing is opened"):
        announcement("a" * 64, opens=Needs.INNER_PRODUCTS, purpose=Purpose.RANKING, ckks_key_id="5c" * 16)


def test_both_servers_can_say_that_a_round_ranked() -> None:
    fields: dict[str, Any] = {"study_digest": "a" * 64, "round": 1, "attempt": 1, "outcome": RoundState.RANKED}
    outcome = RoundOutcome(**fields, cause=OutcomeCause.RANKED)
    assert RoundOutcome.parse(outcome.canonical()) == outcome
    with pytest.raises(ValidationError, match="queries_missing is no cause of a round that is ranked"):
        RoundOutcome(**fields, cause=OutcomeCause.QUERIES_MISSING)


def test_a_burnt_attempt_says_by_which_error() -> None:
    outcome = RoundOutcome(
        study_digest="a" * 64,
        round=1,
        attempt=1,
        outcome=RoundState.BURNT,
        cause=OutcomeCause.PRODUCTS_REFUSED,
        code=ErrorCode.CORRELATION_REUSED,
    )
    assert outcome.reason == "the products were refused: correlation_reused"


def test_the_defaults_are_those_of_the_command() -> None:
    assert (RankingSpec().penalty, RankingSpec().clip_norm) == (RankOptions.penalty, RankOptions.clip_norm)
