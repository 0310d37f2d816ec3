"""Sites that poison, and sites that lie to gain weight."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import moiety
from harness.attack.attacked_study import AttackedStudy, Setting
from harness.attack.lies import Lie, LyingLine, LyingRun, Seen, shown, summed
from harness.attack.poisoning import TARGET, Known, Poison, Poisoned, tampered, with_trigger, written
from harness.datasets.bundled import digits_sites
from harness.simulate.case import Case, read_case
from harness.simulate.store import read_lines
from harness.simulate.study_files import STUDIES
from protocol.errors import ConfigurationError
from protocol.parameters import Needs

# --- poisoning --------------------------------------------------------------------------------------------------------

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


def run_of(case: Case, variant: str, poisoners: int, poison: Poison | None, *, secure: bool = False) -> Poisoned:
    return Poisoned(AttackedStudy(case, variant, 0), poisoners, poison, secure)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    text = (STUDIES / "poisoning.toml").read_text()
    path = tmp_path_factory.mktemp("case") / "poisoning.toml"
    path.write_text(text.replace("rounds = 20", f"rounds = {FEW_ROUNDS}").replace("[0, 1, 2, 3, 4]", "[0]"))
    return read_case(path)


def test_poisoners_show_in_what_they_do_and_honest_ones_in_nothing(case: Case) -> None:
    nobody, honest, liars = (
        run_of(case, "fedavg", number, poison).line() for number, poison in ((0, None), (4, None), (4, Poison.SCALED))
    )
    assert (nobody.accuracy, nobody.log_loss) == (honest.accuracy, honest.log_loss)
    assert honest.weight == pytest.approx(0.4)
    assert liars.log_loss > honest.log_loss


def test_under_mallows_two_faced_ones_keep_their_weight_and_are_summed(case: Case) -> None:
    """Measured they are the requester itself; with two of ten that is worth more than an even share."""
    reversed_, two_faced = (
        run_of(case, "mallows", 2, poison).line() for poison in (Poison.SIGN_FLIP, Poison.TWO_FACED)
    )
    assert two_faced.weight > 0.2 > reversed_.weight


def test_more_liars_than_multi_krum_stands_leave_the_requester_alone(case: Case) -> None:
    line = run_of(case, "multi_krum", 4, Poison.SCALED).line()
    assert (line.end, line.released) == ("local_only", 0)


def test_under_the_protocol_it_is_the_same_but_for_rounding(case: Case) -> None:
    plain, secure = (run_of(case, "fedavg", 2, Poison.SCALED, secure=secure).line() for secure in (False, True))
    assert secure.protection == "secure"
    assert secure.log_loss == pytest.approx(plain.log_loss, rel=1e-3)
    assert plain.key != secure.key


def test_too_many_poisoners_are_refused(case: Case) -> None:
    with pytest.raises(ConfigurationError, match="choose 0 to 8"):
        run_of(case, "fedavg", 9, Poison.ZEROS).line()


# --- lies -------------------------------------------------------------------------------------------------------------

CASE = read_case(STUDIES / "breast_cancer.toml")
RAW = {"rule": {"name": "mallows", "criterion": "raw"}, "parameters": {"weight_grid": 1024}}
PLUG_IN = {**RAW, "rule": {"name": "mallows"}}


def seen(rest: np.ndarray | None) -> Seen:
    random = np.random.default_rng(0)
    own = {"one": random.normal(size=6), "two": random.normal(size=6)}
    return Seen(own, None if rest is None else rest + 0.1, rest, random.normal(size=6), clip_norm=3.0)


REST = np.array([1.0, -1.0, 0.5, 0.0, 0.2, 0.1])


@pytest.mark.parametrize("lie", list(Lie))
def test_no_lie_is_longer_than_what_passes(lie: Lie) -> None:
    for of in (seen(None), seen(REST), seen(100 * REST)):
        for sent in (shown(lie, of), summed(lie, of, measured=True), summed(lie, of, measured=False)):
            assert set(sent) == set(of.own)
            assert all(np.linalg.norm(vector) <= of.clip_norm + 1e-9 for vector in sent.values())


def test_where_nobody_looks_the_harm_is_as_long_as_it_may_be() -> None:
    of = seen(REST)
    assert np.linalg.norm(of.harm) == pytest.approx(1)
    assert all(float(of.harm @ own) < 0 for own in of.own.values())
    for vector in summed(Lie.COPY, of, measured=False).values():
        np.testing.assert_allclose(vector, 3.0 * of.harm)


def test_what_each_lie_looks_like() -> None:
    of = seen(REST)
    near = shown(Lie.NEAR, of)["one"]
    assert np.linalg.norm(near) == pytest.approx(min(3.0, np.linalg.norm(of.own["one"])))
    assert float(near @ REST) == pytest.approx(np.linalg.norm(near) * np.linalg.norm(REST))
    np.testing.assert_allclose(shown(Lie.SMALL, of)["one"], 0.01 * of.own["one"])
    np.testing.assert_allclose(shown(Lie.COPY, of)["one"], REST + 0.1)
    np.testing.assert_allclose(shown(Lie.REPLAY, of)["two"], REST)
    np.testing.assert_allclose(shown(Lie.ORACLE, of)["two"], of.requester)
    wide = replace(of, clip_norm=100.0)
    pair = shown(Lie.OPPOSED, wide)
    np.testing.assert_allclose(pair["one"] + pair["two"], 2 * REST)
    single = shown(Lie.OPPOSED, replace(wide, own={"one": of.own["one"]}))
    np.testing.assert_allclose(single["one"], REST)


def test_in_a_sum_that_is_measured_a_liar_is_no_farther_off_than_it_would_be_honestly() -> None:
    of = replace(seen(REST), clip_norm=100.0)
    for site, vector in summed(Lie.REPLAY, of, measured=True).items():
        assert np.linalg.norm(vector - REST) == pytest.approx(np.linalg.norm(of.own[site] - REST))


def test_a_perfect_lie_gains_weight_under_the_raw_form_and_nothing_without_sums() -> None:
    def lines(changes: dict[str, object], *lies: Lie) -> list[LyingLine]:
        setting = Setting("changed", {**changes, "rounds": 2}, least_isolation=0.0)
        return list(LyingRun(AttackedStudy(CASE, "fedavg", 0, "city-hospital", setting), lies, 1).lines())

    honest, lied = lines(RAW, Lie.ORACLE)
    assert (honest.lie, honest.moved, honest.harm) == (None, 0.0, 0.0)
    assert lied.weight > honest.weight
    assert lied.moved > 0
    assert lied.liars == honest.liars
    plug_in = lines(PLUG_IN, Lie.ORACLE)[1]
    assert plug_in.weight < lied.weight
    alone = lines({"rule": {"name": "local"}}, Lie.REVERSED)[1]
    assert (alone.weight, alone.moved, alone.released) == (0.0, 0.0, 0)


def test_more_liars_than_contributors_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="choose 1 to 4"):
        list(LyingRun(AttackedStudy(CASE, "fedavg", 0, "city-hospital"), (), 5).lines())


def test_the_command_writes_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, study = tmp_path / "lies.jsonl", STUDIES / "breast_cancer.toml"
    usual = ("attack", "lies", str(study), "--only", "fedavg", "--lies", "reversed,copy", "--out", str(out))
    for more in ((), ("--json", "--clip-norm", "2")):
        with pytest.raises(SystemExit) as ended:
            moiety.main([*usual, "--rounds", "2", *more])
        assert not ended.value.code
    kept = read_lines(out, LyingLine)
    assert [line.lie for line in kept] == 2 * [None, Lie.REVERSED, Lie.COPY]
    assert kept[1].harm > 0
    assert kept[4].clip_norm == 2
    assert kept[4].moved < kept[1].moved
    printed = capsys.readouterr().out.splitlines()
    assert "honest: share " in printed[0]
    assert LyingLine.model_validate_json(printed[-1]) == kept[-1]


def test_a_lie_that_nobody_knows_is_refused_with_those_that_there_are() -> None:
    told = ["attack", "lies", str(Path(__file__).parents[4] / "harness/studies/breast_cancer.toml"), "--lies", "nope"]
    with pytest.raises(ConfigurationError, match="--lies: found 'nope'; the lies are reversed, near, small"):
        CliRunner().invoke(moiety.build("attack"), told, catch_exceptions=False, standalone_mode=False)
