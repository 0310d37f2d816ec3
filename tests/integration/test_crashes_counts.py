"""kill -9 in the round that sums the class counts: counted once, by every site (docs/protocol.md 9)."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import pytest

from client_agent.site.events import RoundEnd
from harness.federation.memory.learners import class_counts
from protocol.parameters import StudyParameters
from protocol.wire.messages import Purpose, RuleName, RuleSpec, Study
from tests.integration.crashes import (
    REQUESTER,
    ROUNDS,
    SITES,
    Kill,
    audit,
    crash_federation,
    light_study_of,
    run_killing,
)
from tests.kit.disk import folder_on_disk
from tests.kit.processes import Federation

TOTALS = tuple(sum(counts) for counts in zip(*map(class_counts, range(len(SITES))), strict=True))
GRID = 2


@pytest.fixture(scope="module")
def federation() -> Iterator[Federation]:
    with folder_on_disk() as folder, crash_federation(folder) as running:
        yield running


def counting_study(federation: Federation, name: str) -> Study:
    plain = light_study_of(federation, name)
    parameters = StudyParameters(dimension=13, clip_norm=4.0, weight_grid=GRID, least_contributors=3)
    return Study.model_validate(
        {**dict(plain), "parameters": parameters, "rule": RuleSpec(name=RuleName.WFEDAVG), "rounds": ROUNDS}
    )


def expected_weight(site: str) -> float:
    """1 / sum_j P_j p_ij^2 over its largest possible value sum_j 1 / P_j, not below 1 / grid."""
    counts = class_counts(SITES.index(site))
    own, everywhere = sum(counts), sum(TOTALS)
    shares = [Fraction(total, everywhere) for total in TOTALS]
    spread = sum(P * Fraction(n, own) ** 2 for P, n in zip(shares, counts, strict=True))
    return max(1 / GRID, float(1 / (spread * sum(1 / P for P in shares))))


@pytest.mark.parametrize(
    ("party", "point"),
    [("c2", "after_update_encoded"), ("c2", "after_output_opened"), (REQUESTER, "before_settled")],
)
def test_counts_are_summed_once_wherever_a_site_dies(federation: Federation, party: str, point: str) -> None:
    study = counting_study(federation, f"counts-{party}-{point}".replace("_", "-"))
    outcome = run_killing(federation, study, [Kill(party, point)])
    audit(federation, study)
    assert len(set(outcome.models)) == 1
    records = outcome.records
    assert [(r.round, r.purpose, r.state) for r in records] == [
        (1, Purpose.COUNTS, RoundEnd.RELEASED),
        *((number, Purpose.UPDATE, RoundEnd.RELEASED) for number in range(2, 2 + ROUNDS)),
    ]
    assert all(record.took_part == SITES for record in records)
    for site in SITES:
        state = federation.journal(site, study.name).site_state()
        assert state is not None
        assert state.counted is not None
        assert (state.counted.round, state.counted.totals) == (1, TOTALS)
        assert state.model_version == ROUNDS
    assert [r.own_weight for r in records] == [None, *[expected_weight(REQUESTER)] * ROUNDS]
