"""Pages made from a package's templates within the common frame, with texts in the reader's language."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Final

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, select_autoescape

from host.web_page.texts import LANGUAGES, SOURCE, texts_in
from protocol.printable import printable, printable_lines

_HERE: Final = "host.web_page"
STATIC: Final[Mapping[str, str]] = {"page.css": "text/css", "page.js": "text/javascript"}
"""The files that go with every page, and their types."""


class Pages:
    """The templates of ``package`` (its folder ``templates``) and of this one; all values are escaped."""

    def __init__(self, package: str, **everywhere: object) -> None:
        """``everywhere`` are values that every template may use."""
        self._everywhere = everywhere
        self._environments = {code: environment_of(package, code) for code in LANGUAGES}

    def render(self, template: str, language: str = SOURCE, **values: object) -> str:
        """The page as HTML."""
        found = self._environments[language].get_template(template)
        return found.render(language=language, **self._everywhere, **values)


def environment_of(package: str, language: str) -> Environment:
    """Templates of ``package`` and of this one, with the texts of both in that language."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader(_HERE)]),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        extensions=["jinja2.ext.i18n"],
        trim_blocks=True,
        lstrip_blocks=True,
    )
    known = texts_in(language, (_HERE, package))

    def text(english: str) -> str:
        return known.get(english, english)

    def plural(one: str, many: str, count: int) -> str:
        return text(one if count == 1 else many)

    def filled(english: str, values: Mapping[str, str]) -> str:
        return text(english) % values

    environment.install_gettext_callables(text, plural, newstyle=True)  # type: ignore[attr-defined]  # the extension's
    filters: dict[str, Callable[..., str]] = {"printable": printable, "moment": moment, "word": text}
    filters |= {"filled": filled, "printable_lines": printable_lines}
    environment.filters.update(filters)
    return environment


def static_file(name: str) -> tuple[bytes, str] | None:
    """A file's bytes and type; None where there is none of that name."""
    if name not in STATIC:
        return None
    return (files(_HERE) / "static" / name).read_bytes(), STATIC[name]


def moment(time_s: float) -> str:
    """A time since 1970 for people."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(time_s))
