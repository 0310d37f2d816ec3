"""Every rule by its name, its options refused by name, and studies with too few sites."""

from __future__ import annotations

import pytest

from protocol.errors import ConfigurationError, ProtocolViolation
from protocol.messages.control import RuleName, RuleSpec
from protocol.parameters import Needs
from protocol.policy.site_policy import SitePolicy
from protocol.rules.fedavg import FedAvg, FedAvgBySamples, FedOpt, WFedAvg
from protocol.rules.influence import Influence
from protocol.rules.interface import Measured, RiskRule, RuleState, SiteFacts
from protocol.rules.local import Local
from protocol.rules.mallows import Mallows, MallowsOptions
from protocol.rules.multi_krum import MultiKrum
from protocol.rules.registry import OPTIONS, require_sites, rule_for
from protocol.rules.shrinkage import Shrinkage
from protocol.rules.weight_erosion import SecondWeight, WeightErosion

SITES = ("b", "c", "d", "e")
SECOND = (SecondWeight(site="c", weight=0.5),)
OTHER_THAN_DEFAULT: dict[str, object] = {
    "distance_penalty": 0.5,
    "size_penalty": 0.0,
    "erosion_applies": "same_round",
    "epochs_counted": "batches",
    "second_weights": SECOND,
    "server_momentum": 0.9,
    "second_moment_decay": 0.5,
    "adaptivity": 0.5,
    "byzantine": 2,
    "selected": 3,
    "largest_count": 100,
    "norm_bound": 0.5,
    "step": 0.25,
    "criterion": "raw",
    "bias_factor": 1.0,
    "variance_factor": 1.0,
    "measure_every": 3,
    "averages": "sums",
}
OPENS_ALREADY = (RuleName.WEIGHT_EROSION, RuleName.MULTI_KRUM, RuleName.INFLUENCE, RuleName.MALLOWS)


def spec(name: RuleName, **options: object) -> RuleSpec:
    return RuleSpec.model_validate({"name": name, **options})


def test_every_option_is_listed_here() -> None:
    assert set(OTHER_THAN_DEFAULT) == set(RuleSpec.model_fields) - {"name"}
    assert set(OPTIONS) == set(RuleName)


@pytest.mark.parametrize(
    ("asked", "rule"),
    [
        (
            spec(
                RuleName.WEIGHT_EROSION,
                distance_penalty=0.5,
                size_penalty=0.1,
                epochs_counted="batches",
                second_weights=SECOND,
            ),
            WeightErosion(0.5, 0.1, 7, 16, "batches", SECOND),
        ),
        (spec(RuleName.FEDAVG), FedAvg(16)),
        (spec(RuleName.FEDAVG, norm_bound=2.0), FedAvg(16, 2.0)),
        (spec(RuleName.FEDAVG_BY_SAMPLES, largest_count=10), FedAvgBySamples(16)),
        (spec(RuleName.WFEDAVG), WFedAvg(16)),
        (spec(RuleName.FEDADAGRAD), FedOpt(16)),
        (spec(RuleName.FEDADAM, norm_bound=2.0), FedOpt(16, 2.0)),
        (spec(RuleName.FEDYOGI, adaptivity=0.1), FedOpt(16)),
        (spec(RuleName.MULTI_KRUM, byzantine=0, selected=2), MultiKrum(16, 0, 2)),
        (spec(RuleName.INFLUENCE, step=0.25), Influence(0.25, 16)),
        (spec(RuleName.MALLOWS, measure_every=3), Mallows(MallowsOptions(measure_every=3), 16)),
        (spec(RuleName.SHRINKAGE), Shrinkage(16)),
        (spec(RuleName.LOCAL), Local()),
    ],
)
def test_each_name_gives_its_rule_with_its_options(asked: RuleSpec, rule: object) -> None:
    made = rule_for(asked, batch_size=7, grid=16)
    assert made == rule
    assert type(made) is type(rule)
    assert made.needs is asked.needs


@pytest.mark.parametrize("name", list(RuleName))
@pytest.mark.parametrize("option", list(OTHER_THAN_DEFAULT))
def test_an_option_the_rule_does_not_take_is_refused_by_name(name: RuleName, option: str) -> None:
    if option == "norm_bound" and name in OPENS_ALREADY:
        with pytest.raises(ValueError, match="norm_bound is for averaging rules"):
            spec(name, norm_bound=0.5)
        return
    raw = {"criterion": "raw"} if option == "variance_factor" and name is RuleName.MALLOWS else {}
    asked = spec(name, **{option: OTHER_THAN_DEFAULT[option], **raw})
    if option in OPTIONS[name]:
        rule_for(asked, batch_size=1, grid=32)
        return
    with pytest.raises(ConfigurationError, match=f"'{name.value}' takes no option '{option}'"):
        rule_for(asked, batch_size=1, grid=32)


