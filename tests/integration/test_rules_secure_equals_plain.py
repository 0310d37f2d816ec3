"""Every rule, secure and plain: the same weights, sums over the same sites, models within the derived bound."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

from harness.attack.forgeries import wrap_around_entry
from harness.datasets.bundled import breast_cancer_five_hospitals, digits_sites
from harness.demo.studies import study_of
from harness.engine.history import RoundKind, RoundRecord, RunHistory
from harness.engine.run_state import Attendance, Conditions
from protocol.arithmetic.ring import Ring
from protocol.errors import ConfigurationError
from protocol.messages.control import RuleName, RuleSpec, Study
from protocol.parameters import Needs
from protocol.policy.site_policy import SitePolicy
from protocol.rules.weight_erosion import SecondWeight
from tests.integration.agents import changed
from tests.kit.bounds.error_bound import bound_of_run
from tests.unlimited import CHANGING_DIGITS, LONG_BREAST_CANCER, run_plain, run_protected

pytestmark = pytest.mark.uncounted

FEDERATION = breast_cancer_five_hospitals(0)
ROUNDS = 5
CLINIC = "university-clinic"


@dataclass(frozen=True)
class Case:
    """A rule with its options, and the grid of the weights: coarse where sites weigh themselves, for their policy."""

    rule: RuleSpec
    grid: int = 32
    policy: SitePolicy | None = None


CASES = {
    "weight_erosion": Case(RuleSpec(name=RuleName.WEIGHT_EROSION, distance_penalty=0.05)),
    "weight_erosion_second_weights": Case(
        RuleSpec(
            name=RuleName.WEIGHT_EROSION,
            distance_penalty=0.02,
            epochs_counted="batches",
            second_weights=(SecondWeight(site=CLINIC, weight=0.75),),
        )
    ),
    "fedavg": Case(RuleSpec(name=RuleName.FEDAVG)),
    "fedavg_norm_bound": Case(RuleSpec(name=RuleName.FEDAVG, norm_bound=2.5)),
    "fedavg_by_samples": Case(RuleSpec(name=RuleName.FEDAVG_BY_SAMPLES), grid=2),
    "fedavg_by_samples_norm_bound": Case(
        RuleSpec(name=RuleName.FEDAVG_BY_SAMPLES, norm_bound=5.0),
        grid=2,
        policy=SitePolicy(least_isolation=0.0, may_open=(Needs.WEIGHTED_NORMS,)),
    ),
    "wfedavg": Case(RuleSpec(name=RuleName.WFEDAVG), grid=2),
    # tau = 1: the bound's amplification is at most 1 / tau, and smaller ones make it say nothing
    "fedadagrad": Case(RuleSpec(name=RuleName.FEDADAGRAD, adaptivity=1.0)),
    "fedadam": Case(RuleSpec(name=RuleName.FEDADAM, adaptivity=1.0)),
    "fedyogi": Case(RuleSpec(name=RuleName.FEDYOGI, adaptivity=1.0)),
    "fedyogi_norm_bound": Case(RuleSpec(name=RuleName.FEDYOGI, adaptivity=1.0, norm_bound=2.5)),
    "multi_krum": Case(RuleSpec(name=RuleName.MULTI_KRUM)),
    "influence": Case(RuleSpec(name=RuleName.INFLUENCE)),
    "mallows": Case(RuleSpec(name=RuleName.MALLOWS, measure_every=3)),
    "mallows_raw": Case(RuleSpec(name=RuleName.MALLOWS, criterion="raw")),
    "shrinkage": Case(RuleSpec(name=RuleName.SHRINKAGE)),
    "local": Case(RuleSpec(name=RuleName.LOCAL)),
}
every_rule = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
SAME_SUMS = ("weight_erosion_second_weights", "fedadagrad", "fedyogi", "fedyogi_norm_bound", "mallows_raw")
"""Cases that open and sum the same as another one; only the arithmetic on it, at requester or sites, differs."""
every_sum = pytest.mark.parametrize("case", [pytest.param(CASES[n], id=n) for n in CASES if n not in SAME_SUMS])


def study(case: Case) -> Study:
    made = study_of(replace(LONG_BREAST_CANCER, rounds=ROUNDS), FEDERATION, case.rule.name, "0" * 64, 0)
    assert made.parameters.exact_distances
    parameters = made.parameters.model_copy(update={"weight_grid": case.grid})
    return made.model_copy(update={"rule": case.rule, "parameters": parameters})


def public(record: RoundRecord) -> tuple[object, ...]:
    """The parts of a run that must be the same to the bit."""
    return record.kind, record.handed_out, record.took_part, record.not_selected, record.declined, record.class_totals


def assert_twins(plain: RunHistory, secure: RunHistory, of: Study) -> None:
    assert [public(record) for record in secure.rounds] == [public(record) for record in plain.rounds]
    assert (secure.end, secure.reason) == (plain.end, plain.reason)
    difference = np.linalg.norm(secure.final_model.astype(np.float64) - plain.final_model)
    bound = bound_of_run(plain, of, FEDERATION.sites)
    if plain.shared_rounds:
        assert 0 < difference <= bound
    else:
        assert difference == 0
    # The bound says something: the model itself is far longer.
    assert bound < 0.01 * np.linalg.norm(plain.final_model)


def test_no_rule_is_missing() -> None:
    assert {case.rule.name for case in CASES.values()} == set(RuleName)


@every_rule
def test_secure_and_plain_agree(case: Case) -> None:
    of = study(case)
    plain = run_plain(of, FEDERATION.sites, policy=case.policy)
    secure = run_protected(of, FEDERATION.sites, policy=case.policy, correlation_source="dealer")
    assert_twins(plain, secure, of)
    # influence: by then one site's weight is most of what is sure to be summed, and the policy ends the shared part
    shared = {RuleName.LOCAL: 0, RuleName.INFLUENCE: 4}.get(case.rule.name, ROUNDS)
    apart = case.rule.name.counts_classes + sum(record.kind is RoundKind.MEASURED for record in plain.rounds)
    assert (plain.shared_rounds, len(plain.rounds)) == (shared, ROUNDS + apart)
    assert any(record.kind is RoundKind.MEASURED for record in plain.rounds) is (case.rule.name is RuleName.MALLOWS)
    assert_the_requester_sees_the_same(plain, secure, of)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("weight_erosion", {"tags": True}),
        ("wfedavg", {"tags": True}),
        ("weight_erosion", {"ring_bits": 48}),
        ("fedavg_by_samples", {"ring_bits": 48}),
    ],
)
def test_with_tags_or_in_a_small_ring_they_agree_too(name: str, changes: dict[str, object]) -> None:
    case = CASES[name]
    of = changed(study(case), **changes)
    plain = run_plain(of, FEDERATION.sites, policy=case.policy)
    assert_twins(plain, run_protected(of, FEDERATION.sites, policy=case.policy, correlation_source="dealer"), of)


def test_a_norm_bound_of_a_rule_in_which_sites_weigh_themselves_needs_every_sites_consent() -> None:
    case = CASES["fedavg_by_samples_norm_bound"]
    bounded = study(case).model_copy(update={"rule": case.rule.model_copy(update={"norm_bound": 4.3})})
    first = run_protected(bounded, FEDERATION.sites, policy=case.policy, correlation_source="dealer").rounds[0]
    longer = {one.site for one in first.norms if one.value > 4.3}
    assert longer == {one.site for one in first.norms} - set(first.took_part) == {"screening-centre"}
    with pytest.raises(ConfigurationError, match="may_open: the study's rule opens weighted_norms of this site"):
        run_protected(bounded, FEDERATION.sites, correlation_source="dealer")


def assert_the_requester_sees_the_same(plain: RunHistory, secure: RunHistory, of: Study) -> None:
    """Round 1 starts from the same model: only fixed point differs, at weight 1 by less than 1 ring unit per coordinate
    of each vector, 1/2 more for the query's rounding (docs/protocol.md 8).
    """
    first, theirs = secure.rounds[0], plain.rounds[0]
    unit = np.sqrt(of.parameters.dimension) / of.parameters.scale
    opened = {
        Needs.DISTANCES: (first.distances, theirs.distances, 2.5 * unit),
        of.rule.needs if of.rule.needs.of_norms else Needs.NORMS: (first.norms, theirs.norms, unit),
        # |<x, v>| moves by less than (|x| + |v| + 1 ring unit) 1.5 ring units, both norms at most C
        Needs.INNER_PRODUCTS: (
            first.inner_products,
            theirs.inner_products,
            (2 * of.parameters.clip_norm + unit) * 1.5 * unit,
        ),
    }
    for needs, (ours, others, allowed) in opened.items():
        assert [one.site for one in ours] == [one.site for one in others]
        measured_apart = of.rule.name.declared.measures is not Needs.NOTHING
        assert len(ours) == (4 if of.rule.needs is needs and not measured_apart else 0)
        for one, other in zip(ours, others, strict=True):
            assert abs(one.value - other.value) <= allowed
    pairs = Needs.PAIRS in (of.rule.needs, of.rule.name.declared.measures)
    assert len(first.pairs) == (10 if pairs else 0)
    for pair, other_pair in zip(first.pairs, theirs.pairs, strict=True):
        assert (pair.first, pair.second) == (other_pair.first, other_pair.second)
        assert abs(pair.value - other_pair.value) <= 2 * unit


@every_sum
def test_secure_and_plain_agree_with_sites_away(case: Case) -> None:
    """A late joiner, a missed round, and one with too few sites."""
    of = study(case)
    missed = {(2, CLINIC), (3, CLINIC), (3, "screening-centre")}
    away = Attendance(joins=(("oncology-centre", 2),), missed=frozenset(missed))
    plain = run_plain(of, FEDERATION.sites, policy=case.policy, attendance=away)
    under = Conditions(attendance=away)
    secure = run_protected(of, FEDERATION.sites, policy=case.policy, correlation_source="dealer", conditions=under)
    assert_twins(plain, secure, of)
    if case.rule.name is not RuleName.LOCAL:
        assert "oncology-centre" not in [weight.site for weight in plain.rounds[0].handed_out]
        # multi-Krum: four sites are too few, so rounds 1 and 2 were measured for nothing; a third is not allowed
        ended = case.rule.name is RuleName.MULTI_KRUM
        assert plain.rounds[2].kind is (RoundKind.ALONE if ended else RoundKind.SKIPPED)


@every_sum
def test_a_site_that_fails_its_range_check_is_as_good_as_away(case: Case) -> None:
    """Also in the round of class counts."""
    hostile = (1, 3)

    def tamper(round_number: int, site: str, encoded: Ring) -> Ring:
        return wrap_around_entry(encoded) if site == CLINIC and round_number in hostile else encoded

    of = study(case)
    away = Attendance(missed=frozenset((number, CLINIC) for number in hostile))
    plain = run_plain(of, FEDERATION.sites, policy=case.policy, attendance=away)
    secure = run_protected(of, FEDERATION.sites, policy=case.policy, correlation_source="dealer", tamper=tamper)
    assert_twins(plain, secure, of)
    if case.rule.name is not RuleName.LOCAL:
        expected = [
            (*record.failed_check, CLINIC) if record.round in hostile and CLINIC in listed else record.failed_check
            for record in plain.rounds
            for listed in [[weight.site for weight in record.handed_out]]
        ]
        assert [set(record.failed_check) for record in secure.rounds] == [set(names) for names in expected]


@pytest.mark.parametrize("name", ["weight_erosion", "multi_krum", "influence", "wfedavg", "fedavg_norm_bound"])
def test_products_by_oblivious_transfer_open_the_same_as_a_dealers(name: str) -> None:
    of = study(CASES[name]).model_copy(update={"rounds": 2})
    dealer, transfer = (run_protected(of, FEDERATION.sites, correlation_source=source) for source in ("dealer", "ot"))
    assert transfer.rounds == dealer.rounds
    np.testing.assert_array_equal(transfer.final_model, dealer.final_model)


SKETCHED = {
    "weight_erosion": RuleSpec(name=RuleName.WEIGHT_EROSION),
    "fedavg_norm_bound": RuleSpec(name=RuleName.FEDAVG, norm_bound=100.0),
    "fedavg_by_samples": RuleSpec(name=RuleName.FEDAVG_BY_SAMPLES),
    "wfedavg": RuleSpec(name=RuleName.WFEDAVG),
    "multi_krum": RuleSpec(name=RuleName.MULTI_KRUM),
    "influence": RuleSpec(name=RuleName.INFLUENCE),
}


@pytest.mark.parametrize("rule", SKETCHED.values(), ids=SKETCHED)
def test_the_first_update_of_a_sketched_model_agrees(rule: RuleSpec) -> None:
    """Every site's update from the same model is the same to the bit, so that only encoding and sketch differ."""
    federation = digits_sites(0, 10)
    of = study_of(replace(CHANGING_DIGITS, rounds=1), federation, rule.name, "0" * 64, 0)
    assert not of.parameters.exact_distances
    parameters = of.parameters.model_copy(update={"weight_grid": 2})
    of = of.model_copy(update={"rule": rule, "parameters": parameters})
    plain = run_plain(of, federation.sites)
    secure = run_protected(of, federation.sites, correlation_source="dealer")
    assert [public(record) for record in secure.rounds] == [public(record) for record in plain.rounds]
    record, twin = plain.rounds[-1], secure.rounds[-1]
    assert record.kind is RoundKind.RELEASED
    # n sites' coordinates move by less than a ring unit each, over W; one more unit where W is opened too; the average
    # is rounded to float32, then the step and the model, of which no coordinate reaches 2
    W, n = record.sum_of_weights or 0.0, 1 + len(record.took_part)
    assert twin.sum_of_weights == pytest.approx(W, abs=n / parameters.encoded_norm)
    unit = (math.sqrt(parameters.dimension) + 1) / parameters.scale
    rounding = 2 * 2.0**-24 * (2 * parameters.clip_norm + 2 * math.sqrt(parameters.dimension))
    step = of.training.server_learning_rate
    difference = np.linalg.norm(secure.final_model.astype(np.float64) - plain.final_model)
    assert 0 < difference <= step * n * unit / (W - n / parameters.encoded_norm) + rounding
    # a length's relative deviation is at most sqrt(1 / 2k); <Sx, Sv> / 4 deviates by at most sqrt(2 / k) |x| |v|
    tolerance = 6 / math.sqrt(2 * parameters.sketch_length)
    for ours, theirs in ((twin.distances, record.distances), (twin.norms, record.norms)):
        for one, other in zip(ours, theirs, strict=True):
            assert one.value == pytest.approx(other.value, rel=tolerance)
    for pair, other_pair in zip(twin.pairs, record.pairs, strict=True):
        assert pair.value == pytest.approx(other_pair.value, rel=tolerance)
    for one, other in zip(twin.inner_products, record.inner_products, strict=True):
        assert abs(one.value - other.value) <= 2 * tolerance * parameters.clip_norm**2
