"""The results pages say what the lines say: means, errors, gains, missing runs, verdicts."""

import math
import re
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import pytest
from typer.testing import CliRunner

import moiety
from client_agent.scoring.score import FinalScores, MetricName, Score
from harness.papers import build, clinicians, heart_disease, making, mnist, other_tasks
from harness.papers.build import PAGES, CasesPage, CaseUse
from harness.papers.does_it_pay import STUDIES
from harness.papers.making import Making
from harness.papers.page import Page
from harness.papers.tables.against import against_table, signed, tally
from harness.papers.tables.by_requester import gains, over_requesters, spread_of
from harness.simulate.charts import (
    Panel,
    Spread,
    bars_chart,
    curve,
    curves_chart,
    distances_over_rounds,
    heatmap_chart,
    number,
    of_variant,
    relative_distances,
)
from harness.simulate.run_one import Protection
from harness.simulate.store import Results
from protocol.errors import ConfigurationError
from tests.unit.harness.papers.made import line


def written(page: Page) -> str:
    page.write()
    return page.path.read_text(encoding="utf-8")


def test_spread_is_mean_and_standard_error():
    found = Spread.of([0.7, 0.8, 0.9])
    assert found.mean == pytest.approx(0.8, abs=1e-15)  # three additions of numbers below 1
    assert found.error == stdev([0.7, 0.8, 0.9]) / math.sqrt(3)
    assert str(found) == ".800 ± .058"
    assert str(Spread.of([0.5])) == ".500"
    assert str(Spread.of([math.nan, 0.5])) == "failed"
    with pytest.raises(ValueError, match="mean requires"):
        Spread.of([])


@pytest.mark.parametrize(("value", "shown"), [(0.9946, ".9946"), (0.7, ".700"), (1.0, "1.000"), (0.0, ".000")])
def test_numbers_read_as_in_the_papers(value: float, shown: str):
    assert number(value) == shown


def test_a_curve_leaves_out_rounds_that_a_run_did_not_reach():
    found = curve("a", [(0.2, 0.4), (0.4, None, 0.9)])
    assert found.means == (mean([0.2, 0.4]), 0.4, 0.9)
    assert found.errors == (stdev([0.2, 0.4]) / math.sqrt(2), 0.0, 0.0)


def test_gains_compare_the_same_seed():
    lines = [
        line("weight_erosion", seed=0, accuracy=(0.8,)),
        line("weight_erosion", seed=1, accuracy=(0.6,)),
        line("local", seed=0, accuracy=(0.5,)),
        line("local", seed=1, accuracy=(0.4,)),
        line("weight_erosion", seed=2, accuracy=(0.9,)),
    ]
    ((found),) = gains(lines, "weight_erosion", "local")
    assert (found.requester, found.better, found.worse) == ("site-0", True, False)
    gain = found.difference
    assert gain.mean == pytest.approx(0.25, abs=2.0**-52)  # two differences of numbers below 1
    assert gain.count == 2
    assert gain.clearly_positive
    assert signed(gain) == "**+0.250 ± 0.050**"


def test_mean_over_requesters_leaves_incomplete_seeds_out():
    lines = [
        line("fedavg", "a", 0, (0.2,)),
        line("fedavg", "b", 0, (0.4,)),
        line("fedavg", "a", 1, (0.9,)),
    ]
    found = over_requesters(lines, "fedavg")
    assert found is not None
    assert found.mean == pytest.approx(0.3, abs=2.0**-52)  # means of means of numbers below 1
    assert found.count == 1
    assert over_requesters(lines, "local") is None


def test_similarity_is_the_mean_relative_distance():
    names, found = relative_distances([line("weight_erosion")], "weight_erosion")
    assert names == ("site-0", "site-1")
    assert found[0, 1] == 1.0  # (1 + 3) / 2 over a requester's norm of 2
    assert np.isnan(found[0, 0])
    assert np.isnan(found[1]).all()
    sites, table = distances_over_rounds(line("weight_erosion"))
    assert sites == ("site-1",)
    assert table.tolist() == [[0.5, 1.5]]


