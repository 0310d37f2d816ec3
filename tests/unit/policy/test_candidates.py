"""Which lists a requester tries, and in which order."""

from __future__ import annotations

from protocol.messages.control import ListedWeight
from protocol.rounds.planning import Candidate, Numerators, candidates

NEW = (ListedWeight(site="a", numerator=1), ListedWeight(site="b", numerator=1), ListedWeight(site="c", numerator=1))
LAST = tuple(weight.model_copy(update={"numerator": 2}) for weight in NEW)


def tried(
    last: tuple[ListedWeight, ...] = LAST,
    least: int = 2,
    *,
    may_change: bool = True,
    careful: bool = True,
    too_few: bool = False,
    declined: Candidate | None = None,
) -> list[tuple[tuple[ListedWeight, ...], int]]:
    found = candidates(
        Numerators(NEW),
        Numerators(last),
        least,
        may_change=may_change,
        careful=careful,
        too_few=too_few,
        declined=declined,
    )
    return [(one.weights, one.least) for one in found]


def test_the_rules_list_comes_before_the_last_and_everybody_is_needed() -> None:
    assert tried() == [(NEW, 3), (LAST, 3)]


def test_after_a_round_without_a_sum_the_least_number_comes_first() -> None:
    assert tried(too_few=True) == [(NEW, 2), (NEW, 3), (LAST, 2), (LAST, 3)]


def test_a_list_that_is_kept_is_the_only_one_unless_there_is_none() -> None:
    assert tried(may_change=False) == [(LAST, 3)]
    assert tried(last=(), may_change=False) == [(NEW, 3)]


def test_nothing_is_tried_twice_and_nothing_that_was_declined() -> None:
    assert tried(last=NEW, least=3, too_few=True) == [(NEW, 3)]
    assert tried(declined=Candidate(NEW, 3)) == [(LAST, 3)]


def test_where_nobody_asks_for_isolation_the_least_number_is_the_only_one() -> None:
    assert tried(careful=False) == [(NEW, 2), (LAST, 2)]


def test_a_list_of_too_few_is_not_tried() -> None:
    assert tried(last=LAST[:1], careful=False) == [(NEW, 2)]
    assert tried(last=(), least=4, careful=False) == []
