"""Curves as SVG: every line and name is in it, ticks are round numbers, hostile names stay text."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest

from client_agent.page.charts import COLOURS, Curve, chart, document, figure, table, ticks

SVG = "{http://www.w3.org/2000/svg}"


def drawn(*curves: Curve, floor: float | None = None) -> ElementTree.Element:
    return ElementTree.fromstring(chart(curves, "weight", floor))


def test_a_line_and_an_entry_of_the_legend_for_each_curve_with_numbers() -> None:
    root = drawn(Curve("c1", ((1, 1.0), (2, 0.5))), Curve("c2", ()), Curve("c3", ((2, 0.25),)))
    assert len(list(root.iter(f"{SVG}polyline"))) == 1
    assert len(list(root.iter(f"{SVG}circle"))) == 1  # a single round is a point
    legend = next(group for group in root.iter(f"{SVG}g") if group.get("id") == "legend")
    assert [text.text for text in legend.iter(f"{SVG}text")] == ["c1", "c3"]


def test_points_lie_where_their_numbers_are() -> None:
    root = drawn(Curve("c1", ((1, 0.0), (3, 1.0), (5, 0.5))), floor=0.0)
    (line,) = root.iter(f"{SVG}polyline")
    (x1, y1), (x2, y2), (x3, y3) = [tuple(map(float, p.split(","))) for p in str(line.get("points")).split()]
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.11)
    assert y1 - y3 == pytest.approx(y3 - y2, abs=0.11)
    assert y2 < y3 < y1  # up is more


def test_numbers_that_are_none_are_left_out() -> None:
    text = chart([Curve("c1", ((1, math.nan), (2, math.inf), (3, 0.5), (4, 0.25)))], "weight")
    assert "nan" not in text
    assert "inf" not in text
    assert "no numbers" in chart([Curve("c1", ((1, math.nan),))], "weight")
    assert "no numbers" in chart([], "weight")


@pytest.mark.parametrize("value", [0.0, 1e-9, 7.0, 1e12])
def test_a_curve_that_does_not_change_has_an_axis(value: float) -> None:
    assert "polyline" in chart([Curve("c1", ((1, value), (2, value)))], "weight")


def test_ticks_are_round_and_few() -> None:
    assert ticks(0.0, 1.0) == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert ticks(1, 3, whole=True) == [1, 2, 3]
    assert ticks(0.5, 1.5, whole=True) == [1]
    assert ticks(1, 60, whole=True) == [10, 20, 30, 40, 50, 60]
    assert all(2 <= len(ticks(0.0, high)) <= 11 for high in (1e-12, 0.3, 7.0, 123456.0))


def test_more_curves_than_colours_differ_by_their_dashes() -> None:
    many = len(COLOURS) + 1
    root = drawn(*(Curve(f"c{n}", ((1, n), (2, n))) for n in range(many)))
    lines = [(line.get("stroke"), line.get("stroke-dasharray")) for line in root.iter(f"{SVG}polyline")]
    assert len(set(lines)) == many


def test_names_stay_text() -> None:
    hostile = '"><script>alert(1)</script>\x1b]0;owned'
    page = document(hostile, figure(hostile, hostile, chart([Curve(hostile, ((1, 1.0),))], hostile)))
    page += table((hostile,), [(hostile,)])
    assert "<script" not in page
    assert "\x1b" not in chart([Curve(hostile, ((1, 1.0),))], "weight")


def test_columns_of_numbers_stand_to_the_right() -> None:
    made = table(("site", "sums"), [("c1", "1,000"), ("c2", "")])
    assert "<th>site</th><th class=n>sums</th>" in made
    assert "<td>c1</td><td class=n>1,000</td>" in made