def test_mnist_page_names_missing_settings_and_judges_against_the_published(tmp_path):
    runs = {
        "mnist_b_10": [line(v, accuracy=(0.5, a)) for v, a in (("weight_erosion", 0.99), ("fedavg", 0.97))],
        "mnist_c_10": [line("weight_erosion", accuracy=(0.5, 0.9))],
    }
    page = Page(tmp_path / "mnist.md", "MNIST")
    mnist.write(page, runs, None)
    text = written(page)
    assert "**Not run yet:** A, 10 sites" in text
    assert "| B, 10 sites | .9900 | .9913 | .970 | .971 | not run | .988 | 2 | 1 |" in text
    assert "B, 10 sites: Weight Erosion .9900, published .9913: -0.0013, within 0.01." in text
    assert "C, 10 sites: Weight Erosion .900, published .9981: -0.0981, **not** within 0.01." in text
    assert (tmp_path / "mnist_accuracy.svg").read_text().startswith("<svg")
    # Mean of the requester's 1 and the site's 0.5 after round 2.
    assert mnist.mean_weight(line("weight_erosion")) == (1.0, 0.75)


def test_heart_page_says_which_rule_beats_training_alone(tmp_path):
    accuracies = {"local": (0.70, 0.72), "fedavg": (0.60, 0.61), "weight_erosion": (0.80, 0.83)}
    lines = [
        line(v, "va-long-beach", seed, (a,), test_log_loss=(2 * a - 1,), test_auroc=())
        for v, both in accuracies.items()
        for seed, a in enumerate(both)
    ]
    page = Page(tmp_path / "heart_disease.md", "Heart disease")
    heart_disease.write(page, {"heart_disease": lines}, None)
    text = written(page)
    verdict = (
        "- va-long-beach: rules clearly better than training alone: on accuracy Weight Erosion; on log-loss FedAvg; "
    )
    assert verdict + "on AUROC none." in text
    assert "| Weight Erosion | **.815 ± .015** | **.815 ± .015** |" in text
    assert "| FedAvg | **.210 ± .010** |" in text
    assert "| Local | none | none |" in text
    assert "| *FLamby: FedAvg* | .640 |" in text
    assert "| FedAvg | **-0.105 ± 0.005** | 0 / 0 / 1 |" in text
    assert "| FedAvg | **-0.210 ± 0.010** | 1 / 0 / 0 |" in text
    empty = Page(tmp_path / "none.md", "None")
    heart_disease.write(empty, {}, None)
    assert "**Not run yet.**" in written(empty)


def test_a_seed_without_the_metric_is_left_out_and_a_failed_run_shows():
    aurocs = {0: (0.5,), 1: (None,), 2: (0.7,)}
    lines = [line("local", seed=seed, accuracy=(0.5,), test_auroc=values) for seed, values in aurocs.items()]
    found = spread_of(lines, "local", "site-0", MetricName.AUROC)
    assert found == Spread.of([0.5, 0.7])
    assert spread_of(lines, "local", "site-0", MetricName.LOG_LOSS) is None
    failed = [*lines, line("local", seed=3, accuracy=(), end="failed")]
    assert str(spread_of(failed, "local", "site-0", MetricName.AUROC)) == "failed"


def test_better_is_smaller_where_the_metric_is_an_error(tmp_path):
    rmse = {"local": (0.9, 0.9), "fedavg": (0.7, 0.72), "weight_erosion": (1.0, 1.1)}
    lines = [line(v, seed=s, test_rmse=(x,)) for v, both in rmse.items() for s, x in enumerate(both)]
    (found,) = gains(lines, "fedavg", "local", MetricName.RMSE)
    assert (found.better, found.worse, tally([found])) == (True, False, "1 / 0 / 0")
    page = Page(tmp_path / "page.md", "RMSE")
    against_table(page, lines, {name: name for name in rmse}, "local", MetricName.RMSE)
    text = written(page)
    assert "| RMSE (smaller is better) | site-0 | better / same / worse |" in text
    assert "| weight_erosion | **+0.150 ± 0.050** | 0 / 0 / 1 |" in text


def test_a_task_page_says_who_gained_and_who_went_on_alone(tmp_path):
    def final(value: float) -> FinalScores:
        return FinalScores(examples=9, samples=0, scores=(Score(name="integrated_brier", value=value),))

    c_index = {"local": (0.6, 0.6), "fedavg": (0.7, 0.71), "weight_erosion": (0.5, 0.51)}
    lines = [
        line(v, seed=s, test_c_index=(0.5, x), final_scores=final(1 - x), end="local_only")
        for v, both in c_index.items()
        for s, x in enumerate(both)
    ]
    page = Page(tmp_path / "survival.md", "Survival")
    other_tasks.SURVIVAL.write(page, {"survival": lines}, None)
    text = written(page)
    assert "| FedAvg | **.705 ± .005** | **.705 ± .005** |" in text
    assert "| FedAvg | **.295 ± .005** |" in text
    assert "- FedAvg against training alone, C-index: clearly better for site-0 (**+0.105 ± 0.005**)." in text
    assert "- Weight Erosion against training alone, C-index: clearly worse for site-0" in text
    assert "- In 2 of 2 runs Weight Erosion went on alone before the last round" in text


