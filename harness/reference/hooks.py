"""Hooks that mkdocs calls while it builds the site: pages made from code, the files beside ``docs``, links out of them.

A state diagram becomes a table of its transitions, since the site loads no script that could draw it.

Source: mkdocs' documentation, "Hooks" (1.6): https://www.mkdocs.org/user-guide/configuration/#hooks
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Set
from pathlib import Path, PurePosixPath
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from harness.reference.pages import GENERATED, table

_FENCE: Final = re.compile(r"^```mermaid\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_EDGE: Final = re.compile(r"\s*(\[\*\]|\w+) --> (\[\*\]|\w+)(?:: (.+))?")


def tabled(markdown: str) -> str:
    """A page with its diagrams as tables. Raises: ValueError, for a line that is not understood"""
    return _FENCE.sub(lambda found: _transitions(found[1]), markdown)


def _transitions(diagram: str) -> str:
    first, *lines = diagram.strip().splitlines()
    if first.strip() != "stateDiagram-v2":
        raise ValueError(f"diagram {first!r}: only stateDiagram-v2 is understood")
    rows = []
    for line in lines:
        match = _EDGE.fullmatch(line)
        if match is None:
            raise ValueError(f"diagram line {line!r} is not understood")
        source, target, event = match[1], match[2], match[3] or ""
        rows.append(("start" if source == "[*]" else source, event, "end" if target == "[*]" else target))
    return table(("state", "what happens", "next"), rows)


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
    """Links as they are in the project, led to pages of the site; diagrams as tables."""
    origin = next((name for name, path in BESIDE.items() if path == page.file.src_uri), f"docs/{page.file.src_uri}")
    return relinked(tabled(markdown), PurePosixPath(origin), page.file.src_uri, frozenset(files.src_uris), BESIDE)


def _placed(nav: Any) -> list[str]:  # noqa: ANN401  # as YAML has it: texts, lists, tables
    """Every page that a menu names."""
    if isinstance(nav, str):
        return [nav]
    entries = nav.values() if isinstance(nav, dict) else nav or ()
    return [page for entry in entries for page in _placed(entry)]
