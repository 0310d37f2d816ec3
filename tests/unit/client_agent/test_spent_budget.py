"""A site's count of its privacy budget: what it refuses, what it writes before, what a broken file does."""

from __future__ import annotations

from pathlib import Path

import pytest

from client_agent.site.budget.accounting import Steps, epsilon_of, share_used
from client_agent.site.budget.spent_budget import BudgetMemory, Spent, Training
from client_agent.study.spending import require_room_for, training_of
from protocol.errors import Clause, ConfigurationError, PolicyRefusal
from protocol.messages.control import PrivacySpec, Study, TrainingSpec
from protocol.policy.site_policy import SitePolicy
from tests.unit.client_agent.federation import study

DELTA = 1e-3
EXAMPLES = 100
PRIVACY = PrivacySpec(record_clip=1.0, noise_multiplier=2.0)


def noised(name: str = "noised", rounds: int = 10) -> Study:
    training = TrainingSpec(update="local_sgd", batch_size=20, epochs=2)
    return study().model_copy(update={"name": name, "rounds": rounds, "privacy": PRIVACY, "training": training})


def training(name: str = "noised", number: int = 1, examples: int = EXAMPLES) -> Training:
    return training_of(noised(name), PRIVACY, examples, number)


def epsilon(steps: int) -> float:
    return epsilon_of([Steps(0.2, 2.0, steps)], DELTA)


def policy(steps: int) -> SitePolicy:
    return SitePolicy(epsilon=smallest_budget([Steps(0.2, 2.0, steps)], DELTA), delta=DELTA)


def smallest_budget(steps: list[Steps], delta: float) -> float:
    """The smallest epsilon that holds these steps, to a part in a billion."""
    low, high = epsilon_of(steps, delta) / 2, 100.0
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        try:
            fits = share_used(steps, middle, delta) <= 1
        except ConfigurationError:
            fits = False
        low, high = (low, middle) if fits else (middle, high)
    return high


def test_a_training_is_counted_by_its_steps_and_on_disk_before_anything_else(tmp_path: Path) -> None:
    budget = BudgetMemory(tmp_path / "budget")
    budget.charge(training(), policy(20))
    assert training().steps == 10
    again = BudgetMemory(tmp_path / "budget")
    assert again.spent.trainings == (training(),)
    assert again.epsilon(DELTA) == pytest.approx(epsilon(10))
    assert again.rounds() == {(noised().digest(), 1)}


def test_every_start_counts_and_the_budget_is_never_exceeded(tmp_path: Path) -> None:
    budget = BudgetMemory(tmp_path / "budget")
    for _ in range(2):
        budget.charge(training(), policy(20))  # a crash, and once more
    with pytest.raises(
        PolicyRefusal,
        match=r"^budget_spent: .* epsilon .* 100.0% of it is used, and with this round it would be 150.0%",
    ) as refused:
        budget.charge(training(number=2), policy(20))
    assert refused.value.clause is Clause.BUDGET_SPENT
    assert refused.value.told == "budget_spent: this site's privacy budget does not hold it"
    assert len(BudgetMemory(tmp_path / "budget").spent.trainings) == 2
    budget.charge(training(number=2), SitePolicy())  # without a budget it is counted all the same
    assert budget.epsilon(DELTA) == pytest.approx(epsilon(30))


def test_other_studies_and_other_data_sizes_count_together(tmp_path: Path) -> None:
    budget = BudgetMemory(tmp_path / "budget")
    budget.charge(training("one"), SitePolicy())
    budget.charge(training("other", examples=50), SitePolicy())
    both = epsilon_of([Steps(0.2, 2.0, 10), Steps(0.4, 2.0, 6)], DELTA)
    assert budget.epsilon(DELTA) == pytest.approx(both)
    assert budget.epsilon(DELTA, noised("one").digest()) == pytest.approx(epsilon(10))


def test_a_study_is_asked_about_by_the_rounds_that_are_left(tmp_path: Path) -> None:
    budget, limits = BudgetMemory(tmp_path / "budget"), policy(50)
    require_room_for(noised(rounds=5), EXAMPLES, budget, limits)
    with pytest.raises(PolicyRefusal, match="with its 6 rounds"):
        require_room_for(noised(rounds=6), EXAMPLES, budget, limits)
    for number in range(1, 5):
        one = training_of(noised(rounds=5), PRIVACY, EXAMPLES, number)
        budget.charge(one, limits)
    require_room_for(noised(rounds=5), EXAMPLES, budget, limits)
    budget.charge(training_of(noised(rounds=5), PRIVACY, EXAMPLES, 5), limits)
    require_room_for(noised(rounds=5), EXAMPLES, budget, limits)
    require_room_for(study(), EXAMPLES, budget, limits)


def test_a_delta_that_shows_whole_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"0.01 is not below 1 / 100"):
        BudgetMemory(tmp_path / "b").charge(training(), SitePolicy(epsilon=50.0, delta=0.01))


@pytest.mark.parametrize("content", [b"", b"{}x", b'{"trainings": [{"study": "noised"}]}', b'{"trainings": 3}'])
def test_a_count_that_is_not_what_was_written_stops_the_agent(tmp_path: Path, content: bytes) -> None:
    folder = tmp_path / "budget"
    folder.mkdir()
    (folder / "spent.json").write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"not a file of this site's memory of budget .* restore it"):
        BudgetMemory(folder)


def test_sums_under_noise_of_the_servers_are_read_and_count_for_nothing(tmp_path: Path) -> None:
    """As an older version wrote them: they hid a site and bound nothing about a record."""
    folder = tmp_path / "budget"
    folder.mkdir()
    of_site = training(number=2).model_copy(update={"unit": "site", "examples": 1, "batch_size": 1, "steps": 1})
    (folder / "spent.json").write_text(Spent(trainings=(training(), of_site)).model_dump_json())
    budget = BudgetMemory(folder)
    assert budget.epsilon(DELTA) == pytest.approx(epsilon(10))
    assert budget.rounds() == {(noised().digest(), 1)}
    budget.charge(training(number=3), SitePolicy())
    assert BudgetMemory(folder).spent.trainings == (training(), of_site, training(number=3))


def test_an_operators_word_is_kept(tmp_path: Path) -> None:
    budget = BudgetMemory(tmp_path / "budget")
    budget.begin_after([("ab" * 32, 3), ("ab" * 32, 1)])
    budget.begin_after([("ab" * 32, 1), ("cd" * 32, 1)])
    again = BudgetMemory(tmp_path / "budget")
    assert again.rounds() == {("ab" * 32, 1), ("ab" * 32, 3), ("cd" * 32, 1)}
    assert again.epsilon(DELTA) == 0
