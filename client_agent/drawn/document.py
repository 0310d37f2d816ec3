"""An HTML page that stands by itself: its style is in it, and a browser loads nothing for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

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
