"""Sites that poison, by what they send and by what they train on."""

from __future__ import annotations

import numpy as np
import pytest

from harness.attack.attacked_study import AttackedStudy
from harness.attack.poisoning import TARGET, Known, Poison, Poisoned, poisoned, tampered, with_trigger, written
from harness.datasets.bundled import digits_sites
from harness.simulate.case import Case, read_case
from harness.simulate.study_files import STUDIES
from protocol.errors import ConfigurationError
from protocol.parameters import Needs

C = 2.0
RNG = np.random.default_rng(5)
HONEST = [RNG.normal(size=40) * 0.2 + 0.1 for _ in range(6)]
OWN = {"one": RNG.normal(size=40) * 0.2, "two": RNG.normal(size=40) * 0.2}
LAST = RNG.normal(size=40)
REQUESTER = RNG.normal(size=40) * 0.2 + 0.1
FEW_ROUNDS = 3


def sent(
    poison: Poison, last: np.ndarray | None = LAST, opens: Needs = Needs.NOTHING, summed: bool = True
) -> dict[str, np.ndarray]:
    return written(poison, Known(OWN, HONEST, last, C, np.random.default_rng(1), REQUESTER, opens, summed))


def apart(vector: np.ndarray) -> list[float]:
    return [float(np.linalg.norm(vector - one)) for one in HONEST]


def test_alone() -> None:
    np.testing.assert_array_equal(sent(Poison.SIGN_FLIP)["one"], -OWN["one"])
    scaled = sent(Poison.SCALED)["two"]
    assert np.linalg.norm(scaled) == pytest.approx(3 * C)
    assert np.dot(scaled, OWN["two"]) < 0
    noise = sent(Poison.NOISE)
    assert np.linalg.norm(noise["one"]) == pytest.approx(C)
    assert not np.array_equal(noise["one"], noise["two"])
    assert not sent(Poison.ZEROS)["one"].any()
    np.testing.assert_array_equal(sent(Poison.COPY)["one"], LAST)
    assert not sent(Poison.COPY, None)["one"].any()


def test_min_max_and_min_sum_go_as_far_as_they_may_and_no_farther() -> None:
    widest = max(max(apart(one)) for one in HONEST)
    vector = sent(Poison.MIN_MAX)["one"]
    assert max(apart(vector)) == pytest.approx(widest, rel=1e-4)
    assert max(apart(vector)) <= widest
    most = max(sum(d**2 for d in apart(one)) for one in HONEST)
    vector = sent(Poison.MIN_SUM)["one"]
    assert sum(d**2 for d in apart(vector)) == pytest.approx(most, rel=1e-4)
    assert np.dot(vector - np.mean(HONEST, axis=0), np.mean(HONEST, axis=0)) < 0


def test_a_little_is_less_than_a_standard_deviation_off_where_few_lie() -> None:
    """Two of eight: five are needed to agree, three of them honest, so z is the median's quantile or beyond."""
    vector, mean, spread = sent(Poison.A_LITTLE)["one"], np.mean(HONEST, axis=0), np.std(HONEST, axis=0)
    off = (mean - vector) / spread
    assert np.allclose(off, off[0])
    assert 0 <= off[0] < 1


def test_just_inside_is_as_far_from_the_requester_as_the_middle_honest_site_and_goes_against_it() -> None:
    vector = sent(Poison.JUST_INSIDE)["one"]
    middle = np.median([np.linalg.norm(one - REQUESTER) for one in HONEST])
    assert np.linalg.norm(vector - REQUESTER) == pytest.approx(middle)
    assert np.dot(vector - REQUESTER, REQUESTER) == pytest.approx(-middle * np.linalg.norm(REQUESTER))
    assert np.linalg.norm(vector) <= C


def test_two_faced_shows_the_requesters_update_and_sends_the_opposite_as_long_as_what_is_opened_lets_through() -> None:
    np.testing.assert_array_equal(sent(Poison.TWO_FACED, opens=Needs.PAIRS, summed=False)["one"], REQUESTER)
    for opens, length in ((Needs.NORMS, C), (Needs.NOTHING, 3 * C)):
        vector = sent(Poison.TWO_FACED, opens=opens)["two"]
        assert np.linalg.norm(vector) == pytest.approx(length)
        assert np.dot(vector, REQUESTER) == pytest.approx(-length * np.linalg.norm(REQUESTER))
    inside = sent(Poison.JUST_INSIDE)["one"]
    np.testing.assert_array_equal(sent(Poison.TWO_FACED, opens=Needs.DISTANCES)["one"], inside)


def test_data_are_tampered_with_at_the_poisoners_alone() -> None:
    honest = digits_sites(0, 5)
    flipped = tampered(honest, Poison.LABELS, ["site-2"])
    marked = tampered(honest, Poison.TRIGGER, ["site-2"])
    for before, labels, trigger in zip(honest.sites, flipped.sites, marked.sites, strict=True):
        changed = before.name == "site-2"
        assert np.array_equal(labels.train.y, before.train.y) is not changed
        assert np.array_equal(trigger.train.X, before.train.X) is not changed
        assert labels.test is before.test
    place = honest.names_of_sites.index("site-2")
    every = np.arange(len(honest.sites[place].train)) % 2 == 0
    assert (marked.sites[place].train.y[every] == TARGET).all()
    assert np.array_equal(marked.sites[place].train.y[~every], honest.sites[place].train.y[~every])
    assert np.array_equal(with_trigger(honest.sites[0].test.X)[:, 4:], honest.sites[0].test.X[:, 4:])
    assert tampered(honest, Poison.SIGN_FLIP, ["site-2"]) is honest


def run_of(case: Case, variant: str, poisoners: int, poison: Poison | None) -> Poisoned:
    return poisoned(AttackedStudy(case, variant, 0), poisoners, poison)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    text = (STUDIES / "poisoning.toml").read_text()
    path = tmp_path_factory.mktemp("case") / "poisoning.toml"
    path.write_text(text.replace("rounds = 20", f"rounds = {FEW_ROUNDS}").replace("[0, 1, 2, 3, 4]", "[0]"))
    return read_case(path)


def test_poisoners_show_in_what_they_do_and_honest_ones_in_nothing(case: Case) -> None:
    nobody, honest, liars = (
        run_of(case, "fedavg", number, poison) for number, poison in ((0, None), (4, None), (4, Poison.SCALED))
    )
    assert (nobody.accuracy, nobody.log_loss) == (honest.accuracy, honest.log_loss)
    assert honest.weight == pytest.approx(0.4)
    assert liars.log_loss > honest.log_loss


def test_under_mallows_two_faced_ones_keep_their_weight_and_are_summed(case: Case) -> None:
    """Measured they are the requester itself; with two of ten that is worth more than an even share."""
    reversed_, two_faced = (run_of(case, "mallows", 2, poison) for poison in (Poison.SIGN_FLIP, Poison.TWO_FACED))
    assert two_faced.weight > 0.2 > reversed_.weight


def test_more_liars_than_multi_krum_stands_leave_the_requester_alone(case: Case) -> None:
    assert run_of(case, "multi_krum", 4, Poison.SCALED).released == 0


def test_too_many_poisoners_are_refused(case: Case) -> None:
    with pytest.raises(ConfigurationError, match="choose 0 to 8"):
        run_of(case, "fedavg", 9, Poison.ZEROS)
