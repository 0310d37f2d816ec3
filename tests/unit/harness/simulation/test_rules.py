"""Every rule as a variant of one case, plain and secure, and the policy that refuses what a rule opens."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from harness.datasets.bundled import breast_cancer_five_hospitals
from harness.engine.training import Computing
from harness.simulate.case import Case, parse_case
from harness.simulate.case_run import CaseOptions, run_case
from harness.simulate.run_line import RunLine
from harness.simulate.run_one import Protection
from protocol.errors import ConfigurationError
from protocol.messages.control import RuleName

CASE = """
name = "rules"
rounds = 2
[case]
data = "breast_cancer"
{policy}
[model]
kind = "linear"
inputs = [30]
[training]
batch_size = 32
server_learning_rate = 0.3
[parameters]
clip_norm = 4.0
weight_grid = 2
"""
OPENED = {
    RuleName.WEIGHT_EROSION: {"distance"},
    RuleName.MULTI_KRUM: {"pairs"},
    RuleName.INFLUENCE: {"inner_product"},
    RuleName.MALLOWS: {"pairs", "norm"},
}
VARIANT = '[[variant]]\nname = "{name}"\nrule = {{ name = "{name}" }}\n'


def case(*rules: RuleName, policy: str = "") -> Case:
    return parse_case(CASE.format(policy=policy) + "".join(VARIANT.format(name=r.value) for r in rules), "case.toml")


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


@pytest.mark.parametrize(("rule", "opened"), [(RuleName.MULTI_KRUM, "pairs"), (RuleName.WEIGHT_EROSION, "distances")])
def test_a_rule_that_opens_what_the_policy_forbids_is_refused(rule: RuleName, opened: str, tmp_path: Path) -> None:
    forbidding = case(rule, policy='policy = { may_open = ["norms"] }')
    with pytest.raises(ConfigurationError, match=f"site 'county-hospital' refuses .* opens {opened} .*allowed: norms"):
        run_case(forbidding, CaseOptions(tmp_path))
    assert run_case(case(RuleName.FEDAVG, policy="policy = { may_open = [] }"), CaseOptions(tmp_path / "other"))


@pytest.mark.parametrize(("update", "computed_on"), [("local_sgd", "cpu, batched"), ("gradient", "cpu")])
def test_a_line_says_what_its_run_was_computed_on(update: str, computed_on: str, tmp_path: Path) -> None:
    one = f'{VARIANT.format(name="fedavg")}training = {{ update = "{update}" }}\n'
    of = parse_case(CASE.format(policy="") + one, "case.toml")
    options = CaseOptions(tmp_path, computing=Computing(torch.device("cpu"), batched=True))
    assert [line.computed_on for line in run_case(of, options)] == [computed_on]


def test_a_policy_about_something_that_is_never_opened_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="may_open"):
        case(RuleName.FEDAVG, policy='policy = { may_open = ["updates"] }')


def test_a_study_that_ranks_its_sites_is_not_simulated(tmp_path: Path) -> None:
    text = CASE.format(policy="") + "[ranking]\n" + VARIANT.format(name="fedavg")
    with pytest.raises(ConfigurationError, match="simulations only train; leave it out, and rank the sites by: moiety"):
        run_case(parse_case(text, "case.toml"), CaseOptions(tmp_path))
