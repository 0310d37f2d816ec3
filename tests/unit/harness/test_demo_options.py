"""What the demo is told, before it starts anything."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

import moiety
from harness.demo.run import DemoOptions, data_sets
from harness.engine.parties import SiteEntry, make_parties
from harness.engine.protected_sum import correlations_from
from harness.versions import versions
from protocol.errors import ConfigurationError
from protocol.wire.authentic import require_roster


def test_two_studies_ten_rounds_first(tmp_path: Path) -> None:
    first, second = data_sets(DemoOptions(out=tmp_path))
    assert (first.key, second.key) == ("breast_cancer", "digits")
    assert first.settings.rounds == 10
    assert second.settings.rounds == 15


def test_rounds_change_the_first_study_only(tmp_path: Path) -> None:
    usual = data_sets(DemoOptions(out=tmp_path))
    chosen = data_sets(DemoOptions(out=tmp_path, rounds=7))
    assert [one.settings.rounds for one in chosen] == [7, usual[1].settings.rounds]
    quick = data_sets(DemoOptions(out=tmp_path, quick=True))
    assert {one.settings.rounds for one in quick} == {3}


def test_heart_disease_is_one_study_of_four_hospitals(tmp_path: Path) -> None:
    folder = tmp_path / "heart_disease"
    (only,) = data_sets(DemoOptions(out=tmp_path, data=folder))
    with pytest.raises(ConfigurationError, match=r"processed.cleveland.data is missing: put"):
        only.load(0)
    with pytest.raises(ConfigurationError, match="not a Heart Disease folder"):
        data_sets(DemoOptions(out=tmp_path, data=tmp_path / "elsewhere"))


def test_command_line_refuses_unknown_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        moiety.main(["demo", "--data", str(tmp_path / "x"), "--out", str(tmp_path / "out")])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("error (configuration): --data")


def test_versions_name_what_matters() -> None:
    named = {one.name: one.version for one in versions()}
    assert {"python", "protocol", "torch", "numba", "cryptography"} <= set(named)
    assert "not installed" not in named.values()


def test_parties_have_a_valid_roster_and_their_own_keys() -> None:
    parties = make_parties("unit", "b", [SiteEntry("a", 3), SiteEntry("b", 4)], bytes(32))
    roster = require_roster(parties.roster)
    assert [(site.name, site.samples) for site in roster.sites] == [("a", 3), ("b", 4)]
    assert parties.keys_of("a").party(samples=3) == roster.party("a")
    assert "seed" not in repr(parties)
    assert "keys" not in repr(parties)
    with pytest.raises(ConfigurationError, match="no party 'c'; the federation has operator-a, operator-b, a, b"):
        parties.keys_of("c")


@pytest.mark.parametrize("source", ["ot", "dealer"])
def test_correlations_hold_and_are_never_the_same_twice(source: Literal["ot", "dealer"]) -> None:
    draw = correlations_from(source, bytes(32))
    batches = [draw([(3, 1), (2,)], f"round {number}") for number in (1, 2)]
    for halves_a, halves_b in batches:
        for a, b in zip(halves_a, halves_b, strict=True):
            start = 0
            for place, length in enumerate(a.lengths):
                segment = slice(start, start + length)
                exact = sum(int(x) * int(y) for x, y in zip(a.vector[segment], b.vector[segment], strict=True))
                assert (int(a.products[place]) + int(b.products[place]) - exact) % 2**64 == 0
                start += length
    assert batches[0][0][0].vector.tobytes() != batches[1][0][0].vector.tobytes()
