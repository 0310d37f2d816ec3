"""Own tables and an own rule in one command: ``data prepare`` makes folders, a case of ``folder:PATH`` reads them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import moiety
from harness.datasets.registry import DataRequest, load_data
from harness.simulate.case import Case, parse_case
from harness.simulate.case_run import request_for
from harness.simulate.options import StudyOptions
from harness.simulate.study_run import run_simulation
from host.extensions import load_plugins
from moiety import load_results
from protocol.errors import ConfigurationError

SITES = ("east", "north", "south", "west")
PAGE = (Path(__file__).parents[4] / "docs" / "simulating.md").read_text(encoding="utf-8")


def block(section: str, language: str) -> str:
    """The last block of a section of docs/simulating.md in this language."""
    (text,) = re.findall(rf"^## {section}\n(.*?)(?=^## )", PAGE, flags=re.MULTILINE | re.DOTALL)
    found: list[str] = re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    return found[-1]


def command(*arguments: str | Path) -> None:
    with pytest.raises(SystemExit) as ended:
        moiety.main([str(one) for one in arguments])
    assert not ended.value.code


def write_case(folder: Path) -> Path:
    """The page's case, and its rule beside it."""
    (folder / "near.py").write_text(block("A rule of your own", "python") + '\nRULES = {"near": NEAR}\n')
    (folder / "recurrence.toml").write_text(block("Own tables and a rule of your own", "toml"))
    return folder / "recurrence.toml"


def prepare(folder: Path, site: str, seed: int) -> None:
    draw = np.random.default_rng(seed)
    rows = zip(draw.normal(60, 9, 30), draw.exponential(900, 30) + 1, draw.integers(0, 2, 30), strict=True)
    table = folder / f"{site}.csv"
    table.write_text("age,days,recurred\n" + "".join(f"{age:.1f},{days:.0f},{seen}\n" for age, days, seen in rows))
    command("data", "prepare", table, "--study", folder / "recurrence.toml", "--out", folder / "clinics" / site)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    write_case(folder)
    load_plugins([folder / "near.py"])
    for number, site in enumerate(SITES):
        prepare(folder, site, number)
    (folder / "clinics" / ".checkpoints").mkdir()
    return folder


def read(folder: Path) -> Case:
    text = (folder / "recurrence.toml").read_text().replace("folder:clinics", f"folder:{folder / 'clinics'}")
    return parse_case(text, "recurrence.toml")


def test_own_survival_data_meet_an_own_rule(
    prepared: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(prepared)
    capsys.readouterr()
    command("simulate", "recurrence.toml", "--plugin", "near.py", "--requesters", "south", "--json")
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["variant"], row["requester"]) for row in rows] == [("fedavg", "south"), ("near", "south")]
    lines = load_results("simulated/recurrence").lines
    assert [(line.judged_by, line.rule) for line in lines] == [("c_index", "fedavg"), ("c_index", "near:near")]
    assert set(lines[1].alpha) == set(SITES) - {"south"}


def test_every_site_can_ask_and_validation_is_split_off(prepared: Path) -> None:
    case = read(prepared)
    first = load_data(request_for(case, None, None, 0))
    assert first.names_of_sites == SITES
    other = load_data(request_for(case, None, "west", 0, 0.25))
    assert other.names_of_sites == ("west", "east", "north", "south")
    assert len(other.requester.validation) == round(0.25 * len(first.sites[3].train))


def test_other_files_are_another_variant(prepared: Path) -> None:
    before = read(prepared).variants[0].digest
    assert read(prepared).variants[0].digest == before
    prepare(prepared, "north", 9)
    assert read(prepared).variants[0].digest != before
    prepare(prepared, "north", SITES.index("north"))
    assert read(prepared).variants[0].digest == before


def test_what_is_no_folder_of_sites_is_refused(tmp_path: Path, prepared: Path) -> None:
    write_case(tmp_path)
    with pytest.raises(ConfigurationError, match=r"clinics is no folder with one folder per site: name that"):
        read(tmp_path)
    (tmp_path / "clinics").mkdir()
    with pytest.raises(ConfigurationError, match=r"clinics is no folder with one folder per site: name that"):
        read(tmp_path)
    with pytest.raises(ConfigurationError, match="only a case reads folders"):
        load_data(DataRequest(f"folder:{prepared / 'clinics'}", 0))
    with pytest.raises(ConfigurationError, match="no folder:PATH of one folder per site"):
        load_data(DataRequest("clinics", 0))


def test_folders_of_another_schema_are_refused(prepared: Path, tmp_path: Path) -> None:
    """Folders of a case and of a plain study, named by the site."""
    text = (prepared / "recurrence.toml").read_text().replace("folder:clinics", f"folder:{prepared / 'clinics'}")
    other = text.replace('type = "number"', 'type = "number"\nrange = [0, 110]', 1)
    with pytest.raises(ConfigurationError, match=r"(?s)its schema is not the one that .*clinics/east .*110"):
        load_data(request_for(parse_case(other, "recurrence.toml"), None, None, 0))
    study = (
        other.split("[case]")[0] + '[rule]\nname = "fedavg"\n[model]\nkind = "linear"\n[parameters]\nclip_norm = 4.0\n'
    )
    (tmp_path / "study.toml").write_text(study)
    options = StudyOptions(tmp_path / "study.toml", str(prepared / "clinics"), "south", "0")
    with pytest.raises(ConfigurationError, match=r"its schema is not the one that .*clinics/east"):
        run_simulation(options)
    with pytest.raises(ConfigurationError, match=r"has a \[schema\], which breast_cancer does not follow: give --data"):
        run_simulation(replace(options, data="breast_cancer"))
    with pytest.raises(ConfigurationError, match=r"give one of the sites in .*clinics: east, north, south, west$"):
        run_simulation(replace(options, requester=None))


def test_data_beside_folders_are_refused(prepared: Path) -> None:
    with pytest.raises(ConfigurationError, match="leave --data out"):
        load_data(request_for(read(prepared), prepared, None, 0))
