"""Pages keep every published figure to its printed digit, and the command fills them from their data files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import moiety
from harness.papers.pages import _PLOT, _TABLE, PLOTS, markdown, pages_in, render
from protocol.errors import ConfigurationError

RESULTS = Path(__file__).parents[3] / "docs" / "results"
DATA = RESULTS / "data"
PAGES = pages_in(RESULTS)


@pytest.mark.parametrize("page", PAGES)
def test_every_table_of_a_page_is_its_file_to_the_printed_digit(page: str) -> None:
    text = (RESULTS / f"{page}.md").read_text(encoding="utf-8")
    names = _TABLE.findall(text)
    assert names
    for name in names:
        assert f"<!-- table: {name} -->\n\n{markdown(DATA / f'{name}.csv')}\n\n<!-- end -->" in text


def test_every_file_is_on_a_page_and_every_plot_has_its_series() -> None:
    pages = [(RESULTS / f"{page}.md").read_text(encoding="utf-8") for page in PAGES]
    tables = [name for text in pages for name in _TABLE.findall(text)]
    assert sorted(tables) == sorted(path.stem for path in DATA.glob("*.csv"))
    drawn = {name for text in pages for name in _PLOT.findall(text)} - {"har_ifedavg_input_b", "har_ifedavg_input_w"}
    assert drawn == set(PLOTS)
    assert {f"{name}.csv" for name in PLOTS} == {path.name for path in (DATA / "plots").glob("*.csv")}
    assert all((RESULTS / f"{name}.svg").is_file() for name in PLOTS)


@pytest.mark.parametrize(
    "name",
    [
        *("titanic_age_some_model", "heart_disease_similarity", "robustness_poisoning_matrix"),
        *("privacy_records", "privacy_isolation", "does_it_pay_ratios"),
    ],
)
def test_every_kind_of_plot_is_drawn(name: str) -> None:
    assert PLOTS[name].svg(DATA / "plots" / f"{name}.csv").startswith("<svg")


def test_a_plot_is_the_same_bytes_for_the_same_numbers() -> None:
    first, again = (PLOTS["survival_c_index"].svg(DATA / "plots" / "survival_c_index.csv") for _ in range(2))
    assert first.startswith("<svg")
    assert first == again


def test_a_page_is_filled_between_its_markers_and_its_text_stays(tmp_path: Path) -> None:
    page, data = tmp_path / "page.md", tmp_path / "data"
    begin, end = "By hand.\n\n<!-- table: made -->\n", "<!-- end -->\n\nBy hand too.\n"
    page.write_text(f"{begin}| old |\n{end}")
    with pytest.raises(ConfigurationError, match=r"made\.csv: there is no such table; restore the file"):
        render(page, data)
    data.mkdir()
    (data / "made.csv").write_text('rule,mean\nLocal,.700 ± .010\n"FedAvg, 2",\n')
    render(page, data)
    shown = "\n| rule | mean |\n|---|---:|\n| Local | .700 ± .010 |\n| FedAvg, 2 |  |\n\n"
    assert page.read_text() == begin + shown + end
    render(page, data)
    assert page.read_text() == begin + shown + end


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "no table"),
        ("a,b\n1,2,3\n", "no table"),
        ('a\n"open\n', "no table"),
        ("a\nx|y\n", "would break"),
        ('a\n"x\ny"\n', "would break"),
        ("a\n<!-- end -->\n", "would break"),
    ],
)
def test_a_file_that_would_break_the_page_is_refused(tmp_path: Path, content: str, why: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(before := "<!-- table: made -->\n<!-- end -->\n")
    (tmp_path / "made.csv").write_text(content)
    with pytest.raises(ConfigurationError, match=why):
        render(page, tmp_path)
    assert page.read_text() == before


def test_a_table_without_its_end_takes_nothing_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "made.csv").write_text("a\n1\n")
    page = tmp_path / "page.md"
    page.write_text("<!-- table: made -->\nBy hand.\n<!-- table: made -->\n<!-- end -->\n")
    render(page, tmp_path)
    assert page.read_text().startswith("<!-- table: made -->\nBy hand.\n")


def copied(tmp_path: Path, *pages: str) -> Path:
    out = tmp_path / "pages"
    shutil.copytree(DATA, out / "data")
    for page in pages:
        shutil.copy(RESULTS / f"{page}.md", out)
    return out


def run(*words: str) -> Result:
    return CliRunner().invoke(moiety.build("lab results"), ["lab", "results", *words])


def test_the_command_writes_the_published_pages(tmp_path: Path) -> None:
    out = copied(tmp_path, "leak", "differential_privacy")
    assert run("--out", str(out)).exception is None
    for page in ("leak.md", "differential_privacy.md"):
        assert (out / page).read_text() == (RESULTS / page).read_text()
    assert (out / "differential_privacy_heart.svg").read_text().startswith("<svg")
    unknown = run("--only", "leaks", "--out", str(out)).exception
    assert isinstance(unknown, ConfigurationError)
    assert str(unknown) == "--only: found leaks; the pages are differential_privacy, leak"
    assert "no page with tables" in str(run("--out", str(tmp_path / "none")).exception)


def test_a_page_without_its_data_stays_as_it_was_and_the_others_are_written(tmp_path: Path) -> None:
    out = copied(tmp_path, "titanic", "leak")
    (out / "data" / "titanic_all_requesters.csv").unlink()
    (out / "leak.md").write_text("<!-- table: leak_clause -->\n<!-- end -->\n")
    error = run("--out", str(out)).exception
    assert isinstance(error, ConfigurationError)
    assert str(error).startswith("not written: titanic, for the reasons above")
    assert (out / "titanic.md").read_text() == (RESULTS / "titanic.md").read_text()
    assert "| question | bits |" in (out / "leak.md").read_text()
