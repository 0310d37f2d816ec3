"""What a study would spend is said of the number of examples that spends most, which need not be the fewest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from client_agent.cli.foreseen import require_shown_budget
from client_agent.site.budget.accounting import Steps, epsilon_of, share_used
from client_agent.study.asked.foreseen_epsilon import foreseen_epsilon, own_examples
from client_agent.study.asked.most_spent import least_spent, most_spent
from client_agent.study.asked.plain_words import About, in_plain_words
from client_agent.study.spending import training_of
from protocol.errors import ConfigurationError
from protocol.messages.control import PrivacySpec, Roster, Study, TrainingSpec
from protocol.policy.site_policy import SitePolicy
from tests.unit.client_agent.federation import ROSTER, study

DELTA = 1e-5
PRIVACY = PrivacySpec(record_clip=1.0, noise_multiplier=2.0)
LOCAL = TrainingSpec(update="local_sgd", batch_size=50, epochs=1)


def noised(training: TrainingSpec = LOCAL, noise: float = 2.0) -> Study:
    privacy = PRIVACY.model_copy(update={"noise_multiplier": noise})
    return study().model_copy(update={"privacy": privacy, "rounds": 30, "training": training})


def declaring(*counts: int) -> Roster:
    """Every site declares one of these numbers."""
    sites = tuple(
        party.model_copy(update={"samples": counts[at % len(counts)]}) for at, party in enumerate(ROSTER.sites)
    )
    return ROSTER.model_copy(update={"sites": sites})


def spent(count: int, asked: Study | None = None) -> float:
    of = asked or noised()
    assert of.privacy is not None
    return epsilon_of([training_of(of, of.privacy, count, 1).times(of.rounds)], DELTA)


def test_a_record_more_than_a_batch_holds_spends_more_than_fewer_records() -> None:
    found = foreseen_epsilon(noised(), declaring(40, 51, 100), DELTA)
    assert found is not None
    assert (found.examples, found.epsilon) == (51, spent(51))
    assert found.epsilon == pytest.approx(24.61, abs=0.01)
    assert found.epsilon > 1.5 * spent(40)
    said = {one.about: one.words for one in in_plain_words(noised(), declaring(40, 51, 100), SitePolicy(delta=DELTA))}
    assert "of one record at a site of 51 examples, which of all that sites declare" in said[About.EPSILON]


def test_what_this_site_has_counts_whatever_it_declared(tmp_path: Path) -> None:
    np.savez(tmp_path / "train.npz", X=np.zeros((51, 2)), y=np.zeros(51))
    assert own_examples(tmp_path) == (51,)
    assert own_examples(tmp_path / "nowhere") == ()
    policy, roster = SitePolicy(delta=DELTA), declaring(40, 1000)
    for own, most in (((), 40), (own_examples(tmp_path), 51)):
        said = {one.about: one.words for one in in_plain_words(noised(), roster, policy, own)}
        assert said[About.EPSILON].startswith(f"{spent(most):.3f} at delta")


def test_with_one_gradient_per_round_the_fewest_spend_most() -> None:
    found = foreseen_epsilon(noised(TrainingSpec(batch_size=50)), declaring(40, 51, 100), DELTA)
    assert found is not None
    assert found.examples in (40, 50)


@pytest.mark.parametrize("noise", [0.5, 1.0, 2.0, 8.0])
def test_the_most_is_found_among_many_by_a_few_calls(noise: float) -> None:
    """As by looking at all of them, of a thousand sites too."""
    of, calls = noised(noise=noise), 0
    counts = tuple(np.random.default_rng(3).integers(20, 3000, 60).tolist())
    assert of.privacy is not None

    def counted(steps: Steps) -> float:
        nonlocal calls
        calls += 1
        return epsilon_of([steps], DELTA)

    examples, most = most_spent(of, of.privacy, counts, counted)
    assert most == max(spent(count, of) for count in counts) == spent(examples, of)
    calls = 0
    most_spent(of, of.privacy, range(20, 100_000, 37), counted)
    assert calls < 150


def test_a_shown_budget_that_one_number_keeps_is_no_hindrance() -> None:
    """Of 50 samples less is spent than of 51, which take two steps per round."""
    of = noised()
    assert of.privacy is not None
    fits, larger = (training_of(of, of.privacy, count, 1).times(of.rounds) for count in (50, 51))
    epsilon = next(float(one) for one in np.linspace(5, 50, 451) if share_used([fits], float(one), DELTA) <= 1)
    assert share_used([larger], epsilon, DELTA) > 1
    shown = SitePolicy(epsilon=epsilon, delta=DELTA)
    require_shown_budget(of, declaring(51, 50), shown, "the policy in x")
    require_shown_budget(of, declaring(51, 1000), shown, "the policy in x")
    with pytest.raises(ConfigurationError, match="of 51 samples, more at all others"):
        require_shown_budget(of, declaring(51), shown, "the policy in x")


def test_the_least_is_that_of_all_numbers() -> None:
    of, counts = noised(), (40, 50, 51, 99, 100, 101)
    assert of.privacy is not None
    found = least_spent(of, of.privacy, counts, lambda steps: epsilon_of([steps], DELTA))
    assert found == min(((count, spent(count)) for count in counts), key=lambda one: one[1])
