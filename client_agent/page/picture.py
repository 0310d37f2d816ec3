"""Lines over rounds as an SVG that stands in the page; the same numbers are in a table below it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from markupsafe import Markup, escape

_WIDTH: Final = 720
_HEIGHT: Final = 220
_EDGE: Final = 36
_COLOURS: Final = ("#1b4f72", "#a04000", "#196f3d", "#6c3483", "#7b241c", "#117a65", "#5d4037", "#283593")
_DASHES: Final = ("", "6 3", "2 2", "8 3 2 3")
Point = tuple[int, float]


def lines_over_rounds(title: str, series: Mapping[str, Sequence[Point]]) -> Markup:
    """One line for each series, with its name at its end; nothing where there is not one finite point."""
    finite = {name: [one for one in points if math.isfinite(one[1])] for name, points in series.items()}
    values = [value for points in finite.values() for _, value in points]
    if not values:
        return Markup("")
    rounds = [number for points in finite.values() for number, _ in points]
    scale = _Scale(min(rounds), max(rounds), min(0.0, *values), max(1.0, *values))
    drawn = [_line(name, points, scale, at) for at, (name, points) in enumerate(finite.items()) if points]
    axes = _axes(scale)
    return Markup('<svg lang="en" viewBox="0 0 {} {}" role="img" aria-label="{}"><title>{}</title>{}{}</svg>').format(
        _WIDTH + 140, _HEIGHT, title, title, axes, Markup("").join(drawn)
    )


class _Scale:
    def __init__(self, first: int, last: int, low: float, high: float) -> None:
        self.first, self.last, self.low, self.high = first, last, low, high

    def x(self, number: int) -> float:
        return _EDGE + (number - self.first) / max(1, self.last - self.first) * (_WIDTH - 2 * _EDGE)

    def y(self, value: float) -> float:
        return _HEIGHT - _EDGE - (value - self.low) / (self.high - self.low) * (_HEIGHT - 2 * _EDGE)


def _line(name: str, points: Sequence[Point], scale: _Scale, at: int) -> Markup:
    path = " ".join(f"{scale.x(number):.1f},{scale.y(value):.1f}" for number, value in points)
    colour, dash = _COLOURS[at % len(_COLOURS)], _DASHES[at // len(_COLOURS) % len(_DASHES)]
    last = points[-1]
    return Markup(
        '<polyline points="{}" fill="none" stroke="{}" stroke-width="2" stroke-dasharray="{}"/>'
        '<text x="{}" y="{}" fill="{}" font-size="12">{}</text>'
    ).format(path, colour, dash, f"{scale.x(last[0]) + 6:.1f}", f"{scale.y(last[1]) + 4:.1f}", colour, escape(name))


def _axes(scale: _Scale) -> Markup:
    left, bottom, right = _EDGE, _HEIGHT - _EDGE, _WIDTH - _EDGE
    return Markup(
        '<path d="M{left} {top} V{bottom} H{right}" fill="none" stroke="#555"/>'
        '<g font-size="12" fill="#333"><text x="{left}" y="{under}">round {first}</text>'
        '<text x="{right}" y="{under}" text-anchor="end">round {last}</text>'
        '<text x="4" y="{top}">{high}</text><text x="4" y="{bottom}">{low}</text></g>'
    ).format(
        left=left,
        top=_EDGE,
        bottom=bottom,
        right=right,
        under=_HEIGHT - 12,
        first=scale.first,
        last=scale.last,
        high=f"{scale.high:.2g}",
        low=f"{scale.low:.2g}",
    )
