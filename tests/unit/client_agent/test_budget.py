"""A site's privacy budget: what a study spends, what the site counts, and the commands that show it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from client_agent.cli import agent_work
from client_agent.cli.study_work import require_own_budget, require_shown_budget
from client_agent.learning.models import dimension, model_spec
from client_agent.learning.study_file import FinishTable
from client_agent.site.privacy_budget import (
    ORDERS,
    BudgetMemory,
    Spent,
    Steps,
    Training,
    accountant,
    budget_memory,
    epsilon_of,
    filter_order,
    noise_for,
    share_used,
)
from client_agent.study.approval import budget_of
from client_agent.study.plain_words import About, in_plain_words
from client_agent.study.privacy_spending import (
    foreseen_epsilon,
    least_spent,
    most_spent,
    own_examples,
    require_room_for,
    training_of,
)
from protocol.errors import Clause, ConfigurationError, PolicyRefusal
from protocol.messages.control import PrivacySpec, Roster, Study, TrainingSpec
from protocol.parameters import StudyParameters
from protocol.policy.site_policy import SitePolicy
from protocol.sharing import Side
from tests.kit.command_line import moiety
from tests.kit.present import present
from tests.unit.client_agent.benches import SITE, FakeServer
from tests.unit.client_agent.federation import ROSTER, keys, study
from tests.unit.client_agent.test_reconciling import HELD

# --- spent budget -----------------------------------------------------------------------------------------------------

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


# --- accounting -------------------------------------------------------------------------------------------------------

TARGET_DELTA = 1e-5


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
    assert epsilon_of([Steps(1.0, noise, count)], TARGET_DELTA) == pytest.approx(
        epsilon_by_hand(renyi, TARGET_DELTA), rel=1e-9
    )


@pytest.mark.parametrize(("probability", "noise", "count"), [(0.1, 1.0, 100), (0.01, 0.8, 2000), (0.5, 3.0, 30)])
def test_drawn_records_are_the_sampled_gaussian_mechanism(probability, noise, count):
    renyi = [count * sampled_gaussian(order, probability, noise) for order in ORDERS]
    found = epsilon_of([Steps(probability, noise, count)], TARGET_DELTA)
    assert found == pytest.approx(epsilon_by_hand(renyi, TARGET_DELTA), rel=1e-6)


def test_studies_with_other_noise_and_other_data_sizes_add_up():
    one, other = Steps(0.1, 1.0, 50), Steps(0.3, 2.0, 20)
    renyi = [50 * sampled_gaussian(order, 0.1, 1.0) + 20 * sampled_gaussian(order, 0.3, 2.0) for order in ORDERS]
    assert epsilon_of([one, other], TARGET_DELTA) == pytest.approx(epsilon_by_hand(renyi, TARGET_DELTA), rel=1e-6)
    assert epsilon_of([one, other], TARGET_DELTA) == epsilon_of(
        [other, *(Steps(0.1, 1.0, 10) for _ in range(5))], TARGET_DELTA
    )
    alone = epsilon_of([one], TARGET_DELTA), epsilon_of([other], TARGET_DELTA)
    assert max(alone) < epsilon_of([one, other], TARGET_DELTA) < sum(alone)


def test_the_noise_for_an_epsilon_is_the_smallest_that_keeps_it():
    found = noise_for(3.0, TARGET_DELTA, 0.1, 200, most=100.0)
    assert epsilon_of([Steps(0.1, found, 200)], TARGET_DELTA) <= 3.0
    assert epsilon_of([Steps(0.1, found * 0.997, 200)], TARGET_DELTA) > 3.0
    with pytest.raises(ConfigurationError, match="takes more noise than 2"):
        noise_for(0.1, TARGET_DELTA, 1.0, 200, most=2.0)


def test_the_accountant_is_named_with_its_version():
    assert accountant().startswith("dp-accounting 0.")
    assert "whole orders from 2 to 256" in accountant()


def test_a_budget_is_used_in_proportion_to_rounds_at_the_order_that_it_fixes():
    order = filter_order(4.0, TARGET_DELTA)
    allowed = 4.0 - math.log1p(-1 / order) + (math.log(TARGET_DELTA) + math.log(order)) / (order - 1)
    once = share_used([Steps(0.1, 1.0, 1)], 4.0, TARGET_DELTA)
    assert once == pytest.approx(sampled_gaussian(order, 0.1, 1.0) / allowed, rel=1e-6)
    assert share_used([Steps(0.1, 1.0, 30), Steps(0.1, 1.0, 20)], 4.0, TARGET_DELTA) == pytest.approx(50 * once)
    assert share_used([], 4.0, TARGET_DELTA) == 0


@pytest.mark.parametrize(("probability", "noise"), [(1.0, 4.0), (0.1, 1.0), (0.02, 0.8)])
def test_a_budget_that_is_used_up_spends_no_more_than_epsilon_and_not_much_less(probability, noise):
    for epsilon in (1.0, 4.0, 8.0):
        most = int(1 / share_used([Steps(probability, noise, 1)], epsilon, TARGET_DELTA))
        if most >= 20:
            spent = epsilon_of([Steps(probability, noise, most)], TARGET_DELTA)
            assert 0.8 * epsilon < spent <= epsilon


def test_a_budget_that_allows_nothing_is_refused():
    with pytest.raises(ConfigurationError, match="allows nothing"):
        share_used([Steps(0.1, 1.0, 1)], 0.001, 1e-9)


# --- most spent -------------------------------------------------------------------------------------------------------

POLICY_DELTA = 1e-5
LOCAL = TrainingSpec(update="local_sgd", batch_size=50, epochs=1)


def noised_study(training: TrainingSpec = LOCAL, noise: float = 2.0) -> Study:
    privacy = PRIVACY.model_copy(update={"noise_multiplier": noise})
    return study().model_copy(update={"privacy": privacy, "rounds": 30, "training": training})


def declaring(*counts: int) -> Roster:
    """Every site declares one of these numbers."""
    sites = tuple(
        party.model_copy(update={"samples": counts[at % len(counts)]}) for at, party in enumerate(ROSTER.sites)
    )
    return ROSTER.model_copy(update={"sites": sites})


def spent(count: int, asked: Study | None = None) -> float:
    of = asked or noised_study()
    return epsilon_of([training_of(of, present(of.privacy), count, 1).times(of.rounds)], POLICY_DELTA)


def test_a_record_more_than_a_batch_holds_spends_more_than_fewer_records() -> None:
    found = present(foreseen_epsilon(noised_study(), declaring(40, 51, 100), POLICY_DELTA))
    assert (found.examples, found.epsilon) == (51, spent(51))
    assert found.epsilon == pytest.approx(24.61, abs=0.01)
    assert found.epsilon > 1.5 * spent(40)
    said = {
        one.about: one.words
        for one in in_plain_words(noised_study(), declaring(40, 51, 100), SitePolicy(delta=POLICY_DELTA))
    }
    assert "of one record at a site of 51 examples, which of all that sites declare" in said[About.EPSILON]


def test_what_this_site_has_counts_whatever_it_declared(tmp_path: Path) -> None:
    np.savez(tmp_path / "train.npz", X=np.zeros((51, 2)), y=np.zeros(51))
    assert own_examples(tmp_path) == (51,)
    assert own_examples(tmp_path / "nowhere") == ()
    policy, roster = SitePolicy(delta=POLICY_DELTA), declaring(40, 1000)
    for own, most in (((), 40), (own_examples(tmp_path), 51)):
        said = {one.about: one.words for one in in_plain_words(noised_study(), roster, policy, own)}
        assert said[About.EPSILON].startswith(f"{spent(most):.3f} at delta")


def test_with_one_gradient_per_round_the_fewest_spend_most() -> None:
    found = present(foreseen_epsilon(noised_study(TrainingSpec(batch_size=50)), declaring(40, 51, 100), POLICY_DELTA))
    assert found.examples in (40, 50)


@pytest.mark.parametrize("noise", [0.5, 8.0])
def test_the_most_is_found_among_many_by_a_few_calls(noise: float) -> None:
    """As by looking at all of them, of a thousand sites too."""
    of, calls = noised_study(noise=noise), 0
    counts = tuple(np.random.default_rng(3).integers(20, 3000, 24).tolist())
    assert of.privacy is not None

    def counted(steps: Steps) -> float:
        nonlocal calls
        calls += 1
        return epsilon_of([steps], POLICY_DELTA)

    examples, most = most_spent(of, of.privacy, counts, counted)
    assert most == max(spent(count, of) for count in counts) == spent(examples, of)
    calls = 0
    most_spent(of, of.privacy, range(20, 100_000, 37), counted)
    assert calls < 150


def test_a_shown_budget_that_one_number_keeps_is_no_hindrance() -> None:
    """50 samples spend less than 51, which take two steps per round."""
    of = noised_study()
    fits, larger = (training_of(of, present(of.privacy), count, 1).times(of.rounds) for count in (50, 51))
    epsilon = next(float(one) for one in np.linspace(5, 50, 451) if share_used([fits], float(one), POLICY_DELTA) <= 1)
    assert share_used([larger], epsilon, POLICY_DELTA) > 1
    shown = SitePolicy(epsilon=epsilon, delta=POLICY_DELTA)
    require_shown_budget(of, declaring(51, 50), shown, "the policy in x")
    require_shown_budget(of, declaring(51, 1000), shown, "the policy in x")
    with pytest.raises(ConfigurationError, match="of 51 samples, more at all others"):
        require_shown_budget(of, declaring(51), shown, "the policy in x")


def test_the_least_is_that_of_all_numbers() -> None:
    of, counts = noised_study(), (40, 50, 51, 99, 100, 101)
    found = least_spent(of, present(of.privacy), counts, lambda steps: epsilon_of([steps], POLICY_DELTA))
    assert found == min(((count, spent(count)) for count in counts), key=lambda one: one[1])


# --- budget cli -------------------------------------------------------------------------------------------------------

CAME_WITH = keys(SITE).party().signing_key


def settings(folder: Path, **policy: Any) -> Any:
    return SimpleNamespace(
        state_dir=folder, site=SITE, data=folder / "data", plugin=folder / "plugin.py", policy=SitePolicy(**policy)
    )


def count(folder: Path) -> BudgetMemory:
    return budget_memory(folder, CAME_WITH)


def test_what_is_spent_is_shown_by_study_and_together(tmp_path: Path) -> None:
    for name, number in (("one", 1), ("one", 2), ("other", 1)):
        count(tmp_path).charge(training(name, number), SitePolicy())
    count(tmp_path).begin_after([("ab" * 32, 1)])
    found = budget_of(settings(tmp_path, epsilon=20.0, delta=DELTA), CAME_WITH)
    assert found is not None
    assert [(one.study, one.trainings) for one in found.studies] == [("one", 2), ("other", 1)]
    assert found.spent == pytest.approx(count(tmp_path).epsilon(DELTA))
    assert found.studies[0].epsilon < found.spent < sum(one.epsilon for one in found.studies)
    assert (found.epsilon, found.uncovered_rounds) == (20.0, 1)
    first, *others = agent_work._budget(found)
    assert first.startswith(f"privacy: epsilon {found.spent:.3f} spent at delta 0.001 per record, dp-accounting")
    assert first.endswith(f"; {found.used:.1%} of epsilon 20 used")
    assert others == [
        *(f"  {one.study}: {one.trainings} trainings, epsilon {one.epsilon:.3f} alone" for one in found.studies),
        "  1 rounds before are covered by no count",
    ]
    assert budget_of(settings(tmp_path / "new"), CAME_WITH) is None


def test_a_budget_begins_after_rounds_only_on_an_operators_word(
    servers: dict[Side, FakeServer], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The budget's count is looked at where there is a budget; the memory of sums at the same time."""
    with_budget = settings(tmp_path, epsilon=20.0, delta=DELTA)
    agent_work.go_on_without(with_budget, yes=True)
    assert "budget: nothing is uncovered" in capsys.readouterr().out
    servers[Side.A].receipts = HELD[:2]
    agent_work.go_on_without(with_budget, yes=False)
    said = capsys.readouterr().out
    assert said.count("earlier round 1\nearlier round 2\n") == 2
    assert "no count covers them" in said
    agent_work.go_on_without(settings(tmp_path), yes=True)
    assert "no count covers them" not in capsys.readouterr().out
    assert count(tmp_path).rounds() == frozenset()
    agent_work.go_on_without(with_budget, yes=True)
    assert count(tmp_path).rounds() == {("ab" * 32, 1), ("ab" * 32, 2)}


