"""What ``moiety study ranking`` shows: every site, what was opened about it, and what the own loss is worth."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from client_agent.cli.results import show_rankings
from client_agent.learning.ridge import JudgedOn
from client_agent.study.ranking import RANKING_FILE, RankedSite, Ranking, UnrankedSite
from protocol.errors import ConfigurationError
from tests.unit.client_agent.federation import REQUESTER

RANKING = Ranking(
    study="hearts",
    requester=REQUESTER,
    round=1,
    judged_on=JudgedOn.VALIDATION,
    own_loss=0.125,
    error_bound=1e-4,
    sites=(RankedSite(site="c2", loss=0.25), RankedSite(site="c1", loss=None)),
    unranked=(UnrankedSite(site="c3", reason="it contributed nothing"),),
)


def written(folder: Path, ranking: Ranking) -> None:
    place = folder / "studies" / ranking.study
    place.mkdir(parents=True)
    (place / RANKING_FILE).write_text(ranking.model_dump_json())


def test_the_table_names_every_site(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path, RANKING)
    written(tmp_path, Ranking(study="lungs", requester=REQUESTER, round=3, problem="one server lost its half"))
    show_rankings(tmp_path, None, json_output=False)
    shown = capsys.readouterr().out
    for text in (
        "0.2500",
        "failed its range check",
        "not ranked: it",
        "r0 itself",
        "0.1250",
        "exact to 0.0001",
        "lungs: the sites were",
    ):
        assert text in shown
    assert "trained on" not in shown
    show_rankings(tmp_path, "hearts", json_output=True)
    assert Ranking.model_validate(json.loads(capsys.readouterr().out)) == RANKING


def test_an_own_loss_on_training_examples_is_said_to_be_no_yardstick(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, RANKING.model_copy(update={"judged_on": JudgedOn.TRAINING}))
    show_rankings(tmp_path, None, json_output=False)
    shown = capsys.readouterr().out
    assert "r0's training examples" in shown
    assert "r0 itself, trained on" in shown


def test_no_ranking_and_a_broken_one_are_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="has no ranking of study 'hearts'"):
        show_rankings(tmp_path, "hearts", json_output=False)
    written(tmp_path, RANKING)
    (tmp_path / "studies" / "hearts" / RANKING_FILE).write_text("{}")
    with pytest.raises(ConfigurationError, match="3 fields are wrong"):
        show_rankings(tmp_path, None, json_output=False)
