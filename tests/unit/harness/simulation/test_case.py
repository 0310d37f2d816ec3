"""Case files: every variant is a whole, checked study; what is wrong is named before anything runs."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from client_agent.learning.models import dimension, model_spec
from client_agent.learning.study_file import study_from_table
from harness.datasets.bundled import breast_cancer_five_hospitals
from harness.datasets.registry import SOURCES
from harness.engine.parties import SiteEntry, make_parties
from harness.simulate.case import Case, parse_case, read_case
from harness.simulate.case_run import CaseOptions, requesters_of, run_case
from harness.simulate.run_one import Protection
from harness.simulate.study_files import STUDIES, study_names
from harness.simulate.tuning import combinations
from protocol.errors import ConfigurationError, PolicyRefusal
from protocol.messages.control import RuleName, Study
from protocol.parameters import StudyParameters
from protocol.policy.site_policy import SitePolicy, check_steps_allowed
from protocol.shared_model import state_vectors
from tests.kit.cases import case_text

CASES = study_names()

EROSION = """
[[variant]]
name = "erosion"
rule = { name = "weight_erosion", distance_penalty = 0.02 }
"""


def case(variants: str = EROSION, case: str = "") -> Case:
    return parse_case(case_text(variants, case=case, training="batch_size = 32"), "case.toml")


def test_a_variant_is_laid_over_the_study() -> None:
    parsed = case(
        EROSION
        + """