def noised_federation(rounds: int) -> Study:
    spec = model_spec("linear", (5,), (), 3)
    parameters = StudyParameters(dimension=dimension(spec), clip_norm=4.0, least_contributors=3)
    privacy = PrivacySpec(record_clip=1.0, noise_multiplier=2.0)
    return study(parameters).model_copy(update={"model": spec, "rounds": rounds, "privacy": privacy})


def test_a_study_that_the_requesters_budget_does_not_hold_is_not_created(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for part in ("train", "test"):
        X = np.zeros((100, 5), np.float32)
        np.savez(tmp_path / "data" / f"{part}.npz", X=X, y=np.arange(100) % 3)
    at = settings(tmp_path, epsilon=4.0, delta=DELTA)
    require_own_budget(noised_federation(10), at, CAME_WITH, None)
    require_own_budget(study(), at, CAME_WITH, None)
    with pytest.raises(PolicyRefusal, match=r"budget_spent: .* with its 100 rounds"):
        require_own_budget(noised_federation(100), at, CAME_WITH, None)
    most = next(n for n in range(10, 100) if refused(n + 1, at, None))
    assert refused(most, at, FinishTable(held_out=0.5)), "with fewer records each is drawn more often"


def test_a_plugins_own_examples_are_those_that_the_budget_counts(tmp_path: Path) -> None:
    """They need not lie in a data folder of the built-in models' form."""
    (tmp_path / "plugin.py").write_text(
        "import numpy as np\ndef model(): ...\ndef loss(model, batch): ...\n"
        "def data(path):\n    both = np.zeros((100, 5), np.float32), np.arange(100) % 3\n    return both, both\n"
    )
    spec = model_spec("linear", (5,), (), 3).model_copy(update={"kind": "plugin"})
    at = settings(tmp_path, epsilon=4.0, delta=DELTA)
    require_own_budget(noised_federation(10).model_copy(update={"model": spec}), at, CAME_WITH, None)
    with pytest.raises(PolicyRefusal, match=r"budget_spent: .* with its 100 rounds"):
        require_own_budget(noised_federation(100).model_copy(update={"model": spec}), at, CAME_WITH, None)


def refused(rounds: int, at: Any, finish: FinishTable | None) -> bool:
    try:
        require_own_budget(noised_federation(rounds), at, CAME_WITH, finish)
    except PolicyRefusal:
        return True
    return False


def test_a_study_that_a_shown_budget_does_not_hold_even_unspent_is_not_created() -> None:
    shown = SitePolicy(epsilon=4.0, delta=DELTA)
    require_shown_budget(noised_federation(3), ROSTER, shown, "the policy in x")
    require_shown_budget(study(), ROSTER, shown, "the policy in x")
    require_shown_budget(noised_federation(1000), ROSTER, SitePolicy(), "the policy in x")
    with pytest.raises(ConfigurationError, match=r"the policy in x has a privacy budget of epsilon 4 .* of 50 samples"):
        require_shown_budget(noised_federation(1000), ROSTER, shown, "the policy in x")


def test_the_noise_for_an_epsilon_is_named_before_a_study_has_any(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = plan(tmp_path, "")
    asked = ["study", "epsilon", file, "--target", "4", "--delta", "1e-5", "--samples", "95"]
    local = 'batch_size = 20\nupdate = "local_sgd"\nepochs = 2'
    for table, steps in (("batch_size = 20", 8), (local, 8 * 2 * 5)):
        Path(file).write_text(Path(file).read_text().replace("batch_size = 20", table))
        assert moiety(*asked, "--json") == 0
        told = json.loads(capsys.readouterr().out)
        assert told["epsilon"] == epsilon_of([Steps(20 / 95, told["noise_multiplier"], steps)], 1e-5)
        assert 3.9 < told["epsilon"] <= 4
    assert moiety(*asked) == 0
    said = capsys.readouterr().out
    assert said.startswith("noise_multiplier = ")
    assert "at delta 1e-05 of a record, dp-accounting" in said


OF_SITE = '[privacy]\nunit = "site"\nnoise_multiplier = 2.0\n'
OF_RECORD = "[privacy]\nrecord_clip = 1.0\nnoise_multiplier = 2.0\n"


def plan(folder: Path, privacy: str) -> str:
    path = folder / "plan.toml"
    path.write_text(
        'name = "plan"\nrounds = 8\n[model]\nkind = "linear"\ninputs = [4]\nclasses = 2\n[rule]\nname = "fedavg"\n'
        f"[training]\nbatch_size = 20\n[parameters]\nclip_norm = 1.0\n{privacy}"
    )
    return str(path)


def test_a_study_file_says_what_it_would_spend_with_other_rounds_and_noise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["study", "epsilon", plan(tmp_path, OF_RECORD), "--delta", "1e-3", "--samples", "80"]
    assert moiety(*asked, "--json") == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = {(one["rounds"], one["noise_multiplier"]): one["epsilon"] for one in told}
    assert set(found) == {(rounds, noise) for rounds in (2, 4, 8, 16) for noise in (0.5, 1.0, 2.0, 4.0, 8.0)}
    assert [(one["rounds"], one["noise_multiplier"]) for one in told if one["as_written"]] == [(8, 2.0)]
    for rounds, noise in ((2, 0.5), (8, 2.0), (16, 8.0)):
        assert found[rounds, noise] == epsilon_of([Steps(0.25, noise, rounds)], 1e-3)
    assert moiety(*asked) == 0
    said = capsys.readouterr().out
    assert f"{found[8, 2.0]:.3f}*" in said
    assert f"{found[16, 1.0]:.3f}" in said


def test_what_a_study_file_does_not_say_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for privacy, more, said in (
        ("", ["--samples", "5"], "no [privacy] table"),
        (OF_RECORD, [], "--samples"),
        (OF_SITE, ["--samples", "5"], "take unit = 'record'"),
    ):
        assert moiety("study", "epsilon", plan(tmp_path, privacy), "--delta", "1e-3", *more) == 2
        assert said in " ".join(capsys.readouterr().err.split())
