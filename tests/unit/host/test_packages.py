"""Rules of other packages, fresh sources, and licences."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path

import pytest

from host.extensions import FreshSource, Kind, extension, load_plugins
from host.licences import UNKNOWN, Package, bill_of_materials, licences, packages
from protocol.errors import ConfigurationError
from protocol.rules.registry import PackagedRule
from tests.kit.present import present
from tests.rule_package import install

# --- extensions -------------------------------------------------------------------------------------------------------


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


# --- fresh source -----------------------------------------------------------------------------------------------------


def value_of(path: Path) -> int:
    loader = FreshSource("fresh", str(path))
    specification = present(importlib.util.spec_from_file_location("fresh", path, loader=loader))
    module = importlib.util.module_from_spec(specification)
    loader.exec_module(module)
    found: int = module.VALUE
    return found


def test_a_change_within_a_second_to_the_same_length_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = tmp_path / "fresh.py"
    for value in (1, 2):
        path.write_text(f"VALUE = {value}\n")
        os.utime(path, (1_800_000_000, 1_800_000_000))
        assert value_of(path) == value
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_no_python_says_where(tmp_path: Path) -> None:
    path = tmp_path / "fresh.py"
    path.write_text("VALUE = ")
    with pytest.raises(SyntaxError, match=r"fresh\.py, line 1"):
        value_of(path)


# --- licences ---------------------------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[3]
NOTES = (ROOT / "docs" / "governance" / "third_party.md").read_text(encoding="utf-8")


@cache
def installed() -> tuple[Package, ...]:
    """All of them are looked through once."""
    return packages()


def test_every_package_is_named_with_its_version_and_licence() -> None:
    found = {one.name: one for one in installed()}
    assert (found["numpy"].version, found["httpx"].version) == (version("numpy"), version("httpx"))
    assert {"moiety", "torch", "fastapi", "scikit-survival", "anyio"} <= found.keys()
    assert found["scikit-survival"].licence == "GPL-3.0-or-later"
    assert found["moiety"].licence == "Apache-2.0"
    unknown = [one.name for one in found.values() if one.licence == UNKNOWN]
    assert len(unknown) <= len(found) // 20, unknown


def test_copyleft_is_in_the_notes() -> None:
    copyleft = [one.name for one in installed() if re.search(r"GPL|General Public", one.licence)]
    assert copyleft
    assert [name for name in copyleft if name.removesuffix("-binary") not in NOTES] == []


def test_the_bill_is_cyclonedx(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("host.licences.packages", installed)
    licences(json_output=True)
    bill = json.loads(capsys.readouterr().out)
    assert bill == bill_of_materials()
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert f"pkg:pypi/numpy@{version('numpy')}" in {one["purl"] for one in bill["components"]}
    licences()
    assert f"numpy {version('numpy')}: " in capsys.readouterr().out
