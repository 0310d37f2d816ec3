"""HTML pages and SVG charts as text: self-contained, without script."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from protocol.text import printable

COLOURS: Final = ("#2b6cb0", "#c05621", "#2f855a", "#805ad5", "#b83280", "#4a5568", "#b7791f", "#2c7a7b", "#9b2c2c")
_DASHES: Final = ("", "7 3", "2 3", "9 3 2 3")
_WIDTH, _HEIGHT = 520, 300
_LEFT, _TOP, _RIGHT, _BOTTOM = 58, 10, 12, 40
_LEGEND_LINE: Final = 16
_LEGEND_COLUMNS: Final = 3
_LEGEND_CHARACTERS: Final = 24
_TICKS: Final = 6
_NARROWEST, _WIDEST = 1.4, 3.0


@dataclass(frozen=True)
class Curve:
    """A named number over rounds; rounds without one are not in it."""

    name: str
    points: tuple[tuple[int, float], ...]


def over_rounds(label: str, points: Iterable[tuple[str, int, float]], floor: float | None = 0.0) -> str:
    """One line for each name over the rounds; nothing where there is not one finite value."""
    series: dict[str, list[tuple[int, float]]] = {}
    for name, number, value in points:
        series.setdefault(name, []).append((number, value))
    if not any(math.isfinite(value) for line in series.values() for _, value in line):
        return ""
    return chart([Curve(name, tuple(line)) for name, line in series.items()], label, floor)


@dataclass(frozen=True)
class _Axis:
    """A linear axis: numbers from ``low`` to ``high`` at places from ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float

    def place(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def chart(curves: Sequence[Curve], label: str, floor: float | None = None) -> str:
    """One line for each curve, a legend below; ``floor`` is where the vertical axis begins at the latest.

    Numbers that are not finite are left out. Without any it is an empty chart that says so.
    """
    drawn = [Curve(one.name, tuple(p for p in one.points if math.isfinite(p[1]))) for one in curves]
    named = [(place, one) for place, one in enumerate(drawn) if one.points]
    legend = _LEGEND_LINE * math.ceil(len(named) / _LEGEND_COLUMNS)
    across, up = _axes(named, floor)
    content = _frame(across, up, label) if named else _words(_WIDTH / 2, _HEIGHT / 2, "no numbers", "middle")
    lines = "".join(_line(one, _colour(place), across, up, _stroke(place, len(drawn))) for place, one in named)
    entries = "".join(_entry(number, place, one.name) for number, (place, one) in enumerate(named))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" lang="en" viewBox="0 0 {_WIDTH} {_HEIGHT + legend + 8}" role="img" '
        f'aria-label="{escape(label)}" font-family="system-ui, sans-serif" font-size="11">'
        f'{content}{lines}<g id="legend">{entries}</g></svg>'
    )


def _axes(named: Sequence[tuple[int, Curve]], floor: float | None) -> tuple[_Axis, _Axis]:
    rounds = [number for _, one in named for number, _ in one.points] or [1]
    values = [value for _, one in named for _, value in one.points] or [0.0]
    low, high = min(values), max(values)
    margin = 0.08 * (high - low) or 0.08 * abs(high) or 1.0
    bottom = low - margin if floor is None else min(floor, low)
    first, last = min(rounds), max(rounds)
    spare = 0.5 if first == last else 0.0
    across = _Axis(first - spare, last + spare, _LEFT, _WIDTH - _RIGHT)
    return across, _Axis(bottom, high + margin, _HEIGHT - _BOTTOM, _TOP)


def ticks(low: float, high: float, *, whole: bool = False) -> list[float]:
    """Round numbers from ``low`` to ``high``, a handful of them; ``whole`` ones alone where asked for."""
    raw = (high - low) / _TICKS
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw)
    step = max(1.0, step) if whole else step
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def _frame(across: _Axis, up: _Axis, label: str) -> str:
    foot = _HEIGHT - _BOTTOM
    grid = "".join(
        f'<path d="M{_LEFT} {up.place(y):.1f}H{_WIDTH - _RIGHT}" stroke="#e2e8f0"/>'
        + _words(_LEFT - 6, up.place(y) + 4, f"{y:.4g}", "end")
        for y in ticks(up.low, up.high)
    )
    below = "".join(
        _words(across.place(x), foot + 15, f"{x:.0f}", "middle") for x in ticks(across.low, across.high, whole=True)
    )
    middle = (_TOP + foot) / 2
    turned = f'<g transform="rotate(-90 13 {middle:.1f})">{_words(13, middle, label, "middle")}</g>'
    edge = f'<path d="M{_LEFT} {_TOP}V{foot}H{_WIDTH - _RIGHT}" fill="none" stroke="#4a5568"/>'
    return f"{grid}{edge}{below}{turned}{_words((_LEFT + _WIDTH - _RIGHT) / 2, foot + 31, 'round', 'middle')}"


