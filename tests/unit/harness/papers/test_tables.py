"""Tables and plots from made lines: means, differences with the same seed, and who is clearly better."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from client_agent.scoring.score import MetricName
from harness.adversaries.lies import Lie, LyingLine
from harness.adversaries.reconstruction import AttackLine, PartyErrors, Prior
from harness.bench.load import Sample, slopes
from harness.datasets.titanic import SITES
from harness.papers import attacked, simulated, soak
from harness.papers.recipes import LYING, case_of, folder_of, recipes
from harness.papers.scores import (
    BETTER,
    LOCAL,
    LOSS,
    Scores,
    Table,
    is_better,
    is_worse,
    less_table,
    scores_table,
    signed,
    tally,
    unfinished,
    with_rules_alone,
)
from harness.simulate.charts import Spread
from harness.simulate.run_line import RunLine
from harness.simulate.store import Results, append_line
from protocol.errors import Clause, ConfigurationError
from tests.unit.harness.papers.made import line
from tests.unit.harness.test_bench_load import a_load


def keep(runs: Path, case: str, lines: list[RunLine], protection: str = "plain") -> None:
    results = Results(runs / folder_of(case, protection))
    with results.held():
        for one in lines:
            results.append(one)


def tables(found: simulated.Found) -> dict[str, Table]:
    return {name: content for name, content in found if not name.startswith("plots/")}


def lost(variant: str, requester: str, seed: int, *loss: float, **changes: object) -> RunLine:
    return line(variant, requester, seed, (0.5,) * len(loss), **{"test_loss": loss, **changes})


def study() -> list[RunLine]:
    """At "a" FedAvg is better, at "b" training alone; Mallows is clearly above at "a", clearly below at "b"."""
    of = {
        ("local", "a"): (0.6, 0.7),
        ("fedavg", "a"): (0.4, 0.5),
        ("mallows", "a"): (0.30, 0.41),
        ("local", "b"): (0.2, 0.3),
        ("fedavg", "b"): (0.8, 0.7),
        ("mallows", "b"): (0.40, 0.51),
    }
    return [lost(rule, name, seed, 0.9, loss) for (rule, name), both in of.items() for seed, loss in enumerate(both)]


def test_rules_are_compared_on_the_same_seed() -> None:
    accuracy = {("weight_erosion", 0): 0.8, ("weight_erosion", 1): 0.6, ("local", 0): 0.5, ("local", 1): 0.4}
    lines = [line(variant, seed=seed, accuracy=(a,)) for (variant, seed), a in accuracy.items()]
    scores = Scores([*lines, line("weight_erosion", seed=2, accuracy=(0.9,))])
    (less,) = scores.less("weight_erosion", LOCAL).values()
    assert less.mean == pytest.approx(0.25, abs=2.0**-52)  # two differences of numbers below 1
    assert signed(less) == "**+0.250 ± 0.050**"
    assert (is_better(less, MetricName.ACCURACY), is_worse(less, MetricName.ACCURACY)) == (True, False)
    assert (is_better(less, LOSS), is_worse(less, LOSS)) == (False, True)
    rules = {"local": "Local", "weight_erosion": "WE"}
    head, row = less_table(scores, rules, MetricName.ACCURACY)
    assert head == ("accuracy (larger is better)", "site-0", "better / same / worse")
    assert row == ("WE", "**+0.250 ± 0.050**", "1 / 0 / 0")
    assert tally({}, LOSS) == "none"


def test_a_mean_over_requesters_leaves_incomplete_seeds_out() -> None:
    lines = [line("fedavg", "a", 0, (0.2,)), line("fedavg", "b", 0, (0.4,)), line("fedavg", "a", 1, (0.9,))]
    found = Scores(lines).over_requesters("fedavg")
    assert found is not None
    assert (found.mean, found.count) == (pytest.approx(0.3, abs=2.0**-52), 1)  # a mean of numbers below 1
    assert Scores(lines).over_requesters("local") is None


def test_the_best_of_a_column_is_bold_and_quoted_rows_are_not_compared() -> None:
    lines = [
        line("local", accuracy=(0.5,)),
        line("fedavg", accuracy=(0.6,)),
        line("fedavg", "b", 1, (0.7,), end="failed"),
    ]
    table = scores_table(Scores(lines), {"local": "Local", "fedavg": "FedAvg"}, quoted=[("quoted", ".900", ".9")])
    assert table[0] == ("rule", "b", "site-0", "mean")
    assert table[1] == ("Local", "none", ".500", "none")
    assert table[2] == ("FedAvg", "**.700**", "**.600**", "none")
    assert table[3] == ("quoted", ".900", ".9", "")


def test_the_better_of_both_is_chosen_for_each_requester_by_its_mean() -> None:
    scores = Scores(study())
    assert scores.better_of_both("a").to_dict() == {0: 0.4, 1: 0.5}
    assert scores.better_of_both("b").to_dict() == {0: 0.2, 1: 0.3}
    less = scores.less("mallows", BETTER, LOSS)
    assert (less["a"].mean, less["a"].error) == (pytest.approx(-0.095), pytest.approx(0.005))
    assert tally(less, LOSS) == "1 / 0 / 1"
    assert {name: one.mean for name, one in scores.less("mallows", LOCAL, LOSS).items()} == pytest.approx(
        {"a": -0.295, "b": 0.205}
    )
    alone = Scores([one for one in study() if one.variant != "fedavg"])
    assert alone.less("mallows", BETTER, LOSS) == {}


def test_a_rule_that_failed_is_never_the_better_one_and_shows() -> None:
    lines = [one for one in study() if (one.variant, one.requester, one.seed) != ("fedavg", "a", 0)]
    scores = Scores([*lines, lost("fedavg", "a", 0, end="failed")])
    assert math.isnan(scores.values("fedavg", "a", LOSS)[0])
    assert scores.better_of_both("a").to_dict() == {0: 0.6, 1: 0.7}
    assert str(scores.spread("fedavg", "a", LOSS)) == "failed"


def test_the_rounds_before_a_finish_are_the_rule_alone_unless_that_has_run() -> None:
    kinds = ("released", "released", "finished")
    metrics = {"f1": (0.1, 0.2, 0.3)}
    finished = lost("mallows_finished", "a", 0, 0.5, 0.4, 0.3, kind=kinds, test_metrics=metrics)
    both = with_rules_alone([finished])
    assert [(one.variant, one.test_loss[-1]) for one in both] == [("mallows_finished", 0.3), ("mallows", 0.4)]
    assert both[1].test_metrics == {"f1": (0.1, 0.2)}
    own = lost("mallows", "a", 0, 0.9)
    assert with_rules_alone([finished, own]) == (finished, own)
    assert unfinished(lost("mallows_finished", "a", 1, 0.5, end="failed")).test_loss == (0.5,)


def test_whether_it_pays_is_counted_by_study_and_together(tmp_path: Path) -> None:
    keep(tmp_path, "pays_heart_disease", study())
    found = tables(simulated.does_it_pay(tmp_path, None))
    assert ("**Mallows averaging**", "2", "1", "2", "1 (50 %)", "1 (50 %)", "1 (50 %)", "1 (50 %)") in found[
        "does_it_pay_few"
    ]
    assert ("**Local**", "2", "1", "2", "0 (0 %)", "1 (50 %)", "", "") in found["does_it_pay_few"]
    row = next(row for row in found["does_it_pay_heart_disease"] if row[0] == "Mallows averaging")
    assert row[1:6] == ("2", ".405", "**+0.055 ± 0.005**", "1 / 0 / 1", "1 / 0 / 1")
    assert found["does_it_pay_heart_disease"][-1][:3] == ("*better of both*", "", ".350")
    few, many = (float(found["does_it_pay_missed"][place][1]) for place in (1, 4))
    assert few > 0.1 > 0.02 > many
    plain = tables(simulated.clinicians(tmp_path, None))
    assert ("**Mallows averaging**", "1 / 0 / 1", "0 / 2 / 0", "none") in plain["clinicians_heart_disease"]
    assert ("**FedAvg**", "2", "1", "1", "0", "1") in plain["clinicians_together"]


def test_titanic_has_the_reports_rates_and_the_better_baseline_of_each_requester(tmp_path: Path) -> None:
    accuracies = {"local": (0.70, 0.74), "fedavg": (0.75, 0.77), "multi_krum": (0.80, 0.82)}
    accuracies |= {"weight_erosion_tuned": (0.71, 0.73), "fedavg_as_published": (0.4, 0.8)}
    for split in ("age_strict", "age_some"):
        settings = {"weight_erosion_tuned": {"training.server_learning_rate": 2.5}}
        lines = [
            line(rule, user, seed, (0.5, last), settings=settings.get(rule, {}), final_model=(0.0,) * 20)
            for rule, both in accuracies.items()
            for user in SITES[split]
            for seed, last in enumerate(both)
        ]
        keep(tmp_path, f"titanic_{split}", lines)
    found = tables(simulated.titanic(tmp_path, None))
    rows = {row[0]: row[1:] for row in found["titanic_strict_accuracy"]}
    assert rows["Local"][:2] == ("3", ".720 ± .020")
    assert rows["WE, tuned"][:2] == ("5", ".720 ± .010")
    assert rows["*published: FedAvg, row sums*"] == ("0.07", ".672", ".606", ".298", ".553", "")
    krum = ("multi-Krum", ".810", "8 / 0 / 0", "none", "none", "**+0.050 ± 0.000**")
    assert krum in found["titanic_all_requesters"]
    row_sums = {row[0]: row[1:] for row in found["titanic_published_fedavg"]}
    assert row_sums["age_some, over-35"][:3] == ("no data", ".600 (.400 to .800)", "no data")


def test_mnist_has_a_row_for_every_setting_that_ran(tmp_path: Path) -> None:
    runs = (("weight_erosion", 0.99), ("fedavg", 0.97))
    keep(tmp_path, "mnist_b_10", [line(rule, accuracy=(0.5, last)) for rule, last in runs])
    keep(tmp_path, "mnist_g_20", [line("weight_erosion", accuracy=(0.5, 0.9))])
    found = tables(simulated.mnist(tmp_path, None))
    assert found["mnist_last"][1] == ("B, 10 sites", ".9900", ".9913", ".970", ".971", "not run", ".988", "2", "1")
    assert [row[0] for row in found["mnist_last"][1:]] == ["B, 10 sites", "G, 20 sites"]
    assert simulated.mean_weight(line("weight_erosion")) == (1.0, 0.75)  # the requester's 1 and the site's 0.5


@pytest.mark.parametrize("case", simulated.NOISED)
def test_the_noise_of_every_variant_keeps_its_epsilon_at_the_smallest_site(case: str) -> None:
    fewest = min(simulated.NOISED[case][1].values())
    for epsilon in simulated.EPSILONS[2:]:
        assert 0.95 * float(epsilon) < simulated.spent_of(case, epsilon, fewest) <= float(epsilon)


def attack(ended_by: Clause | None, **changes: object) -> AttackLine:
    priors = (Prior.AVERAGE, Prior.OWN, Prior.TRUE)
    errors = tuple(PartyErrors(party=("a",), prior=prior, errors={"b": (0.4, 0.6, None)}) for prior in priors)
    made = AttackLine(
        study="breast-cancer", variant="weight_erosion", setting="now", requester="a", seed=0, rule="weight_erosion",
        end="local_only", reason="", ended_by=ended_by, parameters=62, test_accuracy=0.9, rounds=(1, 2), lists=1,
        weight={"b": (1.0, 1.0)}, isolation={"a": (0.9, 0.5, 0.1), "b": (0.8, None, 0.1)}, attacks=errors,
        seconds=1.0, versions={},
    )  # fmt: skip
    return made.model_copy(update=changes)


def test_a_whole_studys_prediction_is_of_its_last_sum_and_its_error_of_any_round() -> None:
    found = attacked.whole_study(attack(None))
    assert found is not None
    assert (found.predicted, found.best, found.true, found.average) == (0.5, 0.4, 0.4, 0.4)
    assert attacked.whole_study(attack(None, rounds=())) is None
    assert attacked.middle_error(attack(None), [("a",)], [Prior.OWN]) == 0.6


def test_what_ended_a_study_is_counted_by_its_clause() -> None:
    recipe = recipes()["sums"]
    asked = next(one for one in recipe["attacked"] if one["key"] == "remedies-titanic")
    key, setting = asked["key"], "full batches"
    lines = [attack(clause, study=key, setting=setting) for clause in (Clause.ISOLATION, None)]
    ((name, *cells),) = attacked._remedies(recipe, asked, lines)
    assert (name, cells[-1]) == (setting, "1 of 2")


def lie_line(variant: str, lie: Lie | None, seed: int, **changes: object) -> LyingLine:
    made = LyingLine(
        study=case_of("lies_heart").name, variant=variant, setting="as_it_is", requester="cleveland", seed=seed,
        sites=4, liars=("va",), lie=lie, rule="mallows", end="completed", released=30, clip_norm=1.0, weight=0.25,
        moved=1.0, path=2.0, log_loss=0.5, honest_log_loss=0.4, seconds=1.0, versions={},
    )  # fmt: skip
    return made.model_copy(update=changes)


def test_shares_ways_and_costs_of_lies_are_those_of_the_lines(tmp_path: Path) -> None:
    lines = [lie_line("mallows", None, seed) for seed in (0, 1)]
    lines += [lie_line("mallows", Lie.COPY, 0), lie_line("mallows", Lie.COPY, 1, weight=0.75, log_loss=0.8, moved=3.0)]
    lines += [lie_line("mallows", lie, 0, setting="finished", log_loss=0.41) for lie in (None, Lie.ORACLE)]
    (tmp_path / LYING).parent.mkdir()
    for one in lines:
        append_line(tmp_path / LYING, one)
    found = tables(attacked.robustness(tmp_path, None))
    rows = {
        what: dict(zip(found[f"robustness_lies_heart_{what}"][0], row, strict=True))
        for what in ("share", "moved", "cost", "finished")
        for row in found[f"robustness_lies_heart_{what}"]
        if row[0] == "Mallows, plug-in"
    }
    assert (rows["share"]["honest"], rows["share"]["copy"], rows["share"]["near"]) == ("0.25", "0.50", "-")
    assert rows["moved"]["copy"] == "1.00"
    assert rows["cost"]["copy"] == "+0.25 ± 0.15"
    assert (rows["finished"]["honest"], rows["finished"]["replay"], rows["finished"]["oracle"]) == (".410", "-", ".410")


def test_soak_counts_what_is_there_and_names_a_file_of_another_version(tmp_path: Path) -> None:
    folder = tmp_path / "soak"
    folder.mkdir()
    decoders = [
        soak.DecoderCount(name=name, inputs=number, taken=1, refused=number - 1, crashes=0, slowest_s=0.01)
        for name, number in (("message study", 1000), ("message roster", 500), ("padding", 7))
    ]
    totals = {"inputs": 22, "taken": 8, "refused": 13, "crashes": 1, "cpu_s": 3.0, "grown_mb": 1.0}
    inputs = soak.FuzzedInputs(seed=2, decoders=tuple(decoders), found=(), **totals)
    (folder / soak.INPUTS).write_text(inputs.model_dump_json())
    (folder / soak.TESTS).write_text(
        """<testsuites><testsuite name="pytest">
        <testcase classname="tests.integration.test_crashes" name="test_a[1]" time="2.5"/>
        <testcase classname="tests.integration.test_crashes" name="test_b" time="1"><failure message="no"/></testcase>
        <testcase classname="tests.unit.test_ray" name="test_c" time="0"><skipped message="no ray"/></testcase>
        </testsuite></testsuites>"""
    )
    found = tables(soak.reliability(tmp_path, None))
    assert ("messages", "1,500", "2", "1,498", "0") in found["reliability_inputs"]
    assert ("tests.integration.test_crashes", "1", "1", "0", "4") in found["reliability_tests"]
    assert set(found) == {"reliability_inputs", "reliability_tests"}
    (folder / soak.REQUESTS).write_text('{"requests": 1}')
    with pytest.raises(ConfigurationError, match=r"fuzz_requests.json: \d+ fields are not those of this version"):
        list(soak.reliability(tmp_path, None))


def sampled(number: int, **figures: float) -> Sample:
    values: dict[str, float] = {}
    values |= dict.fromkeys(Sample.model_fields, 0) | {"round": number, "seconds": 2.0 * number, **figures}
    return Sample.model_validate(values)


def test_what_grows_with_rounds_is_a_table_and_a_plot(tmp_path: Path) -> None:
    samples = tuple(sampled(n, database_bytes=50_000 + 1000 * n, resident_mb=100.0) for n in range(51))
    found = {one.what: one for one in slopes(samples)}
    assert found["both databases"].per_round == pytest.approx(1.0)
    assert (found["both databases"].first, found["both databases"].last) == (pytest.approx(62.5), pytest.approx(97.5))
    assert found["a server's memory"].per_round == pytest.approx(0.0, abs=1e-9)
    assert found["a round's time"].last == pytest.approx(2.0)
    (tmp_path / "soak").mkdir()
    held = a_load().model_copy(update={"samples": samples, "rows": {"nonces": 7000}})
    (tmp_path / "soak" / soak.ENDURANCE).write_text(held.model_dump_json())
    written = dict(soak.reliability(tmp_path, None))
    assert ("both databases, kB", "62.5", "97.5", "+1") in written["reliability_growth"]
    assert ("nonces", "7,000") in written["reliability_rows"]
    assert ("a round's time, s", "", 50, 2.0, None) in written["plots/reliability_endurance"]


def test_signed_without_an_error() -> None:
    assert signed(Spread(0.5, None, 1)) == "+0.500"
