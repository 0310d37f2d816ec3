"""A study with [finish]: the requester's model is finished at its agent, and nobody else hears of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from client_agent.cli.watch import follow
from client_agent.learning.local_finish import LocalFinish
from client_agent.learning.losses import cross_entropy
from client_agent.learning.models import build_model
from client_agent.learning.study_file import FinishTable
from client_agent.model.card import ModelCard
from client_agent.model.site_model import held_model
from client_agent.settings import AgentSettings, load_settings
from client_agent.site.events import EventKind, RoundEnd, RoundRecord
from client_agent.site.journal import finished_model, load_finished
from harness.datasets.site_data import SiteData
from harness.engine.loop import run_rounds
from harness.engine.run_state import Conditions
from harness.federation.in_memory_federation import InMemoryFederation
from harness.federation.learners import torch_learner
from protocol.errors import ConfigurationError
from protocol.messages.control import RuleName, RuleSpec, Study, StudyState, StudyView
from protocol.policy.site_policy import SitePolicy
from protocol.sharing import Side
from tests.integration.agents import (
    FEDAVG,
    REQUESTER,
    final_model,
    journal,
    moiety,
    rounds_of,
    run_to_end,
    site_data,
    spec,
    study_for,
)
from tests.kit.present import present

SITES = (REQUESTER, "c1", "c2", "c3")
TABLE = FinishTable(held_out=0.25)
LEFT_OUT = FinishTable(choose="leave_one_out")
ROUNDS = 2
ANYTHING = SitePolicy(least_isolation=0.0)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InMemoryFederation]:
    policies = dict.fromkeys(SITES[1:], ANYTHING)
    with InMemoryFederation(spec(policies, seed=11), tmp_path_factory.mktemp("finish"), torch_learner) as running:
        running.start()
        for name, table in (("held", TABLE), ("left", LEFT_OUT), ("plain", None)):
            run_to_end(running, study_of(running, name), finish=table)
        yield running


def study_of(running: InMemoryFederation, name: str) -> Study:
    """Its seed is the sites' own."""
    return study_for(running, name, FEDAVG, ROUNDS)


def shared_model(running: InMemoryFederation, name: str) -> np.ndarray:
    return np.frombuffer(final_model(running, REQUESTER, name), np.float32)


def test_after_mallows_averaging_too(federation: InMemoryFederation) -> None:
    """Its measured round counts as one of the requester's records, not of the study's rounds."""
    study = study_for(federation, "risk", RuleSpec(name=RuleName.MALLOWS), ROUNDS, 60.0)
    ends = [record.state for record in run_to_end(federation, study, finish=TABLE)]
    assert ends[1:] == [RoundEnd.RELEASED] * ROUNDS + [RoundEnd.FINISHED]
    facts = present(finished_model(journal(federation, REQUESTER, "risk")))
    assert (facts.held, facts.shared_version) == (15, ROUNDS)


@pytest.mark.parametrize(("name", "table"), [("held", TABLE), ("left", LEFT_OUT)])
def test_it_is_the_engines_finish_of_the_shared_model(
    federation: InMemoryFederation, name: str, table: FinishTable
) -> None:
    """To the bit from the agents' shared model, and within fixed point's rounding from the engine's."""
    of = study_of(federation, name)
    data = site_data(0)
    seen, held = table.parts(data.train, of.seed or 0)
    expected = LocalFinish(build_model(of.model, 0), cross_entropy, of.training.l2, seen, held).run(
        shared_model(federation, name)
    )
    own = journal(federation, REQUESTER, name)
    facts = present(finished_model(own))
    assert (facts.pull, facts.seen, facts.held) == (expected.pull, len(seen), len(held))
    assert load_finished(own).tobytes() == expected.vector.tobytes()
    sites = [SiteData(site, (d := site_data(place)).train, d.test, d.test) for place, site in enumerate(SITES)]
    run = run_rounds(of, sites, conditions=Conditions(policy=ANYTHING, finish=table))
    assert f"pull {present(facts.pull):.2g}" in run.reason
    np.testing.assert_allclose(load_finished(own), run.final_model, atol=1e-3)
    assert not np.allclose(load_finished(own), shared_model(federation, name), atol=1e-2)


def test_the_shared_rounds_have_not_seen_what_is_held_out(federation: InMemoryFederation) -> None:
    held, left, plain = (shared_model(federation, name) for name in ("held", "left", "plain"))
    np.testing.assert_allclose(left, plain, atol=1e-4)  # each study rounds to fixed point by draws of its own
    assert not np.allclose(held, plain, atol=1e-3)
    assert len({final_model(federation, site, "held") for site in SITES}) == 1


