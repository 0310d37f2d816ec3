"""A summary in one process: plain and secure say the same, and a site out of range is not in it."""

from __future__ import annotations

import numpy as np
import pytest

from harness.simulate.options import SummaryOptions
from harness.simulate.table_one import secure_sum, summarise
from protocol.arithmetic.ring import Ring
from protocol.errors import ConfigurationError
from protocol.summary.layout import Layout, Numeric
from protocol.summary.protection import shared_vector
from tests.kit.present import present
from tests.unit.summary.tables import LAYOUT, protection, table

SHARED = {f"s{site}": shared_vector(LAYOUT, table(site), protection(site)) for site in range(5)}


def test_plain_and_secure_are_the_same_table() -> None:
    asked = (SummaryOptions(protection="plain", second_moments=True), SummaryOptions(second_moments=True))
    tables = [summarise(one) for one in asked]
    assert tables[0] == tables[1]
    assert tables[0][1] == 5
    assert len(tables[0][0].covariances) == 30 * 29 // 2


def test_the_sum_of_the_ring_is_that_of_slow_integers() -> None:
    result = secure_sum(LAYOUT, SHARED, bytes(32))
    assert result.released == tuple(SHARED)
    assert present(result.total).tolist() == [
        sum(entries) for entries in zip(*(v.tolist() for v in SHARED.values()), strict=True)
    ]


@pytest.mark.parametrize("added", [2**63, 2**40, 2**64 - 2**32])
def test_a_site_out_of_range_is_left_out(added: int) -> None:
    def lie(site: str, encoded: Ring) -> Ring:
        return encoded + np.uint64(added) if site == "s3" else encoded

    result = secure_sum(LAYOUT, SHARED, bytes(32), lie)
    assert present(result.judgement).failed == ("s3",)
    assert np.array_equal(present(result.total), np.sum([v for site, v in SHARED.items() if site != "s3"], axis=0))


def test_what_cannot_be_summarised_is_said() -> None:
    with pytest.raises(ConfigurationError, match="3 contributors"):
        secure_sum(LAYOUT, {site: SHARED[site] for site in ("s0", "s1", "s2")}, bytes(32))
    with pytest.raises(ConfigurationError, match="travels as shares"):
        summarise(SummaryOptions(protection="ckks"))


def test_vectors_longer_than_the_sketch_are_sketched_in_four_blocks() -> None:
    layout = Layout(tuple(Numeric(f"n{n}", 0, 100) for n in range(120)), bins=20, most_rows=1000)
    assert layout.length > 2048
    columns = tuple(np.linspace(1, 99, 50) for _ in layout.columns)
    shared = {f"s{site}": shared_vector(layout, columns, protection(site)) for site in range(4)}
    total = present(secure_sum(layout, shared, bytes(32)).total)
    assert np.array_equal(total, np.sum(list(shared.values()), axis=0))
