"""What a site shares of its table: nothing of few patients, counts rounded alike every time (docs/protocol.md 17)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from protocol.errors import UnusableUpdate
from protocol.summary import protection as protect
from protocol.summary.layout import Categories, Layout, Numeric, largest_share
from protocol.summary.protection import Protection, shared_vector
from tests.unit.summary.tables import AGE, FLAG, LAYOUT, STAGE, protection, slow_count, slow_vector, table


def test_every_count_is_the_slow_ones_and_right_on_average() -> None:
    rng = np.random.default_rng(1)
    masks = [rng.random(40) < share for share in (0.1, 0.5, 0.9) for _ in range(200)]
    counted = [protection().count(mask) for mask in masks]
    assert counted == [slow_count(mask.tolist(), protection()) for mask in masks]
    assert abs(np.mean(counted) - np.mean([mask.sum() for mask in masks])) < 0.3
    assert all(count % 5 == 0 and abs(count - mask.sum()) < 5 for count, mask in zip(counted, masks, strict=True))


@pytest.mark.parametrize("site", range(6))
def test_the_whole_vector_is_the_slow_one(site: int) -> None:
    columns = table(site, 120 + site)
    assert shared_vector(LAYOUT, columns, protection(site)).tolist() == slow_vector(LAYOUT, columns, protection(site))


def test_a_sum_is_rounded_as_a_count_is_and_every_time_alike() -> None:
    """To the step below or above, right on average over keys; other rows or another sum draw anew."""
    rows = np.arange(50) < 30
    found = [protection(site).total(7.25, rows, 2.5) for site in range(400)]
    assert set(found) == {5.0, 7.5}
    assert np.mean(found) == pytest.approx(7.25, abs=0.15)
    assert found == [protection(site).total(7.25, np.append(rows, False), 2.5) for site in range(400)]
    assert found != [protection(site).total(7.25, rows[1:], 2.5) for site in range(400)]
    assert [protection().total(exact, rows, 2.5) for exact in (-30.0, 0.0, 30.0)] == [-30.0, 0.0, 30.0]


@pytest.mark.parametrize("rounded_to", [5, 7])
def test_sums_and_squares_and_products_lie_on_grids_wider_than_a_value_moves_them(rounded_to: int) -> None:
    numbers = tuple(Numeric(name, 0.0, 100.0) for name in ("age", "weight", "pulse"))
    layout = Layout(numbers, bins=4, rounded_to=rounded_to, most_rows=400, second_moments=True)
    assert layout.sums_grid > 2
    assert layout.squares_grid > 1
    rng = np.random.default_rng(7)
    columns = tuple(rng.integers(0, 101, 130).astype(np.float64) for _ in numbers)
    by = Protection(bytes(32), 10, rounded_to)
    shared = shared_vector(layout, columns, by) / layout.resolution
    sums, squares = shared[2:24:8], shared[3:24:8]
    products = shared[24:].reshape(3, 4)[:, 1:]
    assert not np.any(np.append(sums, products) % layout.sums_grid)
    assert not np.any(squares % layout.squares_grid)
    assert np.all(np.abs(sums) <= shared[0] * layout.resolution * rounded_to)
    assert [pair[0] for pair in products] == [sums[0], sums[0], sums[1]], "the same rows with the same sum"


def test_columns_over_the_same_rows_say_one_number_of_them() -> None:
    """However they are cut into bins and categories: no average of many is nearer to the exact number."""
    rng = np.random.default_rng(3)
    measured = rng.random(117) < 0.7
    numbers = tuple(Numeric(f"x{place}", 0.0, 1.0) for place in range(30))
    names = tuple(Categories(f"c{place}", ("a", "b", "c")) for place in range(30))
    columns = [np.where(measured, rng.random(117), np.nan) for _ in numbers]
    columns += [np.where(measured, rng.integers(0, 3, 117), -1) for _ in names]
    shared = shared_vector(Layout((*numbers, *names), bins=2), columns, protection())
    of_numbers, of_names = shared[:180].reshape(30, 6), shared[180:].reshape(30, 5)
    (count,) = set(of_numbers[:, 0].tolist())
    assert set(of_numbers[:, 4:].sum(axis=1).tolist()) == set(of_names[:, 1:].sum(axis=1).tolist()) == {count}
    (missing,) = {*of_numbers[:, 1].tolist(), *of_names[:, 0].tolist()}
    assert (count + missing) * 5 == protection().count(np.ones(117, dtype=bool))


def test_the_same_rows_count_the_same_however_they_are_asked_for() -> None:
    """Other rows at the end, another column, another study: the answer is the same; another site's differs at times."""
    rng = np.random.default_rng(2)
    masks = [rng.random(33) < 0.4 for _ in range(50)]
    longer = [np.concatenate([mask, np.zeros(9, dtype=bool)]) for mask in masks]
    again = [protection().count(mask) for mask in longer]
    assert again == [protection().count(mask) for mask in masks]
    assert again != [protection(1).count(mask) for mask in masks]


