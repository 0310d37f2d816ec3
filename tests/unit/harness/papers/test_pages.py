"""Pages keep every published figure to its printed digit, and the command fills them from their data files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import moiety
from harness.papers.pages import _PLOT, _TABLE, PLOTS, markdown, pages_in, render, write_data
from harness.papers.tables import FROM_RUNS
from harness.simulate.store import Results
from protocol.errors import ConfigurationError
from tests.unit.harness.papers.made import line

RESULTS = Path(__file__).parents[4] / "docs" / "results"
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
    assert set(FROM_RUNS) < set(PAGES)
    tables = [name for text in pages for name in _TABLE.findall(text)]
    assert sorted(tables) == sorted(path.stem for path in DATA.glob("*.csv"))
    drawn = {name for text in pages for name in _PLOT.findall(text)} - {"har_ifedavg_input_b", "har_ifedavg_input_w"}
    assert drawn == set(PLOTS)
    assert {f"{name}.csv" for name in PLOTS} == {path.name for path in (DATA / "plots").glob("*.csv")}
    assert all((RESULTS / f"{name}.svg").is_file() for name in PLOTS)


@pytest.mark.parametrize(
    "name",
    [
        *("survival_c_index", "titanic_age_some_model", "heart_disease_similarity", "robustness_poisoning_matrix"),
        *("privacy_records", "privacy_isolation", "does_it_pay_ratios"),
    ],
)
def test_a_plot_is_the_same_bytes_for_the_same_numbers(name: str, tmp_path: Path) -> None:
    """Each kind of plot, of its first panel."""
    path, whole = tmp_path / "rows.csv", DATA / "plots" / f"{name}.csv"
    head, first, *rows = whole.read_text(encoding="utf-8").splitlines(keepends=True)
    panel = first.split(",")[0] if head.startswith("panel,") else ""
    path.write_text("".join([head, first, *(row for row in rows if row.startswith(panel))]), encoding="utf-8")
    drawn = PLOTS[name].svg(path)
    assert drawn.startswith("<svg")
    assert drawn == PLOTS[name].svg(path)


def test_a_page_is_filled_between_its_markers_and_its_text_stays(tmp_path: Path) -> None:
    page, data = tmp_path / "page.md", tmp_path / "data"
    begin, end = "By hand.\n\n<!-- table: made -->\n", "<!-- end -->\n\nBy hand too.\n"
    page.write_text(f"{begin}| old |\n{end}")
    with pytest.raises(ConfigurationError, match=r"made\.csv: there is no such table; restore the file"):
        render(page, data)
    assert write_data(data, "made", [("rule", "mean"), ("Local", ".700 ± .010"), ("FedAvg, 2", "")])
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
    assert write_data(tmp_path, "made", [("a",), ("1",)])
    page = tmp_path / "page.md"
    page.write_text("<!-- table: made -->\nBy hand.\n<!-- table: made -->\n<!-- end -->\n")
    render(page, tmp_path)
    assert page.read_text().startswith("<!-- table: made -->\nBy hand.\n")


def test_a_file_is_another_one_only_where_its_figures_are(tmp_path: Path) -> None:
    rows = [("", "FedAvg", 1, 0.25, None), ("", "FedAvg", 2, float("nan"), 1 / 3)]
    assert write_data(tmp_path, "plots/survival_c_index", rows)
    path = tmp_path / "plots" / "survival_c_index.csv"
    assert path.read_text() == "panel,series,x,y,error\n,FedAvg,1,0.25,\n,FedAvg,2,,0.333333\n"
    assert not write_data(tmp_path, "plots/survival_c_index", rows)
    assert write_data(tmp_path, "plots/survival_c_index", rows[:1])


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


def test_figures_from_runs_are_written_and_other_ones_than_before_are_named(tmp_path: Path) -> None:
    out, runs = copied(tmp_path, "survival", "leak"), tmp_path / "runs"
    results = Results(runs / "survival")
    with results.held():
        results.append(line("local", "a", test_c_index=(0.5, 0.625)))
    words = ("--out", str(out), "--runs", str(runs))
    told = run(*words).stderr.replace("\n", " ")
    assert "leak: nothing of it comes from the runs in" in told
    assert "survival: other figures than before in survival_c_index," in told
    assert "| Local | **.625** | **.625** |" in (out / "survival.md").read_text()
    assert "other figures" not in run("--only", "survival", *words).stderr
