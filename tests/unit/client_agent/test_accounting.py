"""What is spent, against closed forms that do not come from the accountant."""

from __future__ import annotations

import ast
import inspect
import math

import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant

from client_agent.site import privacy_budget
from client_agent.site.privacy_budget import ORDERS, Steps, accountant, epsilon_of, filter_order, noise_for, share_used
from protocol.errors import ConfigurationError

DELTA = 1e-5


def epsilon_by_hand(renyi: list[float], delta: float) -> float:
    """Canonne, Kamath, Steinke 2020, proposition 12, the best over the orders."""
    return min(
        r + math.log1p(-1 / a) - (math.log(delta) + math.log(a)) / (a - 1) for a, r in zip(ORDERS, renyi, strict=True)
    )


def sampled_gaussian(order: int, probability: float, noise: float) -> float:
    """Mironov, Talwar, Zhang 2019, section 3.3: the binomial sum, term by term."""
    logs = [
        math.lgamma(order + 1) - math.lgamma(k + 1) - math.lgamma(order - k + 1)
        + (order - k) * math.log1p(-probability) + k * math.log(probability)
        + k * (k - 1) / (2 * noise**2)
        for k in range(order + 1)
    ]  # fmt: skip
    most = max(logs)
    return (most + math.log(math.fsum(math.exp(one - most) for one in logs))) / (order - 1)


@pytest.mark.parametrize(("noise", "count"), [(1.0, 1), (2.5, 30), (20.0, 1000)])
def test_all_records_in_every_step_is_the_gaussian_mechanism(noise, count):
    renyi = [count * order / (2 * noise**2) for order in ORDERS]
    assert epsilon_of([Steps(1.0, noise, count)], DELTA) == pytest.approx(epsilon_by_hand(renyi, DELTA), rel=1e-9)


@pytest.mark.parametrize(("probability", "noise", "count"), [(0.1, 1.0, 100), (0.01, 0.8, 2000), (0.5, 3.0, 30)])
def test_drawn_records_are_the_sampled_gaussian_mechanism(probability, noise, count):
    renyi = [count * sampled_gaussian(order, probability, noise) for order in ORDERS]
    found = epsilon_of([Steps(probability, noise, count)], DELTA)
    assert found == pytest.approx(epsilon_by_hand(renyi, DELTA), rel=1e-6)


def test_studies_with_other_noise_and_other_data_sizes_add_up():
    one, other = Steps(0.1, 1.0, 50), Steps(0.3, 2.0, 20)
    renyi = [50 * sampled_gaussian(order, 0.1, 1.0) + 20 * sampled_gaussian(order, 0.3, 2.0) for order in ORDERS]
    assert epsilon_of([one, other], DELTA) == pytest.approx(epsilon_by_hand(renyi, DELTA), rel=1e-6)
    assert epsilon_of([one, other], DELTA) == epsilon_of([other, *(Steps(0.1, 1.0, 10) for _ in range(5))], DELTA)
    alone = epsilon_of([one], DELTA), epsilon_of([other], DELTA)
    assert max(alone) < epsilon_of([one, other], DELTA) < sum(alone)


def test_nothing_spent_is_nothing():
    assert epsilon_of([], DELTA) == 0


def test_the_noise_for_an_epsilon_is_the_smallest_that_keeps_it():
    found = noise_for(3.0, DELTA, 0.1, 200, most=100.0)
    assert epsilon_of([Steps(0.1, found, 200)], DELTA) <= 3.0
    assert epsilon_of([Steps(0.1, found * 0.997, 200)], DELTA) > 3.0
    with pytest.raises(ConfigurationError, match="takes more noise than 2"):
        noise_for(0.1, DELTA, 1.0, 200, most=2.0)


def test_the_accountant_is_named_with_its_version():
    assert accountant().startswith("dp-accounting 0.")
    assert "whole orders from 2 to 256" in accountant()


def test_a_budget_is_used_in_proportion_to_rounds_at_the_order_that_it_fixes():
    order = filter_order(4.0, DELTA)
    allowed = 4.0 - math.log1p(-1 / order) + (math.log(DELTA) + math.log(order)) / (order - 1)
    once = share_used([Steps(0.1, 1.0, 1)], 4.0, DELTA)
    assert once == pytest.approx(sampled_gaussian(order, 0.1, 1.0) / allowed, rel=1e-6)
    assert share_used([Steps(0.1, 1.0, 30), Steps(0.1, 1.0, 20)], 4.0, DELTA) == pytest.approx(50 * once)
    assert share_used([], 4.0, DELTA) == 0


@pytest.mark.parametrize(("probability", "noise"), [(1.0, 4.0), (0.1, 1.0), (0.02, 0.8)])
def test_a_budget_that_is_used_up_spends_no_more_than_epsilon_and_not_much_less(probability, noise):
    for epsilon in (1.0, 4.0, 8.0):
        most = int(1 / share_used([Steps(probability, noise, 1)], epsilon, DELTA))
        if most >= 20:
            spent = epsilon_of([Steps(probability, noise, most)], DELTA)
            assert 0.8 * epsilon < spent <= epsilon


def test_a_budget_that_allows_nothing_is_refused():
    with pytest.raises(ConfigurationError, match="allows nothing"):
        share_used([Steps(0.1, 1.0, 1)], 0.001, 1e-9)


@pytest.mark.parametrize(("probability", "noise", "count"), [(1.0, 4.0, 12), (0.1, 1.0, 40), (0.3, 2.0, 7)])
def test_what_a_budget_reads_of_the_accountant_is_what_its_epsilon_says_at_that_order(
    probability: float, noise: float, count: int
) -> None:
    """By the accountant's own conversion, turned around; and by nothing that it keeps to itself."""
    order = filter_order(8.0, DELTA)
    converted = math.log1p(-1 / order) - (math.log(DELTA) + math.log(order)) / (order - 1)
    total = RdpAccountant(orders=[order])
    total.compose(PoissonSampledDpEvent(probability, GaussianDpEvent(noise)), count)
    divergence = total.get_epsilon(DELTA) - converted
    found = share_used([Steps(probability, noise, count)], 8.0, DELTA)
    assert found == pytest.approx(divergence / (8.0 - converted), rel=1e-9)
    names = {
        node.attr for node in ast.walk(ast.parse(inspect.getsource(privacy_budget))) if isinstance(node, ast.Attribute)
    }
    assert not any(name.startswith("_") for name in names)