def test_the_clinicians_page_answers_counts_by_loss_and_names_who_lost(tmp_path):
    means = {
        ("local", "a"): 0.5,
        ("fedavg", "a"): 0.4,
        ("mallows", "a"): 0.3,
        ("local", "b"): 0.5,
        ("fedavg", "b"): 0.7,
        ("mallows", "b"): 0.5,
    }
    heart = [
        line(v, name, seed, (0.8,), test_loss=(x + 0.01 * seed * (v != "local"),), test_auroc=(None,))
        for (v, name), x in means.items()
        for seed in (0, 1)
    ]
    survival = [
        line(v, seed=s, accuracy=(0.5,), test_loss=(x + s / 100,), test_c_index=(y,))
        for v, x, y in (("local", 0.6, 0.6), ("fedavg", 0.5, 0.7))
        for s in (0, 1)
    ]
    page = Page(tmp_path / "clinicians.md", "Which rule?")
    clinicians.write(page, {"pays_heart_disease": heart, "pays_survival": survival}, None)
    text = written(page)
    assert (
        "- By FedAvg, joining was clearly better than training alone for 2 of 3 requesters, hospitals and parts of "
        "data sets together, clearly worse for 1." in text
    )
    assert (
        "Mallows averaging was clearly better for 1 of 2, clearly worse for 0 (its loss is up to 0.005 larger)" in text
    )
    assert "| **FedAvg** | 1 / 0 / 1 | 0 / 2 / 0 | none |" in text
    assert "| **FedAvg** | 1 / 0 / 0 | 1 / 0 / 0 |" in text
    assert "| **FedAvg** | 3 | 2 | 2 | 0 | 1 |" in text
    assert "FedAvg has a larger loss than training alone for b (+0.205)." in text
    assert "- survival: no rule was clearly worse than training alone." in text
    assert "**Not run yet:** Titanic by age;" in text
    assert text.split("\n\n")[2].startswith(
        "At the two real hospitals that we tried, FedAvg helped one and harmed one, beside training alone on their own "
        "patients. Mallows averaging helped one and harmed none. All other requesters"
    )


def test_published_pages_say_of_real_hospitals_and_of_cut_data_what_their_makers_say():
    """What FedAvg did where hospitals are real is said first, and is what the page's own table counts."""
    results = Path(__file__).parents[4] / "docs" / "results"
    page = (results / "clinicians.md").read_text(encoding="utf-8")
    better, _, worse = re.findall(r"\*\*FedAvg\*\* \| (\d) / (\d) / (\d) ", page.split("**Heart disease**")[1])[0]
    numbers = ("none", "one", "two", "three", "four")
    first = page.split("\n\n")[2]
    assert (
        f"four real hospitals that we tried, FedAvg helped {numbers[int(better)]} and harmed {numbers[int(worse)]}"
        in first
    )
    for study in (study for study in STUDIES if study.few):
        assert f"**{study.title[0].upper()}{study.title[1:]}**: {study.about}\n" in page
        assert study.case == clinicians.REAL or "hospital" not in study.about
    assert "Nobody, not even the two servers" not in page
    assert "(heart_disease.md)" in page
    assert "(clinicians.md)" in (results / "heart_disease.md").read_text(encoding="utf-8")


def test_charts_are_the_same_bytes_for_the_same_numbers():
    def drawn() -> tuple[str, ...]:
        one = curve("ours", [(0.1, 0.2), (0.2, 0.3)])
        return (
            curves_chart([Panel("p", (one,), (one,))], "accuracy"),
            bars_chart(["a", "b"], [("ours", [Spread.of([1.0, 2.0]), Spread.of([3.0])])], "weight"),
            heatmap_chart(np.eye(2), ["a", "b"], ["c", "d"], "value"),
        )

    assert drawn() == drawn()