@pytest.mark.parametrize("name", [name for name in RuleName if name.self_weighted])
def test_a_norm_that_shows_a_weight_is_a_need_of_its_own_which_no_policy_allows_by_default(name: RuleName) -> None:
    rule = rule_for(spec(name, norm_bound=1.0), batch_size=1, grid=32)
    assert rule.needs is spec(name, norm_bound=1.0).needs is Needs.WEIGHTED_NORMS
    assert Needs.WEIGHTED_NORMS not in SitePolicy().may_open
    opened = Measured(round=1, norms=(("b", 1.0), ("c", 1.0000001)), requester_norm=5.0, took_part=("b", "c"))
    assert rule.select(rule.init(()), opened) == ("b",)


def test_an_adaptivity_beyond_float32_is_refused_before_the_study() -> None:
    with pytest.raises(ConfigurationError, match="adaptivity lies between"):
        rule_for(spec(RuleName.FEDADAM, adaptivity=1e30), batch_size=1, grid=32)


@pytest.mark.parametrize("name", [name for name in RuleName if name is not RuleName.LOCAL])
def test_what_every_rule_promises(name: RuleName) -> None:
    rule = rule_for(spec(name), batch_size=1, grid=32)
    assert rule.selects is (name is RuleName.MULTI_KRUM)
    by_risk = name in (RuleName.MALLOWS, RuleName.SHRINKAGE)
    assert isinstance(rule, RiskRule) is by_risk
    assert rule.weights_never_rise is (name is not RuleName.INFLUENCE and not by_risk)
    state = rule.init(tuple(SiteFacts(name=site, samples=5) for site in SITES))
    first = () if name is RuleName.MALLOWS else tuple((site, 32) for site in SITES)
    assert tuple((w.site, w.numerator) for w in rule.numerators(state)) == first
    assert RuleState.model_validate_json(state.model_dump_json()) == state


def test_a_norm_bound_leaves_out_longer_updates() -> None:
    rule = FedAvg(32, norm_bound=1.0)
    assert rule.needs is Needs.NORMS
    opened = Measured(round=1, norms=(("b", 1.0), ("c", 1.0000001)), requester_norm=5.0, took_part=("b", "c"))
    assert rule.select(rule.init(()), opened) == ("b",)
    assert FedAvg(32).select(rule.init(()), opened) == ("b", "c")
    with pytest.raises(ProtocolViolation, match=r"no norm was opened for \['d'\]"):
        rule.select(rule.init(()), opened.model_copy(update={"took_part": ("b", "d")}))


class TestRequireSites:
    def test_too_few_for_the_least_number(self) -> None:
        require_sites(spec(RuleName.FEDAVG), SITES, 4)
        with pytest.raises(ConfigurationError, match=r"4 sites besides the requester.*least_contributors=5"):
            require_sites(spec(RuleName.FEDAVG), SITES, 5)

    def test_the_requester_alone_is_enough_for_local_training(self) -> None:
        require_sites(spec(RuleName.LOCAL), (), 3)

    @pytest.mark.parametrize(("byzantine", "needed"), [(0, 3), (1, 5), (2, 7), (10, 23)])
    def test_multi_krum_needs_two_f_and_three(self, byzantine: int, needed: int) -> None:
        asked = spec(RuleName.MULTI_KRUM, byzantine=byzantine)
        contributors = tuple(f"s{i}" for i in range(needed - 1))
        require_sites(asked, contributors)
        with pytest.raises(ConfigurationError, match=f"needs {needed} sites with the requester, found {needed - 1}"):
            require_sites(asked, contributors[1:])

    def test_multi_krum_selects_enough_to_release_and_no_more_than_all_but_f(self) -> None:
        # n = 5, f = 1, the requester may be one of the selected
        for selected in (3, 4, None):
            require_sites(spec(RuleName.MULTI_KRUM, selected=selected), SITES, 2)
        for selected in (1, 2, 5):
            with pytest.raises(ConfigurationError, match=rf"selects {selected} of 5 sites.* allowed are 3 .* to 4 "):
                require_sites(spec(RuleName.MULTI_KRUM, selected=selected), SITES, 2)
        with pytest.raises(ConfigurationError, match="selects 4 of 5"):
            require_sites(spec(RuleName.MULTI_KRUM), SITES, 4)

    def test_second_weights_name_contributors_once(self) -> None:
        require_sites(spec(RuleName.WEIGHT_EROSION, second_weights=SECOND), SITES)
        twice = (*SECOND, SecondWeight(site="c", weight=0.25))
        unknown = (SecondWeight(site="z", weight=1.0),)
        for wrong, name in ((twice, "c"), (unknown, "z")):
            with pytest.raises(ConfigurationError, match=rf"second_weights names \['{name}'\]"):
                require_sites(spec(RuleName.WEIGHT_EROSION, second_weights=wrong), SITES)
