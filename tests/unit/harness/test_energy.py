"""Energy of a run: measured offline where codecarbon is installed, and a clear error where it is not."""

import sys

import pytest

from harness.simulate.energy import Energy, measured
from protocol.errors import ConfigurationError


def test_a_run_leaves_its_energy_even_when_it_fails(tmp_path):
    pytest.importorskip("codecarbon")
    with pytest.raises(RuntimeError, match="broken"), measured("CHE", tmp_path):
        raise RuntimeError("broken")
    found = Energy.model_validate_json((tmp_path / "energy.json").read_text())
    assert found.country == "CHE"
    assert found.seconds > 0
    assert found.energy_kwh >= 0


@pytest.mark.parametrize("country", ["Switzerland", "che", "CH", "C1E"])
def test_a_country_is_a_three_letter_code(tmp_path, country: str):
    with pytest.raises(ConfigurationError, match="three-letter"), measured(country, tmp_path):
        raise AssertionError("not reached")


def test_without_codecarbon_the_extra_is_named(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "codecarbon", None)
    with pytest.raises(ConfigurationError, match=r"moiety\[energy\]"), measured("CHE", tmp_path):
        raise AssertionError("not reached")
