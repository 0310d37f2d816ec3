"""The frame of the site's page, its texts, headers and checks of forms.

Keep other web pages and other names of this machine out of a page that a browser shows.

A page listens where every user of the machine and every web page in a browser may reach it. So beside a session's
cookie (SameSite=Strict) a request that changes something must come from the page's own origin and carry the session's
token in its form; and every answer forbids frames, scripts and forms of anybody else.

The pages' texts in other languages than English, which is the source: one TOML table for each, English = other.

A text that is in no table is shown in English; tests see to it that the tables are complete.
"""

from __future__ import annotations

import hashlib
import hmac
import tomllib
from collections.abc import Callable, Mapping
from http import HTTPStatus
from importlib.resources import files
from typing import Final
from urllib.parse import parse_qs

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, select_autoescape

from host.clock import moment
from protocol.text import printable, printable_lines

MOST_FORM_BYTES: Final = 2**14
FORM_FIELD: Final = "form"
FOREIGN: Final = "That did not come from this page."
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "Referrer-Policy": "same-origin",  # with no-referrer a browser names no origin for a form
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
Refused = tuple[HTTPStatus, str]


def same(found: str, expected: str) -> bool:
    """Compared in a time that says nothing of where they differ."""
    return hmac.compare_digest(found.encode(), expected.encode())


def form_token(session: str) -> str:
    """Return the token that a session's forms carry; another site's page cannot read it."""
    return hmac.new(session.encode(), b"moiety form", hashlib.sha256).hexdigest()


def refused_change(origin: str | None, own_origin: str, content_length: str | None) -> Refused | None:
    """Why a request that changes something is not taken, before its body is read; None where it may be."""
    if origin != own_origin:
        return HTTPStatus.FORBIDDEN, FOREIGN
    length = content_length or ""
    if not length.isdecimal() or int(length) > MOST_FORM_BYTES:
        return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "That is more than a form of this page has."
    return None


def form_fields(body: bytes) -> dict[str, str]:
    """The first value of every field of a form that was sent."""
    text = body[:MOST_FORM_BYTES].decode(errors="replace")
    return {key: values[0] for key, values in parse_qs(text).items()}


SOURCE: Final = "en"
LANGUAGES: Final[Mapping[str, str]] = {"en": "English", "de": "Deutsch"}
"""Errors by their codes, each in its own name."""
_FOLDER: Final = "texts"


def texts_in(language: str, packages: tuple[str, ...]) -> dict[str, str]:
    """The tables of that language in those packages, together; empty for English."""
    found: dict[str, str] = {}
    for package in packages:
        path = files(package) / _FOLDER / f"{language}.toml"
        if path.is_file():
            found |= tomllib.loads(path.read_text(encoding="utf-8"))
    return found


def chosen_language(chosen: str | None, accepted: str | None) -> str:
    """Return the reader's choice, else the first known language of its Accept-Language header, else English.

    Languages with the same preference count in their order.
    """
    if chosen in LANGUAGES:
        return str(chosen)
    wanted = [_preferred(part) for part in (accepted or "")[:500].split(",")]
    for _, code in sorted((one for one in wanted if one[0] > 0), key=lambda one: -one[0]):
        if code in LANGUAGES:
            return code
    return SOURCE


def _preferred(part: str) -> tuple[float, str]:
    tag, _, parameter = part.strip().partition(";")
    name, _, value = parameter.strip().partition("=")
    try:
        weight = float(value) if name == "q" else 1.0
    except ValueError:
        weight = 0.0
    return weight, tag.strip().split("-")[0].lower()


_HERE: Final = "host"
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
