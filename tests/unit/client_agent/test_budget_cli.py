"""``moiety agent budget`` and ``begin-budget``, and budgets looked at before a study is created."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from client_agent.cli import memories as budget_cli
from client_agent.cli.foreseen import require_own_budget, require_shown_budget
from client_agent.learning.at_requester.finish_table import FinishTable
from client_agent.learning.models import dimension, model_spec
from client_agent.settings import AgentSettings
from client_agent.site.budget.accounting import Steps, epsilon_of
from client_agent.site.budget.spent_budget import BudgetMemory, budget_memory
from moiety import main
from protocol.errors import ConfigurationError, PolicyRefusal
from protocol.messages.control import PrivacySpec, Study
from protocol.parameters import StudyParameters
from protocol.policy.site_policy import SitePolicy
from protocol.sharing import Side
from tests.unit.client_agent.benches import SITE, FakeServer
from tests.unit.client_agent.federation import ROSTER, keys, study
from tests.unit.client_agent.test_reconciling import HELD
from tests.unit.client_agent.test_spent_budget import training

DELTA = 1e-3
CAME_WITH = keys(SITE).party().signing_key


def settings(folder: Path, **policy: Any) -> Any:
    return SimpleNamespace(state_dir=folder, site=SITE, data=folder / "data", policy=SitePolicy(**policy))


def count(folder: Path) -> BudgetMemory:
    return budget_memory(folder, CAME_WITH)


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> dict[Side, FakeServer]:
    made = {side: FakeServer(side) for side in Side}

    @contextmanager
    def site(_: AgentSettings) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(came_with=CAME_WITH, clients=made, roster=ROSTER)

    monkeypatch.setattr(budget_cli, "Site", site)
    return made


def test_what_is_spent_is_shown_by_study_and_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, number in (("one", 1), ("one", 2), ("other", 1)):
        count(tmp_path).charge(training(name, number), SitePolicy())
    count(tmp_path).begin_after([("ab" * 32, 1)])
    budget_cli.show_budget(settings(tmp_path, epsilon=20.0, delta=DELTA), CAME_WITH, json_output=True)
    told = json.loads(capsys.readouterr().out)
    assert [(one["study"], one["trainings"]) for one in told["studies"]] == [("one", 2), ("other", 1)]
    assert told["spent"] == pytest.approx(count(tmp_path).epsilon(DELTA))
    assert told["studies"][0]["epsilon"] < told["spent"] < sum(one["epsilon"] for one in told["studies"])
    assert (told["epsilon"], told["uncovered_rounds"]) == (20.0, 1)
    assert told["accountant"].startswith("dp-accounting")
    budget_cli.show_budget(settings(tmp_path, epsilon=20.0, delta=DELTA), CAME_WITH, json_output=False)
    said = capsys.readouterr().out
    assert (
        f"epsilon {told['spent']:.3f} at delta 0.001, per record; {told['used']:.1%} of a budget of 20 is used" in said
    )
    assert "1 rounds before are covered by no count" in said
    with pytest.raises(ConfigurationError, match=r"key 'state_dir': the folder .*new does not exist"):
        budget_cli.show_budget(settings(tmp_path / "new"), CAME_WITH, json_output=False)
    (tmp_path / "new").mkdir()
    budget_cli.show_budget(settings(tmp_path / "new"), CAME_WITH, json_output=False)
    assert "no budget: epsilon is not set" in capsys.readouterr().out


def test_a_budget_begins_after_rounds_only_on_an_operators_word(
    servers: dict[Side, FakeServer], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    budget_cli.begin_budget(settings(tmp_path), yes=True)
    assert "nothing is uncovered" in capsys.readouterr().out
    servers[Side.A].receipts = HELD[:2]
    budget_cli.begin_budget(settings(tmp_path), yes=False)
    said = capsys.readouterr().out
    assert "earlier round 1\nearlier round 2\n" in said
    assert "no count covers them" in said
    assert count(tmp_path).rounds() == frozenset()
    budget_cli.begin_budget(settings(tmp_path), yes=True)
    assert count(tmp_path).rounds() == {("ab" * 32, 1), ("ab" * 32, 2)}


def noised(rounds: int) -> Study:
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
    require_own_budget(noised(10), at, CAME_WITH, None)
    require_own_budget(study(), at, CAME_WITH, None)
    with pytest.raises(PolicyRefusal, match=r"budget_spent: .* with its 100 rounds"):
        require_own_budget(noised(100), at, CAME_WITH, None)
    most = next(n for n in range(10, 100) if refused(n + 1, at, None))
    assert refused(most, at, FinishTable(held_out=0.5)), "with fewer records each is drawn more often"


def refused(rounds: int, at: Any, finish: FinishTable | None) -> bool:
    try:
        require_own_budget(noised(rounds), at, CAME_WITH, finish)
    except PolicyRefusal:
        return True
    return False


def test_a_study_that_a_shown_budget_does_not_hold_even_unspent_is_not_created() -> None:
    shown = SitePolicy(epsilon=4.0, delta=DELTA)
    require_shown_budget(noised(3), ROSTER, shown, "the policy in x")
    require_shown_budget(study(), ROSTER, shown, "the policy in x")
    require_shown_budget(noised(1000), ROSTER, SitePolicy(), "the policy in x")
    with pytest.raises(ConfigurationError, match=r"the policy in x has a privacy budget of epsilon 4 .* of 50 samples"):
        require_shown_budget(noised(1000), ROSTER, shown, "the policy in x")


def test_the_noise_for_an_epsilon_is_named_before_a_study_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["study", "noise", "--epsilon", "4", "--delta", "1e-5", "--examples", "95", "--batch-size", "20"]
    for more, steps in (([], 30), (["--epochs", "2"], 30 * 2 * 5)):
        with pytest.raises(SystemExit, match="0"):
            main([*asked, "--rounds", "30", *more, "--json"])
        told = json.loads(capsys.readouterr().out)
        assert told["epsilon"] == epsilon_of([Steps(20 / 95, told["noise_multiplier"], steps)], 1e-5)
        assert 3.9 < told["epsilon"] <= 4
    with pytest.raises(SystemExit, match="0"):
        main([*asked, "--rounds", "30"])
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
    asked = ["study", "epsilon", plan(tmp_path, OF_RECORD), "--delta", "1e-3", "--examples", "80"]
    with pytest.raises(SystemExit, match="0"):
        main([*asked, "--json"])
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = {(one["rounds"], one["noise_multiplier"]): one["epsilon"] for one in told}
    assert set(found) == {(rounds, noise) for rounds in (2, 4, 8, 16) for noise in (0.5, 1.0, 2.0, 4.0, 8.0)}
    assert [(one["rounds"], one["noise_multiplier"]) for one in told if one["as_written"]] == [(8, 2.0)]
    for (rounds, noise), spent in found.items():
        assert spent == epsilon_of([Steps(0.25, noise, rounds)], 1e-3)
    with pytest.raises(SystemExit, match="0"):
        main(asked)
    said = capsys.readouterr().out
    assert f"{found[8, 2.0]:.3f}*" in said
    assert f"{found[16, 1.0]:.3f}" in said


def test_what_a_study_file_does_not_say_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for privacy, more, said in (
        ("", ["--examples", "5"], "no [privacy] table"),
        (OF_RECORD, [], "--examples"),
        (OF_SITE, ["--examples", "5"], "take unit = 'record'"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main(["study", "epsilon", plan(tmp_path, privacy), "--delta", "1e-3", *more])
        assert said in " ".join(capsys.readouterr().err.split())
