"""Hooks that mkdocs calls while it builds the site: pages made from code, the files beside ``docs``, links out of them.

Source: mkdocs' documentation, "Hooks" (1.6): https://www.mkdocs.org/user-guide/configuration/#hooks

Understood is what the documents use, ``stateDiagram-v2`` with ``a --> b: event`` and ``[*]``; anything else is an error
and ends the site's build. States stand below each other. A line leaves a state for each event, beside its words, runs
down or up in a lane of its own and ends with an arrow in the next state; lines of one event into one state are one.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from html import escape
from pathlib import Path, PurePosixPath
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from harness.reference.pages import GENERATED

_FENCE: Final = re.compile(r"^```mermaid\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_EDGE: Final = re.compile(r"\s*(\[\*\]|\w+) --> (\[\*\]|\w+)(?:: (.+))?")
_OUTSIDE: Final = "[*]"
_BOX_PX: Final = 120
_WORDS_PX: Final = 250
_PORT_PX: Final = 18
_LANE_PX: Final = 12
_GAP_PX: Final = 22
_STYLE: Final = (
    "fill:none;stroke:currentColor;stroke-width:1.2",
    "fill:currentColor;stroke:none;font:13px sans-serif",
)


@dataclass(frozen=True)
class Edge:
    """A change from a state to another, or to itself, when something happens."""

    source: str
    target: str
    event: str


@dataclass(frozen=True)
class Machine:
    """``ends``: the states after which nothing comes."""

    states: tuple[str, ...]
    edges: tuple[Edge, ...]
    ends: frozenset[str]


def drawn(markdown: str) -> str:
    """A page with its diagrams as pictures. Raises: ValueError"""
    return _FENCE.sub(lambda found: picture(parsed(found[1])), markdown)


def parsed(text: str) -> Machine:
    """Raises: ValueError, for a line that is not understood"""
    first, *lines = text.strip().splitlines()
    if first.strip() != "stateDiagram-v2":
        raise ValueError(f"diagram {first!r}: only stateDiagram-v2 is drawn")
    edges, ends, states = [], set[str](), dict[str, None]()
    for line in lines:
        match = _EDGE.fullmatch(line)
        if match is None:
            raise ValueError(f"diagram line {line!r} is not understood")
        source, target, event = match[1], match[2], match[3] or ""
        states |= dict.fromkeys(name for name in (source, target) if name != _OUTSIDE)
        if target == _OUTSIDE:
            ends.add(source)
        elif source != _OUTSIDE:
            edges.append(Edge(source, target, event))
    return Machine(tuple(states), tuple(edges), frozenset(ends))


def picture(machine: Machine) -> str:
    """One element on one line, in the colour of the text around it."""
    lines = dict.fromkeys((edge.target, edge.event) for edge in machine.edges)
    ports: dict[tuple[str, str, str], float] = {}
    body, y = [], 8.0
    for state in machine.states:
        into = [(state, "in", f"{target}:{event}") for target, event in lines if target == state]
        out = [(state, "out", f"{edge.target}:{edge.event}") for edge in machine.edges if edge.source == state]
        height = max(2, len(into) + len(out)) * _PORT_PX
        for place, port in enumerate((*into, *out)):
            ports[port] = y + (place + 0.5) * _PORT_PX
        body.append(_box(state, y, height, state in machine.ends))
        body += [_words(edge, ports) for edge in machine.edges if edge.source == state]
        y += height + _GAP_PX
    spans = {line: _span(line, ports) for line in lines}
    lanes = _lanes(spans)
    left = _BOX_PX + _WORDS_PX
    for target, event in lines:
        body.append(_line(f"{target}:{event}", target, ports, left + lanes[target, event] * _LANE_PX))
    width = left + (1 + max(lanes.values(), default=0)) * _LANE_PX
    size = f'width="{width}" height="{y:g}" viewBox="0 0 {width} {y:g}"'
    arrow = '<path d="M9 -4 L0 0 L9 4 Z" style="fill:currentColor"/>'
    head = f'<defs><marker id="into" overflow="visible" orient="0">{arrow}</marker></defs>'
    named = escape(", ".join(machine.states))
    around = f'role="img" aria-label="States: {named}" style="max-width:100%"'
    return f"<div><svg {around} {size}>{head}{''.join(body)}</svg></div>"


def _box(state: str, y: float, height: float, is_end: bool) -> str:
    around = f'<rect x="1" y="{y:g}" width="{_BOX_PX - 2}" height="{height}" rx="6" style="{_STYLE[0]}"/>'
    if is_end:
        inner = f'<rect x="4" y="{y + 3:g}" width="{_BOX_PX - 8}" height="{height - 6}" rx="4" style="{_STYLE[0]}"/>'
        around += inner
    middle = f'x="{_BOX_PX / 2:g}" y="{y + height / 2 + 5:g}" text-anchor="middle"'
    return f'{around}<text {middle} style="{_STYLE[1]};font-weight:bold">{escape(state)}</text>'


def _words(edge: Edge, ports: dict[tuple[str, str, str], float]) -> str:
    y = ports[edge.source, "out", f"{edge.target}:{edge.event}"]
    said = edge.event if edge.event == edge.target else f"{edge.event}, to {edge.target}"
    return f'<text x="{_BOX_PX + 14}" y="{y - 3:g}" style="{_STYLE[1]};font-size:11px">{escape(said)}</text>'


def _span(line: tuple[str, str], ports: dict[tuple[str, str, str], float]) -> tuple[float, float]:
    """Return both ends of a line's lane."""
    heights = [y for (_, _, name), y in ports.items() if name == f"{line[0]}:{line[1]}"]
    return min(heights), max(heights)


