"""Measurements at a contributor: one per model, told apart from updates, skips that it did not see."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ErrorCode
from protocol.messages.control import OutcomeCause, Purpose, RoundOutcome, RoundState, RuleName, Signed
from protocol.parameters import Needs
from protocol.rounds.side_a import outcome_of
from protocol.rounds.states import RoundKey
from tests.unit.client_agent.benches import Bench, contributor_bench
from tests.unit.client_agent.federation import signed_by_both
from tests.unit.client_agent.test_decisions import MODEL, SIZE, decided, study_with

STUDY = study_with(RuleName.MALLOWS, grid=32)
SHRINKAGE = study_with(RuleName.SHRINKAGE, grid=32)
MEASURES: dict[str, Any] = {"purpose": Purpose.MEASURE, "opens": Needs.PAIRS}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Bench]:
    with contributor_bench(tmp_path, STUDY, MODEL) as made:
        yield made


def ended_as(state: RoundState, cause: OutcomeCause, number: int = 1) -> Signed[RoundOutcome]:
    return signed_by_both(outcome_of(RoundKey(STUDY.digest(), number, 1), state, cause))


class TestContributor:
    def test_it_shares_its_update_with_weight_1_and_remembers_the_round(self, site: Bench) -> None:
        decision = decided(site, 1, **MEASURES)
        assert decision.accepted
        site.contributor.encode(decision.announcement, 32)
        encoded = site.contributor.encoded_file(decision.announcement)
        assert encoded.length == SIZE
        assert site.contributor.state.memory.apart == 1
        assert not site.contributor.context.sums.rounds()

    def test_a_skip_that_it_did_not_see_comes_with_the_next_list(self, site: Bench) -> None:
        """Signed by both servers; with one signature it says nothing."""
        assert decided(site, 1, **MEASURES).accepted
        assert decided(site, 2, **MEASURES).reason.startswith("measured_twice: ")
        skip = ended_as(RoundState.SKIPPED, OutcomeCause.TOO_FEW_CONTRIBUTORS)
        forged = skip.model_copy(update={"signatures": skip.signatures[:1]})
        assert decided(site, 3, skipped=(forged,), **MEASURES).code is ErrorCode.BAD_SIGNATURE
        assert site.contributor.state.memory.apart == 1
        assert decided(site, 4, skipped=(skip,), **MEASURES).accepted
        assert site.contributor.state.memory.apart == 4

    def test_updates_are_numbered_by_the_model(self, site: Bench) -> None:
        """Measurements come in between, and a site that was away does not know how many."""
        assert site.contributor.update_number(17, 2) == 3
        beyond = decided(site, 9, model_version=STUDY.rounds, opens=Needs.NORMS)
        assert f"round 9 is update {STUDY.rounds + 1} of a study with {STUDY.rounds} rounds" in beyond.reason
