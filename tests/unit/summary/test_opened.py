"""The opened sum is the plain sum of what sites share, and the table is what numpy says of it."""

from __future__ import annotations

import numpy as np
import pytest

from protocol.errors import AggregateOutOfBounds, ConfigurationError, ProtocolViolation
from protocol.summary.layout import Categories, Layout, Numeric
from protocol.summary.protection import shared_vector
from protocol.summary.table_one import TableOne, parse_scaling, scaling_of, scaling_text, spread_unknown, table_one
from tests.unit.summary.tables import AGE, LAYOUT, protection, table

SITES = 4


def shared(layout: Layout = LAYOUT) -> list[np.ndarray]:
    return [shared_vector(layout, table(site), protection(site)) for site in range(SITES)]


def opened() -> TableOne:
    return table_one(np.sum(shared(), axis=0), LAYOUT, SITES)


def test_figures_are_those_of_the_pooled_rows_but_for_the_rounding_of_counts() -> None:
    ages = np.concatenate([np.clip(table(site)[0], 0, 100) for site in range(SITES)])
    stages = np.concatenate([table(site)[2] for site in range(SITES)])
    age, flag = opened().numeric
    (stage,) = opened().categories
    present = ages[~np.isnan(ages)]
    assert age.mean_within is not None
    assert age.sd_within is not None
    assert age.mean == pytest.approx(present.mean(), abs=age.mean_within)
    assert age.sd == pytest.approx(present.std(ddof=1), abs=age.sd_within)
    assert (age.mean_within, age.sd_within) == (pytest.approx(1.2, abs=0.1), pytest.approx(2.2, abs=0.3))
    assert abs(age.values - present.size) < 5 * SITES
    assert abs(age.missing - np.isnan(ages).sum()) < 5 * SITES
    assert [q.at for q in age.quantiles] == [0.05, 0.25, 0.5, 0.75, 0.95]
    for quantile in age.quantiles:
        assert quantile.value == pytest.approx(np.quantile(present, quantile.at), abs=10)
    assert flag.mean == pytest.approx(np.mean([table(site)[1].mean() for site in range(SITES)]), abs=0.05)
    for place, one in enumerate(stage.counts):
        assert abs(one.count - (stages == place).sum()) < 5 * SITES


def test_covariances_are_those_of_rows_that_have_both() -> None:
    names = ("x", "y")
    layout = Layout(tuple(Numeric(name, -5, 5) for name in names), most_rows=1000, second_moments=True)
    rng = np.random.default_rng(4)
    tables = [rng.multivariate_normal([0.5, -0.5], [[1.0, 0.6], [0.6, 2.0]], 300).T for _ in range(SITES)]
    total = sum(shared_vector(layout, tuple(one), protection(site)) for site, one in enumerate(tables))
    (pair,) = table_one(np.asarray(total), layout, SITES).covariances
    clipped = np.clip(np.concatenate(tables, axis=1), -5, 5)
    assert (pair.first, pair.second) == names
    assert pair.within is not None
    assert pair.covariance == pytest.approx(np.cov(clipped)[0, 1], abs=pair.within)
    assert 0.1 < pair.within < 0.4


@pytest.mark.parametrize("rows", [60, 600, 6000])
def test_no_rounding_moves_a_figure_further_than_is_said_and_more_rows_move_it_less(rows: int) -> None:
    """One site, so nothing but its sums was rounded: over 200 keys, the worst is near the bound and never beyond."""
    age = np.clip(np.random.default_rng(rows).normal(58, 14, rows), 0, 100)
    layout = Layout((AGE,), most_rows=10_000)
    within, found = [], []
    for site in range(200):
        (column,) = table_one(shared_vector(layout, (age,), protection(site)), layout, 1).numeric
        assert None not in (column.mean, column.sd, column.mean_within, column.sd_within)
        found.append((column.mean, column.sd))
        within.append((column.mean_within or 0.0, column.sd_within or 0.0))
    off = np.abs(np.array(found) - (age.mean(), age.std(ddof=1)))
    assert np.all(off <= np.array(within) * (1 + 1e-9))
    assert off[:, 0].max() > 0.2 * within[0][0]
    assert np.allclose(within[0], (50 * 2.5 / rows, within[0][1]), rtol=0.1)


def test_a_spread_that_rounding_hides_is_scaled_by_its_upper_bound() -> None:
    """A range fifty times as wide as the spread, and few rows: what is opened may be much too small, or nothing."""
    values, unknown = np.random.default_rng(2).normal(140, 4, 100), []
    for column in (Numeric("sodium", 0.0, 200.0), Numeric("sodium", 120.0, 160.0)):
        layout = Layout((column,))
        table = table_one(
            np.sum([shared_vector(layout, (values,), protection(n)) for n in range(4)], axis=0), layout, 4
        )
        (found,), (scale,) = table.numeric, scaling_of(table, "s", 1).columns
        assert found.sd is not None
        assert found.sd_within is not None
        assert scale.sd == (found.sd + found.sd_within if spread_unknown(found) else found.sd)
        assert scale.sd > 3.5
        unknown.append(spread_unknown(found))
    assert unknown == [True, False]