@pytest.mark.parametrize("rows", [0, 1, 9])
def test_a_site_with_few_rows_shares_zeros(rows: int) -> None:
    assert not shared_vector(LAYOUT, table(0, rows), protection()).any()


def test_a_column_with_few_values_is_zeros_and_the_others_are_shared() -> None:
    age, flag, stage = table(0)
    age[np.flatnonzero(~np.isnan(age))[9:]] = np.nan
    shared = shared_vector(LAYOUT, (age, flag, stage), protection())
    assert not shared[:14].any()
    assert shared[14] > 0


def test_a_category_of_one_patient_is_counted_with_the_others_or_not_at_all() -> None:
    """Alone it is not counted; with enough declared others it is one of them. Neither says that anybody has it."""
    layout = Layout((STAGE,))
    alone = np.array([0] * 60 + [1])
    none = shared_vector(layout, (np.array([0] * 60 + [-1]),), protection())
    assert shared_vector(layout, (alone,), protection()).tolist()[1:] == [12, 0, 0, 0] == none.tolist()[1:]
    among = np.array([0] * 60 + [1] + [2] * 29)
    assert shared_vector(layout, (among,), protection()).tolist()[1:] == [12, 0, 0, 6]


@pytest.mark.parametrize(
    "crafted",
    [
        pytest.param((69.999, 70.001), id="a range around one value"),
        pytest.param((90.0, 100.0), id="a range beyond all but the oldest"),
        pytest.param((-1e300, 69.5), id="a range that begins nowhere"),
    ],
)
def test_a_range_that_singles_a_patient_out_shows_counts_of_many_alone(crafted: tuple[float, float]) -> None:
    """Whether the one patient is 70 or 69.9995, 95 or 99: the sums are the same, and of protected counts only."""
    low, high = crafted
    layout = Layout((Numeric("age", low, high),), bins=20)
    ages = np.concatenate([np.full(40, 20.0), [70.0 if high < 90 else 95.0], np.full(30, 80.0)])
    other = ages.copy()
    other[40] = 69.9995 if high < 90 else 99.0
    shared = [shared_vector(layout, (one,), protection()) for one in (ages, other)]
    assert np.array_equal(shared[0], shared[1])
    assert np.count_nonzero(shared[0][4:]) <= 2


def test_a_column_of_zeros_and_ones_tells_no_more_than_rounded_counts() -> None:
    flags = np.array([0.0] * 63 + [1.0] * 21)
    layout = Layout((FLAG,), bins=4, most_rows=200)
    count, _, total, squares, *bins = shared_vector(layout, (flags,), protection()).tolist()
    zeros, both = protection().count(flags == 0) // 5, protection().count(flags >= 0) // 5
    ones = both - zeros
    assert bins == [zeros, 0, 0, ones]
    assert (count, total, squares) == (
        zeros + ones,
        layout.resolution * 5 * (ones - zeros),
        layout.resolution * 5 * count,
    )


