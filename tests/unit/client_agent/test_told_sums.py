"""What a requester tells of sums that a site was not in: each counts, few account for their round (docs 13)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from client_agent.study.isolating import note_sum, show_sum
from protocol.messages.control import ContributedRound, Purpose, WeightList
from protocol.parameters import Needs
from protocol.policy.exposure import SummedRow
from protocol.sharing import Side
from tests.unit.client_agent.announced_rounds import (
    DIGEST,
    MODEL,
    STUDY,
    announced,
    decided,
    released,
    views,
    weights,
    welcome_mail,
)
from tests.unit.client_agent.benches import Bench, contributor_bench
from tests.unit.client_agent.federation import evidence

OTHERS = ("c2", "c3")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with contributor_bench(tmp_path, STUDY, MODEL) as made:
        yield made


def rows(bench: Bench) -> list[SummedRow]:
    return [known.row for known in bench.contributor.context.sums.known()]


def accounted(bench: Bench, number: int) -> bool:
    return bench.contributor.context.sums.accounted((DIGEST, number))


def only_sum(number: int = 1):
    """Two were listed, and two are needed: no other sum was ever announced."""
    listed: WeightList = weights((32, 32, 32), number)
    listed = listed.model_copy(update={"weights": tuple(one for one in listed.weights if one.site in OTHERS)})
    return evidence(announced(listed, listed=OTHERS, least_contributors=2), listed, (*OTHERS, "r0"))


def test_the_only_sum_that_both_servers_announced_accounts_for_its_round(bench: Bench) -> None:
    note_sum(bench.contributor, only_sum())
    (row,) = rows(bench)
    assert len(row.released or ()) == 2
    assert accounted(bench, 1)


def test_one_of_several_sums_counts_on_the_requesters_word_and_accounts_for_nothing(bench: Bench) -> None:
    """Any two of three would have done, and a release set has the requester's signature alone."""
    past = released(1, 0)
    note_sum(bench.contributor, past)
    (row,) = rows(bench)
    assert len(row.released or ()) == 2
    assert not accounted(bench, 1)
    note_sum(bench.contributor, past)
    assert not accounted(bench, 1)
    show_sum(bench.contributor, past)
    assert accounted(bench, 1), "both servers showed it"
    assert len(rows(bench)) == 1


def test_a_listed_site_without_a_weight_leaves_something_open(bench: Bench) -> None:
    """Its update may be in the sum, and no row could say so."""
    listed = only_sum().weight_list
    past = evidence(announced(listed, least_contributors=2), listed, (*OTHERS, "r0"))
    note_sum(bench.contributor, past)
    assert not accounted(bench, 1)


def test_class_counts_account_for_their_round_and_are_no_sum_of_updates(bench: Bench) -> None:
    past = released(1, 0, purpose=Purpose.COUNTS, opens=Needs.NOTHING)
    note_sum(bench.contributor, past)
    assert rows(bench) == []
    assert accounted(bench, 1)


def test_an_announcement_of_a_round_without_updates_is_enough(bench: Bench) -> None:
    """Also where this site is not listed; one server's word is not."""
    counts = announced(weights(), purpose=Purpose.COUNTS, opens=Needs.NOTHING, listed=OTHERS, least_contributors=2)
    assert not decided(bench, weights(), views(counts)).listed
    assert accounted(bench, 1)
    update = announced(weights(round_number=2), listed=OTHERS, least_contributors=2)
    assert not decided(bench, weights(round_number=2), views(update)).listed
    assert not accounted(bench, 2)


def test_the_release_that_led_to_a_welcomed_model_counts(bench: Bench) -> None:
    view = welcome_mail(bench, 1, previous=released(1, 0))
    bench.contributor.take_welcome(view)
    assert bench.contributor.state.model_version == 1
    assert len(rows(bench)) == 1


def test_but_it_fills_no_memory_that_lost_its_own_sums(bench: Bench) -> None:
    """The servers have receipts of this site for the round; the model is taken, and the loss stays visible."""
    bench.servers[Side.B].receipts = (
        ContributedRound(study=STUDY.name, study_digest=DIGEST, round=1, attempt=1, body_digest=DIGEST),
    )
    bench.contributor.take_welcome(welcome_mail(bench, 1, previous=released(1, 0)))
    assert bench.contributor.state.model_version == 1
    assert bench.contributor.context.sums.rounds() == set()
    assert np.array_equal(bench.contributor.require_model(), MODEL * 2)
