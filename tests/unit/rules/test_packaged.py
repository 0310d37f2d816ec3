"""What is demanded of a rule that a package brings, once and in every round."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from protocol.errors import ConfigurationError
from protocol.messages.control import ListedWeight, RuleName
from protocol.parameters import Needs
from protocol.rules.fedavg import FedAvg
from protocol.rules.interface import Measured, RuleState, SiteFacts
from protocol.rules.registry import SEPARATOR, CheckedRule, PackagedRule, packaged_rule_for

GRID = 8
SITES = (SiteFacts(name="a", samples=10), SiteFacts(name="b", samples=20))
MEASURED = Measured(round=1, requester_norm=1.0, took_part=("a", "b"))


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid")
    step: int = 1


class Loose(BaseModel):
    step: int = 1


class OtherState(RuleState):
    more: int = 0


@dataclass(frozen=True)
class Answering(FedAvg):
    """FedAvg that gives what it is told to."""

    answers: dict[str, Any] = field(default_factory=dict)

    @property
    def needs(self) -> Needs:
        return self.answers.get("needs", Needs.NOTHING)

    def init(self, sites: tuple[SiteFacts, ...]) -> RuleState:
        return self.answers.get("init", super().init(sites))

    def select(self, state: RuleState, measured: Measured) -> tuple[str, ...]:
        return self.answers.get("select", measured.took_part)

    def numerators(self, state: RuleState) -> tuple[ListedWeight, ...]:
        return self.answers.get("numerators", super().numerators(state))


def rule(selects: bool = False, **answers: object) -> CheckedRule:
    offered = PackagedRule(Options, lambda options, batch_size, grid: Answering(grid, None, True, selects, answers))
    return packaged_rule_for("acme:try", offered, {}, batch_size=16, grid=GRID)


def test_a_rule_that_cannot_be_made_with_its_options_is_refused_by_name() -> None:
    def make(options: Any, batch_size: int, grid: int) -> FedAvg:
        raise ValueError(f"a step of {options.step} is none")

    with pytest.raises(ConfigurationError, match="rule 'acme:try': a step of 3 is none"):
        packaged_rule_for("acme:try", PackagedRule(Options, make), {"step": 3}, batch_size=16, grid=GRID)


def test_no_rule_of_the_protocol_has_a_packages_name() -> None:
    assert not any(SEPARATOR in name.value for name in RuleName)


def test_a_rule_is_made_of_its_own_options_and_the_studys_numbers() -> None:
    made: list[tuple[int, int, int]] = []

    def make(options: Options, batch_size: int, grid: int) -> FedAvg:
        made.append((options.step, batch_size, grid))
        return FedAvg(grid)

    packaged_rule_for("acme:try", PackagedRule(Options, make), {"step": 3}, batch_size=16, grid=GRID)
    assert made == [(3, 16, GRID)]


@pytest.mark.parametrize(
    ("offered", "options", "message"),
    [
        (3, {}, "the entry point leads to int, expected a PackagedRule"),
        (FedAvg, {}, "the entry point leads to type"),
        (PackagedRule(Loose, lambda *_: FedAvg(GRID)), {}, "extra='forbid'"),
        (PackagedRule(Options, lambda *_: FedAvg(GRID)), {"stepp": 3}, r"unknown key 'stepp'.* did you mean 'step'"),
        (PackagedRule(Options, lambda *_: FedAvg(GRID)), {"step": "far"}, "key 'step': .*found 'far'"),
        (PackagedRule(Options, lambda *_: None), {}, r"make\(\) gave NoneType"),  # type: ignore[arg-type]
        (PackagedRule(Options, lambda *_: Answering(GRID, answers={"needs": Needs.WEIGHTED_NORMS})), {}, "WEIGHTED"),
        (PackagedRule(Options, lambda *_: Answering(GRID, answers={"needs": "norms"})), {}, "'needs' is 'norms'"),
    ],
)
def test_what_is_no_rule_is_refused(offered: object, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"rule 'acme:try': .*{message}"):
        packaged_rule_for("acme:try", offered, options, batch_size=16, grid=GRID)


def test_an_honest_rule_passes_unchanged() -> None:
    checked, plain = rule(), FedAvg(GRID)
    state = checked.admit(checked.init(()), SITES)
    assert state == plain.init(SITES)
    assert checked.select(state, MEASURED) == ("a", "b")
    assert checked.numerators(checked.apply(state, MEASURED)) == plain.numerators(plain.apply(state, MEASURED))
    assert rule(selects=True, select=("b",)).select(state, MEASURED) == ("b",)


@pytest.mark.parametrize(
    ("selects", "selected"), [(True, ("a", "c")), (True, ("a", "a")), (False, ("a",)), (False, ("a", "a"))]
)
def test_a_selection_of_others_or_by_a_rule_that_does_not_select_is_refused(
    selects: bool, selected: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigurationError, match=r"rule 'acme:try': select\(\) gave"):
        rule(selects, select=selected).select(FedAvg(GRID).init(SITES), MEASURED)


@pytest.mark.parametrize("listed", [[("a", GRID + 1)], [("c", 1)], [("a", 1), ("a", 1)]])
def test_a_list_of_others_or_beyond_the_grid_is_refused(listed: list[tuple[str, int]]) -> None:
    weights = tuple(ListedWeight(site=site, numerator=numerator) for site, numerator in listed)
    with pytest.raises(ConfigurationError, match=r"rule 'acme:try': numerators\(\) gave .*, each once, with 1 to 8"):
        rule(numerators=weights).numerators(FedAvg(GRID).init(SITES))


def test_a_state_that_a_checkpoint_would_lose_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"init\(\) gave .*, expected a RuleState"):
        rule(init=OtherState(sites=())).init(())
