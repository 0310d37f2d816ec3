"""The bill of materials is of this installation, and what asks for more than a notice is in the documents."""

from __future__ import annotations

import json
import re
from importlib.metadata import version
from pathlib import Path

import pytest

from host.licences import UNKNOWN, bill_of_materials, licences, packages

ROOT = Path(__file__).parents[3]
NOTES = (ROOT / "docs" / "governance" / "third_party.md").read_text(encoding="utf-8")


def test_every_package_is_named_with_its_version_and_licence() -> None:
    found = {one.name: one for one in packages()}
    assert (found["numpy"].version, found["httpx"].version) == (version("numpy"), version("httpx"))
    assert {"moiety", "torch", "fastapi", "scikit-survival", "anyio"} <= found.keys()
    assert found["scikit-survival"].licence == "GPL-3.0-or-later"
    assert found["moiety"].licence == "Apache-2.0"
    unknown = [one.name for one in found.values() if one.licence == UNKNOWN]
    assert len(unknown) <= len(found) // 20, unknown


def test_copyleft_is_in_the_notes() -> None:
    copyleft = [one.name for one in packages() if re.search(r"GPL|General Public", one.licence)]
    assert copyleft
    assert [name for name in copyleft if name.removesuffix("-binary") not in NOTES] == []


def test_the_bill_is_cyclonedx(capsys: pytest.CaptureFixture[str]) -> None:
    licences(json_output=True)
    bill = json.loads(capsys.readouterr().out)
    assert bill == bill_of_materials()
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert f"pkg:pypi/numpy@{version('numpy')}" in {one["purl"] for one in bill["components"]}
    licences()
    assert f"numpy {version('numpy')}: " in capsys.readouterr().out