def _lanes(spans: dict[tuple[str, str], tuple[float, float]]) -> dict[tuple[str, str], int]:
    """Short lines to the left, and no two beside each other in one lane."""
    taken: list[list[tuple[float, float]]] = []
    found = {}
    for line, (top, bottom) in sorted(spans.items(), key=lambda one: one[1][1] - one[1][0]):
        free = (lane for lane, held in enumerate(taken) if all(bottom < a or b < top for a, b in held))
        lane = next(free, len(taken))
        if lane == len(taken):
            taken.append([])
        taken[lane].append((top, bottom))
        found[line] = lane
    return found


def _line(name: str, target: str, ports: dict[tuple[str, str, str], float], x: float) -> str:
    """Out of each source, along the lane, into the target."""
    sources: Sequence[float] = [y for (_, kind, one), y in ports.items() if kind == "out" and one == name]
    into = ports[target, "in", name]
    paths = [f'<path d="M{_BOX_PX} {y:g} H{x:g} V{into:g}" style="{_STYLE[0]}"/>' for y in sources]
    end = f'<path d="M{x:g} {into:g} H{_BOX_PX}" style="{_STYLE[0]}" marker-end="url(#into)"/>'
    return "".join(paths) + end


_LINK: Final = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?://|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")


def relinked(text: str, origin: PurePosixPath, page: str, pages: Set[str], beside: Mapping[str, str]) -> str:
    """``text`` of the document ``origin`` (its path in the project), which becomes ``page`` of the site.

    A link to a document leads to its page, one to a folder to the README there; what has no page (code, examples) is
    named by its path in the project, as text.
    """

    def led(found: re.Match[str]) -> str:
        words, target, anchor = found[1], found[2], found[3] or ""
        in_project = posixpath.normpath(str(origin.parent / target))
        led_to = page_of(in_project, pages, beside)
        if led_to is None:
            return words if words.strip("`") == in_project else f"{words} (`{in_project}`)"
        return f"[{words}]({posixpath.relpath(led_to, posixpath.dirname(page) or '.')}{anchor})"

    return _LINK.sub(led, text)


def page_of(in_project: str, pages: Set[str], beside: Mapping[str, str]) -> str | None:
    """The site's page of a file or folder of the project, or None where it has none."""
    if in_project in beside:
        return beside[in_project]
    if not in_project.startswith("docs/"):
        return None
    inside = in_project.removeprefix("docs/")
    return next((page for page in (inside, f"{inside}/README.md") if page in pages), None)


ROOT: Final = Path(__file__).parents[2]
BESIDE: Final[Mapping[str, str]] = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
"""Documents at the top of the project -> the page they become."""

_GATHERED: Final[Mapping[str, str]] = {"results": "Results", "adr": "Decisions", "reference": "Reference"}
_REST: Final = "More"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Every page has its place in the menu: folders one of their own, what nobody has placed one together."""
    docs = Path(config.docs_dir)
    pages = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")} | set(GENERATED) | set(BESIDE.values())
    gathered: dict[str, list[str]] = {title: [] for title in (*_GATHERED.values(), _REST)}
    for page in sorted(pages - set(_placed(config.nav)), key=lambda page: (not page.endswith("README.md"), page)):
        gathered[_GATHERED.get(PurePosixPath(page).parts[0], _REST)].append(page)
    config.nav = [*(config.nav or []), *({title: pages} for title, pages in gathered.items() if pages)]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The pages made from code, and the documents beside ``docs``."""
    for page, made in GENERATED.items():
        files.append(File.generated(config, page, content=made()))
    for document, page in BESIDE.items():
        files.append(File.generated(config, page, content=(ROOT / document).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links as they are in the project, led to pages of the site; diagrams as pictures."""
    origin = next((name for name, path in BESIDE.items() if path == page.file.src_uri), f"docs/{page.file.src_uri}")
    return relinked(drawn(markdown), PurePosixPath(origin), page.file.src_uri, frozenset(files.src_uris), BESIDE)


def _placed(nav: Any) -> list[str]:  # noqa: ANN401  # as YAML has it: texts, lists, tables
    """Every page that a menu names."""
    if isinstance(nav, str):
        return [nav]
    entries = nav.values() if isinstance(nav, dict) else nav or ()
    return [page for entry in entries for page in _placed(entry)]