def test_a_table_of_an_older_release_has_no_bounds_and_still_scales() -> None:
    old = opened().model_dump(mode="json")
    for one in old["numeric"]:
        del one["mean_within"], one["sd_within"]
    assert [one.name for one in scaling_of(TableOne.model_validate(old), "s", 1).columns] == ["age", "flag"]


def test_a_pair_that_no_site_shares_has_no_covariance() -> None:
    layout = Layout((Numeric("x", -5, 5), Numeric("y", -5, 5)), most_rows=1000, second_moments=True)
    assert table_one(np.zeros(layout.length, dtype=np.int64), layout, SITES).covariances == ()


def test_rare_values_of_a_column_without_another_category_are_counted_under_no_name() -> None:
    layout = Layout((Categories("stage", ("I", "II"), None),), most_rows=1000)
    rows = (np.array([0] * 50 + [1] * 3),)
    total = np.sum([shared_vector(layout, rows, protection(site)) for site in range(SITES)], axis=0)
    (stage,) = table_one(total, layout, SITES).categories
    assert [count.name for count in stage.counts] == ["I", "II", None]
    assert stage.values == sum(count.count for count in stage.counts)


def test_a_column_that_no_site_has_enough_of_has_no_figures_and_no_scale() -> None:
    nothing = table_one(np.zeros(LAYOUT.length, dtype=np.int64), LAYOUT, SITES)
    assert [(one.values, one.mean, one.sd, one.quantiles) for one in nothing.numeric] == [(0, None, None, ())] * 2
    assert scaling_of(nothing, "s", 1).columns == ()


@pytest.mark.parametrize("value", [98.6, 30.0, 50.0, 77.7, 0.1])
@pytest.mark.parametrize("rows", [30, 120, 777])
def test_a_column_that_is_constant_everywhere_has_no_spread_of_rounding(value: float, rows: int) -> None:
    """Sums are rounded, so its variance over all sites comes out a little above 0, or below."""
    layout = Layout((AGE,), bins=10, most_rows=1000)
    for sites in (1, 2, 3, 7):
        of_each = [shared_vector(layout, (np.full(rows + site, value),), protection(site)) for site in range(sites)]
        found = table_one(np.sum(of_each, axis=0), layout, sites)
        (scale,) = scaling_of(found, "s", 1).columns
        assert spread_unknown(found.numeric[0])
        assert abs(value - scale.mean) <= 3 * scale.sd
        assert scale.sd > 0.1


def test_a_column_that_is_constant_at_one_site_alone_is_scaled_by_all() -> None:
    layout = Layout((AGE,), bins=10, most_rows=1000)
    values = [np.full(200, 40.0), np.full(200, 60.0)]
    of_each = [shared_vector(layout, (one,), protection(site)) for site, one in enumerate(values)]
    (scale,) = scaling_of(table_one(np.sum(of_each, axis=0), layout, 2), "s", 1).columns
    assert (scale.mean, scale.sd) == (pytest.approx(50, abs=0.5), pytest.approx(10, abs=0.1))


@pytest.mark.parametrize(("entry", "value"), [(0, -1), (0, 4 * 201 + 1), (2, 2**22), (3, -3), (5, -7), (-1, 2**40)])
def test_a_sum_that_no_tables_add_up_to_is_discarded(entry: int, value: int) -> None:
    total = np.sum(shared(), axis=0)
    total[entry] = value
    with pytest.raises(AggregateOutOfBounds, match="a site or a server broke the protocol"):
        table_one(total, LAYOUT, SITES)


def test_another_length_is_refused() -> None:
    with pytest.raises(ProtocolViolation, match="found shape"):
        table_one(np.zeros(3, dtype=np.int64), LAYOUT, SITES)


def test_a_scaling_file_comes_back_and_a_changed_one_is_refused() -> None:
    scaling = scaling_of(opened(), "study", 1)
    text = scaling_text(scaling)
    assert parse_scaling(text.encode(), "file") == parse_scaling(text.encode("utf-8-sig"), "file") == scaling
    assert [one.name for one in scaling.columns] == ["age", "flag"]
    changed = text.replace(str(scaling.columns[0].mean), "1.0")
    with pytest.raises(ConfigurationError, match="digest"):
        parse_scaling(changed.encode(), "file")
    with pytest.raises(ConfigurationError, match="no scaling file"):
        parse_scaling(b"{}", "file")