def _line(curve: Curve, colour: str, across: _Axis, up: _Axis, stroke: str) -> str:
    at = [f"{across.place(number):.1f},{up.place(value):.1f}" for number, value in curve.points]
    title = f"<title>{escape(printable(curve.name))}</title>"
    if len(at) == 1:
        x, y = at[0].split(",")
        return f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}">{title}</circle>'
    return f'<polyline points="{" ".join(at)}" fill="none" stroke="{colour}" {stroke}>{title}</polyline>'


def _stroke(place: int, count: int) -> str:
    """Return a curve's stroke: what lies below shows at the edges, and curves beyond the colours differ by their
    dashes.
    """
    width = _WIDEST - (_WIDEST - _NARROWEST) * place / max(1, count - 1)
    dash = _DASHES[place // len(COLOURS) % len(_DASHES)]
    return f'stroke-width="{width:.1f}"' + (f' stroke-dasharray="{dash}"' if dash else "")


def _entry(number: int, place: int, name: str) -> str:
    x = _LEFT + number % _LEGEND_COLUMNS * (_WIDTH - _LEFT - _RIGHT) / _LEGEND_COLUMNS
    y = _HEIGHT + 8 + number // _LEGEND_COLUMNS * _LEGEND_LINE
    shown = printable(name)
    short = shown if len(shown) <= _LEGEND_CHARACTERS else f"{shown[: _LEGEND_CHARACTERS - 3]}..."
    dash = _stroke(place, 1)
    return (
        f'<path d="M{x:.1f} {y - 4}h18" stroke="{_colour(place)}" fill="none" {dash}/>'
        f"{_words(x + 23, y, short, 'start')}"
    )


def _colour(place: int) -> str:
    return COLOURS[place % len(COLOURS)]


def _words(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="#2d3748">{escape(text)}</text>'


_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; color: #1a202c; }
h1 { font-size: 1.6rem; } h2 { margin-top: 2.5rem; border-bottom: 1px solid #cbd5e0; } h3 { margin-top: 1.6rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; margin: .6rem 0; }
td, th { padding: .25rem .8rem; text-align: left; border-bottom: 1px solid #e2e8f0; vertical-align: top; }
td:first-child { white-space: nowrap; }
th.n, td.n { text-align: right; font-variant-numeric: tabular-nums; }
figure { display: inline-block; margin: .5rem 1rem .5rem 0; width: 32rem; max-width: 100%; vertical-align: top; }
figure svg { width: 100%; height: auto; } figcaption { font-size: .85rem; color: #4a5568; }
p.note { color: #4a5568; font-size: .9rem; }
p.alarm { border-left: .4rem solid #9b2c2c; background: #fff5f5; padding: .6rem 1rem; font-weight: 600; }
pre { background: #f7fafc; padding: .8rem; white-space: pre-wrap; overflow-wrap: anywhere; font-size: .85rem; }
code { overflow-wrap: anywhere; }
@media print { body { margin: 0; max-width: none; } h2 { break-after: avoid; } figure { break-inside: avoid; } }
"""


def document(title: str, body: str) -> str:
    """The whole file; ``title`` is text, ``body`` markup."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>{body}</body></html>\n"
    )


def figure(title: str, caption: str, svg: str) -> str:
    """A chart with its title and a sentence on what it shows."""
    return f"<figure>{svg}<figcaption><b>{escape(title)}.</b> {escape(caption)}</figcaption></figure>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns of numbers, and their heads, to the right."""
    every = [tuple(row) for row in rows]
    numbers = [all(_is_number(row[place]) for row in every) for place in range(len(head))]
    marks = [" class=n" if number else "" for number in numbers]
    lines = [
        "".join(f"<{tag}{mark}>{escape(cell)}</{tag}>" for cell, mark in zip(row, marks, strict=True))
        for tag, row in (("th", tuple(head)), *(("td", row) for row in every))
    ]
    return f"<div class=wide><table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table></div>"


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", "") if text not in {"", "-"} else "0")
    except ValueError:
        return False
    return True