def test_second_moments_leave_out_pairs_with_a_column_of_few_values() -> None:
    age, flag, _ = table(3)
    layout = Layout((AGE, FLAG, Numeric("weight", 0, 200)), most_rows=1000, second_moments=True)
    shared = shared_vector(layout, (age, flag, 2 * age), protection())
    first, with_weight, third = shared[-12:].reshape(3, 4)
    assert not first.any()
    assert not third.any()
    assert with_weight.all()


@pytest.mark.parametrize("away", [1, 9, 10])
def test_second_moments_do_not_show_who_lacks_a_value(away: int) -> None:
    """A pair over all rows but one, beside the sum over all rows, gives that one row's value."""
    age = table(3)[0]
    lacking = 2 * age
    lacking[:away] = np.nan
    layout = Layout((AGE, Numeric("weight", 0, 200), Numeric("pulse", 0, 300)), most_rows=1000, second_moments=True)
    shared = shared_vector(layout, (age, lacking, 3 * age), protection())
    with_age, ages_and_pulse, with_pulse = shared[-12:].reshape(3, 4)
    assert with_age.any() == with_pulse.any() == ages_and_pulse.any() == (away >= 10)
    assert with_age[0] == ages_and_pulse[0] == with_pulse[0]


def test_second_moments_over_few_common_rows_are_not_shared() -> None:
    age = table(3)[0]
    early, late = 2 * age, 3 * age
    early[:60], late[62:] = np.nan, np.nan
    layout = Layout((Numeric("weight", 0, 200), Numeric("pulse", 0, 300)), most_rows=1000, second_moments=True)
    assert not shared_vector(layout, (early, late), protection())[-4:].any()


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        (table(0)[:2], "takes one value per row"),
        ((table(0)[0][:5], *table(0)[1:]), "takes one value per row"),
        (table(0, 1001), "more than 1000 rows"),
        ((np.full(120, np.inf), *table(0)[1:]), "infinite"),
        ((*table(0)[:2], np.full(120, 3)), "not declared"),
    ],
)
def test_another_table_is_refused(columns: tuple[np.ndarray, ...], text: str) -> None:
    with pytest.raises(UnusableUpdate, match=text):
        shared_vector(LAYOUT, columns, protection())


@pytest.mark.parametrize(
    ("columns", "options", "text"),
    [
        ((), {}, "1 to 500 columns"),
        ((AGE, AGE), {}, "two have one name"),
        ((Categories("c", tuple(map(str, range(200_000)))),), {}, "at most 131072"),
        ((AGE,) * 1 + (STAGE,), {"most_rows": 10**9}, "more than a summary holds"),
    ],
)
def test_a_layout_that_no_round_carries_is_refused(columns: tuple, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Layout(columns, **options)


@pytest.mark.parametrize("bounds", [(1.0, 1.0), (2.0, 1.0), (0.0, float("inf")), (-1.7e308, 1.7e308)])
def test_a_range_without_a_width_is_refused(bounds: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="range of some width"):
        Numeric("age", *bounds)


def test_the_largest_table_stays_below_what_the_range_check_passes() -> None:
    rows, least = 1000, protection(least=1)
    layout = Layout((*(Numeric(str(n), 0, 1) for n in range(30)), STAGE), bins=20, most_rows=rows, second_moments=True)
    spread = np.linspace(0.9, 0.999, rows)
    shared = shared_vector(layout, (*(spread for _ in range(30)), np.zeros(rows, dtype=np.int64)), least)
    assert largest_share() / 4 < np.abs(shared).sum() <= largest_share()


def test_a_vector_that_the_ring_has_no_room_for_is_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protect, "largest_share", lambda: 10)
    with pytest.raises(UnusableUpdate, match="at most 10 fits: raise most_rows"):
        shared_vector(LAYOUT, table(0), protection())