def test_every_page_names_cases_that_exist_and_commands_that_make_it(tmp_path):
    for spec in PAGES:
        text = spec.write_page(tmp_path / "runs", tmp_path / "out", None).read_text(encoding="utf-8")
        assert "0 runs" in text
        assert "ot run yet" in text
        if isinstance(spec, CasesPage):
            assert all(use.command in text for use in spec.uses)
            for use in spec.uses:
                assert set(use.only or ()) <= set(use.read().names)


def test_a_gpu_makes_all_28_mnist_settings_and_only_those_that_ran_are_shown(tmp_path):
    spec = next(spec for spec in PAGES if spec.name == "mnist")
    assert isinstance(spec, CasesPage)
    assert len({use.case for use in (*spec.uses, *spec.on_gpu)}) == 28
    assert all(set(use.only or ()) <= set(use.read().names) for use in spec.on_gpu)
    with Results(tmp_path / "mnist_g_20").held():
        Results(tmp_path / "mnist_g_20").append(line("weight_erosion", accuracy=(0.5, 0.9)))
    text = spec.write_page(tmp_path, tmp_path / "out", None).read_text(encoding="utf-8")
    assert "| G, 20 sites | .900 |  |" in text
    assert "mnist_g_20.toml" in text
    assert "mnist_g_50.toml" not in text
    assert "D, 20 sites" not in text


def test_missing_runs_are_made_on_the_named_device(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(build, "run_case", lambda case, options: asked.append((case.name, options)))
    spec = next(spec for spec in PAGES if spec.name == "mnist")
    spec.run_missing(making.Making(tmp_path, None, 2, "cpu", lambda text: None))
    assert [name for name, _ in asked[:2]] == ["mnist-a-10", "mnist-a-100"]
    assert len(asked) == 9
    assert {options.computing.device.type for _, options in asked} == {"cpu"}
    assert {options.jobs for _, options in asked} == {2}


def test_a_page_without_its_data_stays_as_it_was_and_the_others_are_written(tmp_path, monkeypatch):
    monkeypatch.delenv("MOIETY_DATA", raising=False)
    out = tmp_path / "pages"
    out.mkdir()
    (out / "titanic.md").write_text("as it was")
    ran = []
    monkeypatch.setattr(build, "run_personal_case", lambda case, options, tell: ran.append(case.name))
    words = ["results", "--only", "titanic,har_ifedavg", "--out", str(out), "--runs", str(tmp_path), "--device", "cpu"]
    result = CliRunner().invoke(moiety.build("results"), words)
    assert isinstance(result.exception, ConfigurationError)
    assert str(result.exception).startswith("not written: titanic, for the reasons above")
    assert (out / "titanic.md").read_text() == "as it was"
    assert ran == ["har-ifedavg", "har-ifedavg-shifted", "har-ifedavg-swapped"]
    assert "ot run yet" in (out / "har_ifedavg.md").read_text(encoding="utf-8")


def test_download_fetches_what_a_page_needs_before_its_runs(tmp_path, monkeypatch):
    fetched = []
    monkeypatch.setattr(making, "fetch_missing", lambda files, folder, tell: fetched.append((files, folder)))
    monkeypatch.setattr(build, "run_case", lambda case, options: ())
    spec = next(spec for spec in PAGES if spec.name == "titanic")
    spec.run_missing(Making(tmp_path, tmp_path / "data", 1, "cpu", lambda text: None, download=True))
    assert {folder for _, folder in fetched} == {tmp_path / "data"}
    assert {file.path for files, _ in fetched for file in files} == {"titanic/titanic3.csv"}


def test_protected_runs_lie_apart():
    use = CaseUse("mnist_b_10", (0,), ("weight_erosion",), Protection.SECURE)
    assert use.folder == "mnist_b_10_secure"
    assert use.command == (
        "moiety simulate harness/studies/mnist_b_10.toml --seeds 0 --only weight_erosion --protection secure "
        "--out results-out/mnist_b_10_secure"
    )


def test_a_page_is_written_from_the_lines_that_are_there(tmp_path):
    spec = next(spec for spec in PAGES if spec.name == "mnist")
    with Results(tmp_path / "mnist_b_10").held():
        Results(tmp_path / "mnist_b_10").append(line("local", accuracy=(0.5, 0.98)))
    text = spec.write_page(tmp_path, tmp_path / "out", None).read_text(encoding="utf-8")
    assert "| B, 10 sites | not run | .9913 | not run | .971 | .980 | .988 | not run | 1 |" in text
    assert of_variant(Results(tmp_path / "mnist_b_10").lines(), "local")[0].seed == 0