[[variant]]
name = "slow"
rule = { name = "local" }
training = { server_learning_rate = 0.1 }
parameters = { weight_grid = 64 }
"""
    )
    erosion, slow = parsed.variants
    assert parsed.names == ("erosion", "slow")
    assert (erosion.study.rule.name, erosion.study.rule.distance_penalty) == (RuleName.WEIGHT_EROSION, 0.02)
    assert slow.study.rule.name is RuleName.LOCAL
    # the rule is replaced, other tables keep what the variant does not change
    assert slow.study.rule.distance_penalty == 0.01
    assert (slow.study.training.batch_size, slow.study.training.server_learning_rate) == (32, 0.1)
    assert (slow.study.parameters.clip_norm, slow.study.parameters.weight_grid) == (4.0, 64)


def test_a_variants_digest_covers_what_decides_its_runs_and_nothing_else() -> None:
    digest = case().variants[0].digest
    other = EROSION.replace("erosion", "another", 1)
    assert case(EROSION + other, "seeds = [5]\nrequesters = 'each'").variants[0].digest == digest
    assert case("# a comment\n" + EROSION, "tuning_seeds = [1]").variants[0].digest == digest
    assert case(EROSION.replace("0.02", "0.03")).variants[0].digest != digest
    assert case(case="sites = 4").variants[0].digest != digest
    assert case(EROSION + "alone_after = 1\n").variants[0].digest != digest
    tuned = EROSION + '[variant.tune]\n"rule.distance_penalty" = [0.1]\n'
    one, two = (case(tuned, f"tuning_seeds = [{seed}]").variants[0].digest for seed in (1, 2))
    assert one != two


@pytest.mark.parametrize(
    ("variants", "table", "message"),
    [
        ("", "", r"there is nothing to run: give one or more tables \[\[variant\]\]"),
        (EROSION + EROSION, "", r"every \[\[variant\]\] has a name of its own, found \['erosion', 'erosion'\]"),
        ('[[variant]]\nname = "a"\n', "", r"variant 'a': key 'rule.name' is missing"),
        ('[[variant]]\nname = "a"\nrule = { name = "best" }\n', "", r"variant 'a': key 'rule.name'.*'weight_erosion'"),
        (EROSION.replace("0.02", "-0.02"), "", r"'rule.distance_penalty': .*greater than or equal to 0.*-0.02"),
        (EROSION.replace("distance_penalty", "penalty"), "", r"unknown key 'rule.penalty'"),
        (EROSION + "alone_after = 3\n", "", r"'alone_after': found 3, the study has 3 rounds"),
        (EROSION, "dataset = 1", r"\[case\]: unknown key 'dataset'"),
        (EROSION, "seeds = [-1]", r"\[case\]: key 'seeds.0'"),
        (EROSION + "[variant.tune]\nrule = [1]\n", "tuning_seeds = [1]", r"'tune.rule': give a key of model"),
        (EROSION + '[variant.tune]\n"rule.size_penalty" = []\n', "tuning_seeds = [1]", "at least one value"),
        (EROSION + '[variant.tune]\n"rule.size_penalty" = [0.1]\n', "", "tuning needs .* tuning_seeds"),
    ],
)
def test_what_is_wrong_in_a_case_is_named(variants: str, table: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"case.toml.*{message}"):
        case(variants, table)


def test_a_file_without_the_case_table_is_no_case(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"a case has one table \[case\]"):
        parse_case('name = "x"', "study.toml")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_case(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("variants", "table", "message"),
    [
        (EROSION, "requesters = ['north']", r"key 'case.requesters': found \['north'\], the sites are \['city-hosp"),
        (
            EROSION.replace("0.02", '0.02, second_weights = [{ site = "x", weight = 0.5 }]'),
            "",
            r"names \['x'\], no contributors",
        ),
    ],
)
def test_what_does_not_fit_the_sites_is_refused_before_round_1(
    tmp_path: Path, variants: str, table: str, message: str
) -> None:
    told: list[object] = []
    with pytest.raises(ConfigurationError, match=message):
        run_case(case(variants, table), CaseOptions(tmp_path), told.append)
    assert told == []


@pytest.mark.parametrize(
    ("variant", "table", "message"),
    [
        ('rule = { name = "multi_krum", byzantine = 2 }', "", "needs 7 sites with the requester, found 5"),
        ('rule = { name = "fedavg", byzantine = 2 }', "", "takes no option 'byzantine', found 2"),
        ('rule = { name = "multi_krum" }', 'policy = { may_open = ["distances"] }', "opens pairs"),
        (
            'rule = { name = "weight_erosion" }\ntune = { "rule.size_penalty" = [0.1, -0.1] }',
            "tuning_seeds = [9]",
            "'rule.size_penalty'.*found -0.1",
        ),
        (
            'rule = { name = "fedavg" }\nparameters = { least_contributors = 9 }',
            "",
            "4 sites .* too few for least_contributors=9",
        ),
    ],
)
def test_a_mistake_in_the_last_variant_is_found_before_the_first_one_runs(
    tmp_path: Path, variant: str, table: str, message: str
) -> None:
    told: list[object] = []
    both = f'{EROSION}\n[[variant]]\nname = "second"\n{variant}\n'
    with pytest.raises(ConfigurationError, match=f"case.toml: variant 'second': .*{message}"):
        run_case(case(both, table), CaseOptions(tmp_path), told.append)
    assert told == []


def test_what_the_options_name_must_be_in_the_case(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no variant 'fedavg'; it has erosion"):
        run_case(case(), CaseOptions(tmp_path, only=("fedavg",)))
    same_round = case(EROSION.replace("0.02", '0.02, erosion_applies = "same_round"'))
    with pytest.raises(ConfigurationError, match=r"same_round.*plain simulation only"):
        run_case(same_round, CaseOptions(tmp_path, protection=Protection.SECURE))
    with pytest.raises(ConfigurationError, match="data set 'rocks' is none of breast_cancer"):
        run_case(parse_case(case_text(EROSION, data="rocks"), "x"), CaseOptions(tmp_path))


def test_a_site_that_has_no_test_part_cannot_be_the_requester(tmp_path: Path) -> None:
    one, digits = "sites = 10\nrequesters = ['site-1']", 'kind = "linear"\nclasses = 10'
    only_first = parse_case(case_text(EROSION, data="digits", case=one, model=digits, inputs=64), "case.toml")
    with pytest.raises(ConfigurationError, match="'site-1' cannot be the requester"):
        run_case(only_first, CaseOptions(tmp_path))


def test_a_variants_own_policy_takes_the_cases_place_and_decides_its_runs(tmp_path: Path) -> None:
    strict = "seeds = [0]\npolicy = { largest_share = 0.001, least_isolation = 0.0 }"
    free = EROSION + "policy = { least_contributors = 1, largest_share = 1.0, least_isolation = 0.0 }\n"
    (alone,) = run_case(case(EROSION, strict), CaseOptions(tmp_path / "strict"))
    (shared,) = run_case(case(free, strict), CaseOptions(tmp_path / "free"))
    assert (alone.end, alone.released_rounds) == ("local_only", 0)
    assert (shared.end, shared.released_rounds) == ("completed", 3)
    assert case(free, strict).variants[0].digest != case(EROSION, strict).variants[0].digest


@pytest.mark.parametrize("choice", ['split = "by_age"', "sites = 7"])
def test_a_choice_that_the_data_set_does_not_offer_is_refused(tmp_path: Path, choice: str) -> None:
    with pytest.raises(ConfigurationError, match=r"breast_cancer: .* found s.*: leave it out"):
        run_case(case(case=choice), CaseOptions(tmp_path))


def test_the_first_site_is_the_requester_unless_told_otherwise() -> None:
    federation = breast_cancer_five_hospitals(0)
    assert requesters_of(case(), federation) == ("city-hospital",)
    assert requesters_of(case(case="requesters = ['city-hospital']"), federation) == ("city-hospital",)
    assert len(requesters_of(case(case="requesters = 'each'"), federation)) == 5


@cache
def shipped(name: str) -> Case:
    return read_case(STUDIES / f"{name}.toml")


@pytest.mark.parametrize("name", CASES)
def test_every_case_in_the_house_is_whole(name: str) -> None:
    """Data set, variants, every tuned combination, and the numbers that go together."""
    found = shipped(name)
    assert found.table.data in SOURCES
    for variant in found.variants:
        for settings in combinations(variant):
            study = variant.with_settings(settings, name)
            model = model_spec(study.model.kind, study.model.inputs, study.model.hidden, study.model.width)  # type: ignore[arg-type]
            own = int(study.rule.name.self_weighted)
            StudyParameters(dimension=dimension(model) + own, **study.parameters.model_dump())


def test_the_mnist_cases_are_one_family() -> None:
    """28 studies, alike but for the distribution, the number of sites and p_d = 0.1 / n."""
    names = {name for name in CASES if name.startswith("mnist_")}
    assert names == {f"mnist_{letter}_{sites}" for letter in "abcdefg" for sites in (10, 20, 50, 100)}
    for name in names:
        found = shipped(name)
        _, letter, sites = name.split("_")
        assert found.name == f"mnist-{letter}-{sites}"
        assert (found.table.split, found.table.sites) == (letter.upper(), int(sites))
        for variant in ("weight_erosion", "weight_erosion_same_round"):
            penalty = found.variant(variant).study.rule.distance_penalty
            assert penalty == pytest.approx(0.1 / int(sites), rel=1e-12)


# --- steps ------------------------------------------------------------------------------------------------------------

POLICY = SitePolicy()
ROSTER = make_parties("steps", "s0", [SiteEntry(f"s{k}", 50) for k in range(12)], bytes(32)).roster.message


@pytest.mark.parametrize("name", CASES)
def test_every_variant_of_a_shipped_study_is_within_the_default_caps(name: str) -> None:
    """Variants that sites could be asked: a baseline of the literature runs in one process alone."""
    for variant in shipped(name).variants:
        if variant.table.baseline is not None:
            continue
        rule = variant.study.rule.model_copy(update={"erosion_applies": "next_round"})
        study = study_from_table(variant.study.model_copy(update={"rule": rule}), name, ROSTER, None)
        check_steps_allowed(study, POLICY)
        if state_vectors(study.rule.name) == 1:  # the others divide by what they saw, whatever C is
            with pytest.raises(PolicyRefusal, match="largest_step"):
                check_steps_allowed(with_clip_norm(study, 2.0**100), POLICY)


def with_clip_norm(study: Study, clip_norm: float) -> Study:
    return study.model_copy(update={"parameters": study.parameters.model_copy(update={"clip_norm": clip_norm})})
