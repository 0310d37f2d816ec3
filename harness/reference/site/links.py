"""Links between documents, as they stand in the project, made into links between the site's pages."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Set
from pathlib import PurePosixPath
from typing import Final

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
