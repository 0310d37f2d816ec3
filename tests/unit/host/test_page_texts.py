"""Pages can be translated: no template has a text of its own, German is complete, and the reader's choice counts."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from client_agent.page.app import LOGIN, NOWHERE
from client_agent.site.events import RoundEnd
from client_agent.study.asked.plain_words import About, Said
from host.web_page import FOREIGN, LANGUAGES, chosen_language, environment_of, texts_in
from protocol.messages.control import Purpose

ROOT = Path(__file__).parents[3]
PACKAGES = ("host", "client_agent.page")
TEMPLATES = sorted(
    path for package in PACKAGES for path in (ROOT / package.replace(".", "/") / "templates").glob("*.html")
)
IN_CODE = {FOREIGN, LOGIN, NOWHERE, "That is more than a form of this page has."}
WORDS = {one.value for one in (*RoundEnd, *Purpose, *About, *Said)}
SPOKEN = re.compile(r'(?:aria-label|alt|title|placeholder|value)="([^"]*)"')


def texts_of(package: str) -> set[str]:
    """Every text of a package's templates as it is looked up."""
    environment = environment_of(package, "en")
    found: set[str] = set()
    for path in (ROOT / package.replace(".", "/") / "templates").glob("*.html"):
        source = path.read_text(encoding="utf-8")
        for _, _, message in environment.extract_translations(source):  # type: ignore[attr-defined]  # the extension's
            found.add(message if isinstance(message, str) else next(part for part in message if part is not None))
    return found


def bare(source: str) -> list[str]:
    """Words of a template that a reader sees or hears and that are in no {% trans %}."""
    text = re.sub(r"\{% trans\b.*?\{% endtrans %\}", "", source, flags=re.DOTALL)
    text = re.sub(r"\{%.*?%\}|\{\{.*?\}\}", "", text, flags=re.DOTALL)
    heard = " ".join(SPOKEN.findall(text))
    seen = re.sub(r"<[^>]*>", " ", text)
    return re.findall(r"[A-Za-z]{2,}", f"{seen} {heard}")


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: f"{path.parents[1].name}-{path.name}")
def test_no_template_has_a_text_outside_the_catalogue(path: Path) -> None:
    assert bare(path.read_text(encoding="utf-8")) == []


def test_a_bare_text_is_found() -> None:
    assert bare("<p>Hello {{ name }}</p>") == ["Hello"]
    assert bare('<p aria-label="Rounds">{% trans %}x y{% endtrans %}</p>') == ["Rounds"]


def test_german_has_every_text_of_a_sites_page_and_no_other() -> None:
    wanted = texts_of("host") | texts_of("client_agent.page") | IN_CODE | WORDS
    found = texts_in("de", ("host", "client_agent.page"))
    assert wanted - set(found) == set()
    assert set(found) - wanted == set()
    assert all(text.strip() for text in found.values())


def test_what_is_filled_in_is_the_same_in_every_language() -> None:
    for english, german in texts_in("de", ("host", "client_agent.page")).items():
        names = re.compile(r"%\((\w+)\)s")
        assert set(names.findall(english)) == set(names.findall(german)), english
        assert "%" not in names.sub("", english + german), english


def test_the_tables_are_read_as_they_are_written() -> None:
    for path in ROOT.glob("*/*/texts/*.toml"):
        assert path.stem in LANGUAGES
        assert all(isinstance(text, str) for text in tomllib.loads(path.read_text(encoding="utf-8")).values())


@pytest.mark.parametrize(
    ("chosen", "accepted", "language"),
    [
        (None, None, "en"),
        (None, "de-CH,de;q=0.9,en;q=0.5", "de"),
        (None, "fr,en;q=0.7,de;q=0.8", "de"),
        (None, "en-GB,de;q=0.9", "en"),
        (None, "de;q=0,fr", "en"),
        (None, "de;q=nonsense, *", "en"),
        ("de", "en", "de"),
        ("en", "de", "en"),
        ("xx", "de", "de"),
    ],
)
def test_the_readers_language(chosen: str | None, accepted: str | None, language: str) -> None:
    assert chosen_language(chosen, accepted) == language
