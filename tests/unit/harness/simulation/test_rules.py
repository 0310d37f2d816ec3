"""Every rule as a variant of a case, and rules of other packages."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from harness.attack.attacked_study import AS_IT_IS
from harness.datasets.bundled import breast_cancer_five_hospitals
from harness.engine.training import Computing
from harness.simulate.case import Case, parse_case
from harness.simulate.case_run import CaseOptions, run_case
from harness.simulate.options import StudyOptions
from harness.simulate.run_line import RunLine
from harness.simulate.run_one import Protection
from harness.simulate.store import Results
from harness.simulate.study_run import run_simulation
from host.extensions import load_plugins
from protocol.errors import ConfigurationError
from protocol.messages.control import RuleName
from tests.kit.cases import case_text, variant
from tests.rule_package import install
from tests.unit.harness.simulation.test_shards import lines_of

# --- rules ------------------------------------------------------------------------------------------------------------

OPENED = {
    RuleName.WEIGHT_EROSION: {"distance"},
    RuleName.MULTI_KRUM: {"pairs"},
    RuleName.INFLUENCE: {"inner_product"},
    RuleName.MALLOWS: {"pairs", "norm"},
}


def of_rules(*tables: str, policy: str = "") -> Case:
    training, grid = "batch_size = 32\nserver_learning_rate = 0.3", "weight_grid = 2"
    return parse_case(case_text(*tables, rounds=2, case=policy, training=training, parameters=grid), "case.toml")


def case(*rules: RuleName, policy: str = "") -> Case:
    return of_rules(*map(variant, rules), policy=policy)


@pytest.mark.parametrize("protection", [Protection.PLAIN, Protection.SECURE])
def test_every_rule_runs_as_a_variant(protection: Protection, tmp_path: Path) -> None:
    options = CaseOptions(tmp_path, protection=protection, correlation_source="dealer")
    lines = {line.variant: line for line in run_case(case(*RuleName), options)}
    assert set(lines) == {rule.value for rule in RuleName}
    for rule in RuleName:
        line = lines[rule.value]
        assert (line.end, line.rule, line.protection) == ("completed", rule.value, protection.value)
        assert line.released_rounds == (0 if rule is RuleName.LOCAL else 2)
        assert line.kind.count("counted") == rule.counts_classes
        _what_was_opened_is_in_the_line(rule, line)


def _what_was_opened_is_in_the_line(rule: RuleName, line: RunLine) -> None:
    opened = {name for name in ("distance", "norm", "inner_product", "pairs") if getattr(line, name)}
    assert opened == OPENED.get(rule, set())
    if rule is RuleName.MULTI_KRUM:
        assert len(line.pairs) == 10  # of five sites
        assert all(len(pair.distance) == 2 and None not in pair.distance for pair in line.pairs)
        for taken, left in zip(line.took_part, line.not_selected, strict=True):
            assert sorted((*taken, *left)) == sorted(line.alpha)
    if rule.counts_classes:
        sites = breast_cancer_five_hospitals(0).sites
        assert line.class_totals == tuple(sum(int((site.train.y == label).sum()) for site in sites) for label in (0, 1))
    sums = [value for value, kind in zip(line.sum_of_weights, line.kind, strict=True) if kind == "released"]
    assert all(value is not None and 1 < value <= 5 for value in sums)


@pytest.mark.parametrize(("update", "computed_on"), [("local_sgd", "cpu, batched"), ("gradient", "cpu")])
def test_a_line_says_what_its_run_was_computed_on(update: str, computed_on: str, tmp_path: Path) -> None:
    of = of_rules(variant("fedavg", f'training = {{ update = "{update}" }}'))
    options = CaseOptions(tmp_path, computing=Computing(torch.device("cpu"), batched=True))
    assert [line.computed_on for line in run_case(of, options)] == [computed_on]


def test_a_policy_about_something_that_is_never_opened_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="may_open"):
        case(RuleName.FEDAVG, policy='policy = { may_open = ["updates"] }')


def test_a_study_that_ranks_its_sites_is_not_simulated(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="simulations only train; leave it out, and rank the sites by: moiety"):
        run_case(of_rules("[ranking]", variant("fedavg")), CaseOptions(tmp_path))


# --- packaged ---------------------------------------------------------------------------------------------------------

OURS = """
[[variant]]
name = "ours"
rule = { name = "weight_erosion", distance_penalty = 0.05, size_penalty = 0.4 }
"""
THEIRS = """
[[variant]]
name = "theirs"
rule = { name = "acme-rules:eroding", penalty = 0.05 }
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "installed"
    install(folder)
    monkeypatch.syspath_prepend(folder)
    return folder


