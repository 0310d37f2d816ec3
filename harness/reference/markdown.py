"""Markdown of pages that are made from code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; bars and line ends inside of cells are made harmless."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def page(title: str, *parts: str) -> str:
    """A whole page; empty parts are left out."""
    return "\n\n".join([f"# {title}", *(part for part in parts if part)]) + "\n"


def first_paragraph(docstring: str | None) -> str:
    """A docstring's beginning, on one line."""
    return " ".join((docstring or "").strip().split("\n\n")[0].split())


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
