"""A package's rule is found by its name, and what there is not is said with what to install."""

from __future__ import annotations

from pathlib import Path

import pytest

from host.extensions import Kind, extension, load_plugins
from protocol.errors import ConfigurationError
from protocol.rules.registry import PackagedRule
from tests.rule_package import install


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("name", ["acme-rules:eroding", "acme_rules:eroding", "Acme.Rules:eroding"])
def test_an_entry_point_is_found_however_the_package_is_spelled(name: str) -> None:
    found = extension(Kind.RULE, name)
    assert found.version == "1.2"
    assert isinstance(found.load(), PackagedRule)


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "other-rules:median",
            "'other-rules:median' is .* name that with --plugin other-rules.py; .* install the package that offers it$",
        ),
        ("acme-rules:median", "acme-rules 1.2 offers no such rule; it offers eroding, gone, greedy, loose, .*nothing$"),
        ("acme-rules:acme", "offers no such rule"),
        ("pytest:median", "none at all: pytest has no entry point of group 'moiety.rules'"),
        ("fedavg", "is called PACKAGE:RULE"),
        (":fedavg", "is called PACKAGE:RULE"),
        ("acme-rules:", "is called PACKAGE:RULE"),
        ("../acme:eroding", "is called PACKAGE:RULE"),
        ("acme:eroding:loose", "is called PACKAGE:RULE"),
    ],
)
def test_what_there_is_not_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        extension(Kind.RULE, name)


@pytest.mark.usefixtures("package")
def test_a_package_that_cannot_be_imported_is_named() -> None:
    found = extension(Kind.RULE, "acme-rules:gone")
    with pytest.raises(ConfigurationError, match=r"'acme-rules:gone' of acme-rules 1.2 .* ModuleNotFoundError"):
        found.load()


def test_a_plugin_that_is_not_there_and_one_that_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nope\.py does not exist"):
        load_plugins([tmp_path / "nope.py"])
    with pytest.raises(ConfigurationError, match="is no Python file"):
        load_plugins([tmp_path])
