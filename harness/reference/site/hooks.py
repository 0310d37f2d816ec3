"""What mkdocs asks while it builds the site: pages made from code, the files beside ``docs``, links out of them.

Source: mkdocs' documentation, "Hooks" (1.6): https://www.mkdocs.org/user-guide/configuration/#hooks
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from harness.reference.pages import GENERATED
from harness.reference.site.diagrams import drawn
from harness.reference.site.links import relinked

ROOT: Final = Path(__file__).parents[3]
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