def test_nobody_else_hears_of_it(federation: InMemoryFederation) -> None:
    """The signed study is the same bytes, contributors' records and folders have nothing, nor has a server's file."""
    names = ("held", "plain")
    studies = [journal(federation, REQUESTER, name).folder / "study.json" for name in names]
    signed = [json.loads(path.read_bytes())["message"] for path in studies]
    assert [one | {"name": ""} for one in signed] == [signed[0] | {"name": ""}] * 2
    for site in SITES[1:]:
        own = journal(federation, site, "held")
        assert finished_model(own) is None
        assert {record.state for record in rounds_of(federation, site, "held")} == {RoundEnd.RELEASED}
        assert not list(own.folder.glob("finish*"))
    for path in (federation.folder).glob("operator*/**/*"):
        assert not path.is_file() or b"held_out" not in path.read_bytes(), path


def test_the_finished_model_is_in_use_and_the_shared_one_is_kept(
    federation: InMemoryFederation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = str(federation.config(REQUESTER))
    for more, out in (((), tmp_path / "own"), (("--unfinished",), tmp_path / "shared")):
        assert moiety("model", "export", "held", "--config", config, "--out", str(out), *more) == 0
    said = capsys.readouterr().out.splitlines()
    assert "local finish with pull" in said[0]
    assert "local finish" not in said[1]
    card, shared = (
        ModelCard.model_validate_json((tmp_path / which / "card.json").read_bytes()) for which in ("own", "shared")
    )
    facts = present(finished_model(journal(federation, REQUESTER, "held")))
    assert (card.finish, shared.finish) == (facts, None)
    losses = [
        next(s.value for s in one.scores if s.name == "log_loss")
        for one in (present(card.scores), present(shared.scores))
    ]
    assert losses[0] != losses[1]
    assert f"({facts.text})" in (tmp_path / "own" / "card.md").read_text()
    assert "The requester's own model" not in (tmp_path / "shared" / "card.md").read_text()
    assert moiety("model", "compare", "held", "--config", config, "--draws", "0", "--json") == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["finish"]["pull"] == facts.pull
    compared = next(one["first"]["value"] for one in found["scores"] if one["first"]["name"] == "log_loss")
    assert compared == pytest.approx(losses[0])
    assert moiety("model", "compare", "held", "--config", config, "--draws", "0", "--unfinished") == 0
    assert "with the local finish" not in capsys.readouterr().out


class Servers:
    """Both of them, as far as whoever follows a study that is over asks; ``view`` is what they show."""

    view_shown: StudyView

    def __init__(self, settings: AgentSettings) -> None:
        self.settings = settings
        self.clients, self.is_requester = dict.fromkeys(Side, self), True

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""

    def view(self, _: str) -> StudyView:
        return self.view_shown


def test_who_follows_the_study_reads_of_it(
    federation: InMemoryFederation, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = journal(federation, REQUESTER, "held")
    facts, state = finished_model(own), own.site_state()
    assert facts is not None
    assert state is not None
    Servers.view_shown = StudyView(
        study="held", study_digest=state.study_digest, end=state.ended_by, cursor=1, ready=(), mail=()
    )
    monkeypatch.setattr("client_agent.cli.watch.Site", Servers)
    settings = load_settings(federation.config(REQUESTER))
    follow(settings, "held", json_output=False)
    out = capsys.readouterr().out
    assert f"round {ROUNDS + 1} finished ({facts.text})" in out
    assert "the shared model is kept beside it (--unfinished)" in out
    follow(settings, "held", json_output=True)
    records = [line for line in capsys.readouterr().out.splitlines() if "model_version" in line]
    last = RoundRecord.model_validate_json(records[-1])
    assert (last.state, last.pull, last.model_version) == (RoundEnd.FINISHED, facts.pull, ROUNDS)


def test_a_model_that_leaves_the_range_of_numbers_is_not_in_use(
    federation: InMemoryFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The study itself is completed; whoever wants the shared model must say so."""
    monkeypatch.setattr(LocalFinish, "_mean_loss", lambda *_: __import__("torch").tensor(float("nan")))
    federation.events.clear()
    run_to_end(federation, study_of(federation, "broken"), finish=TABLE)
    facts = present(finished_model(journal(federation, REQUESTER, "broken")))
    assert "leaves the range of numbers" in facts.failed
    assert any(text.startswith("no local finish") for text in federation.texts(EventKind.PROBLEM, REQUESTER))
    settings = load_settings(federation.config(REQUESTER))
    with pytest.raises(ConfigurationError, match="--unfinished takes the shared model"):
        held_model(settings, "broken")
    held = held_model(settings, "broken", unfinished=True)
    assert held.ended is StudyState.COMPLETED
    assert held.model.tobytes() == shared_model(federation, "broken").tobytes()
    assert held.scores is not None
    assert [record.state for record in held.records] == [RoundEnd.RELEASED] * ROUNDS


def test_with_nothing_held_out_no_study_begins(federation: InMemoryFederation) -> None:
    federation.events.clear()
    federation.hand_in(study_of(federation, "nothing"), FinishTable(held_out=0.001))
    stopped = federation.state(REQUESTER) / "studies" / "nothing" / "stopped.txt"
    federation.until("the refusal", stopped.exists)
    assert "finish.held_out" in stopped.read_text()
    assert "leaves one part empty" in federation.texts(EventKind.PROBLEM, REQUESTER)[-1]