def packaged_case(variants: str = THEIRS, table: str = "", data: str = "breast_cancer") -> Case:
    text = case_text(variants, data=data, case=f"{table}\npolicy = {{ least_isolation = 0.0 }}")
    return parse_case(text, "case.toml")


@pytest.mark.usefixtures("package")
def test_a_packages_rule_decides_the_run(tmp_path: Path) -> None:
    """The package's is Weight Erosion under another name, so both runs are the same to the bit; FedAvg's is not."""
    other = OURS.replace("ours", "average").replace(", distance_penalty = 0.05, size_penalty = 0.4", "")
    three = packaged_case(OURS + THEIRS + other.replace("weight_erosion", "fedavg"))
    ours, theirs, average = run_case(three, CaseOptions(tmp_path / "out"))
    assert theirs.test_accuracy == ours.test_accuracy
    assert (theirs.alpha, theirs.distance) == (ours.alpha, ours.distance)
    assert theirs.alpha != average.alpha
    assert list(theirs.kind) == ["released"] * 3
    assert (theirs.rule, theirs.versions["acme-rules"]) == ("acme-rules:eroding", "1.2")
    assert "acme-rules" not in ours.versions
    assert theirs.weight == ours.weight


def test_another_version_of_the_package_is_another_variant(package: Path, tmp_path: Path) -> None:
    run_case(packaged_case(), CaseOptions(tmp_path / "out"))
    install(package, version="1.3")
    assert packaged_case(OURS).variants[0].digest == packaged_case(OURS + THEIRS).variants[0].digest
    with pytest.raises(ConfigurationError, match="'theirs' is not what it was"):
        run_case(packaged_case(), CaseOptions(tmp_path / "out"))


@pytest.mark.usefixtures("package")
def test_options_are_tuned_and_checked_before_the_first_run(tmp_path: Path) -> None:
    tune = 'tune = { "rule.penalty" = [0.05, %s] }\n'
    table = "tuning_seeds = [9]\nvalidation_share = 0.2"
    tuned = THEIRS.replace("theirs", "tuned").replace("0.05", "0.9") + tune % "0.05"
    line, as_written = run_case(packaged_case(tuned + THEIRS, table), CaseOptions(tmp_path / "good"))
    assert line.settings == {"rule.penalty": 0.05}
    assert line.alpha == as_written.alpha
    told: list[object] = []
    with pytest.raises(ConfigurationError, match=r"variant 'theirs': rule 'acme-rules:eroding': .*'penalty'.*-0.5"):
        run_case(packaged_case(THEIRS + tune % "-0.5", table), CaseOptions(tmp_path / "bad"), told.append)
    assert told == []


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("penalty = 0.05", "penalt = 0.05", "unknown key 'penalt'; did you mean 'penalty'"),
        ("eroding", "loose", "extra='forbid'"),
        ("eroding", "no_rule", "leads to int"),
        ("eroding", "nothing", "gave NoneType"),
        ("eroding", "gone", "cannot be loaded"),
        ("eroding", "median", "acme-rules 1.2 offers no such rule; it offers eroding"),
        (
            "acme-rules",
            "other-rules",
            "--plugin other-rules.py; if it is in a package, install the package that offers it",
        ),
    ],
)
def test_what_is_wrong_with_a_package_is_named_before_the_first_run(
    tmp_path: Path, before: str, after: str, message: str
) -> None:
    told: list[object] = []
    with pytest.raises(ConfigurationError, match=f"case.toml: variant 'theirs': .*{message}"):
        run_case(packaged_case(OURS + THEIRS.replace(before, after)), CaseOptions(tmp_path), told.append)
    assert told == []


@pytest.mark.usefixtures("package")
def test_a_rule_that_breaks_its_promises_ends_the_case(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"rule 'acme-rules:greedy': numerators\(\) gave"):
        run_case(packaged_case(THEIRS.replace("eroding", "greedy")), CaseOptions(tmp_path))
    assert Results(tmp_path).lines() == ()


