"""Sites that lie to gain weight: what they write, what they learn, and what the run beside an honest one says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import moiety
from harness.attack.attacked_study import AttackedStudy, Setting
from harness.attack.lies import Lie, LyingLine, Seen, lying_lines, shown, summed
from harness.simulate.case import read_case
from harness.simulate.store import read_lines
from harness.simulate.study_files import STUDIES
from protocol.errors import ConfigurationError

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
        for written in (shown(lie, of), summed(lie, of, measured=True), summed(lie, of, measured=False)):
            assert set(written) == set(of.own)
            assert all(np.linalg.norm(vector) <= of.clip_norm + 1e-9 for vector in written.values())


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
        return list(lying_lines(AttackedStudy(CASE, "fedavg", 0, "city-hospital", setting), lies))

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
        list(lying_lines(AttackedStudy(CASE, "fedavg", 0, "city-hospital"), (), 5))


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
