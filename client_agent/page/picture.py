"""Lines over rounds as an SVG that stands in the page; the same numbers are in a table below it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from client_agent.drawn.curves import Curve, chart

Point = tuple[int, float]


def lines_over_rounds(title: str, series: Mapping[str, Sequence[Point]]) -> Markup:
    """One line for each series; nothing where there is not one finite point."""
    curves = [Curve(name, tuple(points)) for name, points in series.items()]
    if not any(math.isfinite(value) for one in curves for _, value in one.points):
        return Markup("")
    return Markup(chart(curves, title, floor=0.0))  # noqa: S704 - the chart escapes every text