@pytest.mark.usefixtures("package")
def test_what_a_packages_rule_opens_needs_the_sites_leave(tmp_path: Path) -> None:
    norms_alone = parse_case(case_text(THEIRS, case='policy = { may_open = ["norms"] }'), "case.toml")
    with pytest.raises(ConfigurationError, match=r"variant 'theirs': .*opens distances"):
        run_case(norms_alone, CaseOptions(tmp_path))


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("protection", [Protection.SECURE, Protection.CKKS])
def test_protected_runs_refuse_it(tmp_path: Path, protection: Protection) -> None:
    with pytest.raises(
        ConfigurationError, match=r"variant 'theirs': rule 'acme-rules:eroding' is from a package.*--only"
    ):
        run_case(packaged_case(OURS + THEIRS), CaseOptions(tmp_path, protection=protection))


@pytest.mark.usefixtures("package")
def test_studies_and_attacks_refuse_it(tmp_path: Path) -> None:
    """Neither may run FedAvg instead."""
    with pytest.raises(ConfigurationError, match=r"'acme-rules:eroding' is from a package.* plain runs of cases only"):
        AS_IT_IS.of(packaged_case().variant("theirs"), "case.toml")
    study = tmp_path / "study.toml"
    text = case_text('[rule]\nname = "acme-rules:eroding"\n')
    study.write_text(text.replace('[case]\ndata = "breast_cancer"\n', ""))
    with pytest.raises(ConfigurationError, match=r"study.toml: rule 'acme-rules:eroding' is from a package"):
        run_simulation(StudyOptions(study, seeds="0"))


def test_the_documented_rule_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[4] / "docs" / "simulating.md").read_text(encoding="utf-8")
    (section,) = re.findall(r"^## A rule of your own\n(.*?)^## ", text, flags=re.MULTILINE | re.DOTALL)
    (entries,) = re.findall(r"^near = \"(.+)\"$", section, flags=re.MULTILINE)
    (module,) = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    (rule,) = re.findall(r"`(rule = \{.*?\})`", section)
    folder = tmp_path / "installed"
    install(folder, "my-rules", entries=f"[moiety.rules]\nnear = {entries}\n")
    (folder / "my_rules.py").write_text(module, encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    (line,) = run_case(packaged_case(f'[[variant]]\nname = "near"\n{rule}\n'), CaseOptions(tmp_path / "out"))
    assert (line.rule, line.end) == ("my-rules:near", "completed")
    for site, weights in line.alpha.items():
        pairs = zip(line.distance[site], line.requester_norm, strict=True)
        far = [distance is not None and norm is not None and distance > 2.5 * norm for distance, norm in pairs]
        assert list(weights) == [0.0 if any(far[: number + 1]) else 1.0 for number in range(3)]
    assert {weight for weights in line.alpha.values() for weight in weights} == {0.0, 1.0}


OWN_DATA = """
from harness.datasets.bundled import breast_cancer_five_hospitals

DATASETS = {"hospitals": lambda request: breast_cancer_five_hospitals(request.seed)}
"""


@pytest.mark.slow
@pytest.mark.usefixtures("package")
def test_several_processes_give_the_same_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a package's rule and a file's data. Called from a script without a ``__main__`` guard: none imports it."""
    monkeypatch.setattr("host.extensions._files", {})
    (tmp_path / "mine.py").write_text(OWN_DATA)
    load_plugins([tmp_path / "mine.py"])
    script = ModuleType("__main__")
    script.__file__ = str(tmp_path / "script.py")
    (tmp_path / "script.py").write_text("raise SystemExit('a worker ran the script')")
    monkeypatch.setitem(sys.modules, "__main__", script)
    seen: list[tuple[int, int]] = []
    own = packaged_case(table="seeds = [0, 1]", data="mine:hospitals")
    run_case(own, CaseOptions(tmp_path / "one"))
    two = CaseOptions(tmp_path / "two", jobs=2)
    lines = run_case(own, two, lambda progress: seen.append((progress.runs_done, progress.rounds_done)))
    assert [(line.seed, line.rule, line.end) for line in lines] == [
        (seed, "acme-rules:eroding", "completed") for seed in (0, 1)
    ]
    assert lines_of(tmp_path / "two") == lines_of(tmp_path / "one")
    assert seen[-1] == (2, 6)
    assert sys.modules["__main__"] is script
