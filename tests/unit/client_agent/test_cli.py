"""``moiety agent`` and ``moiety study`` without servers: what is refused at once, and a server that is away."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import stamina
import torch
from typer.testing import CliRunner

import client_agent.cli.study_work
import client_agent.cli.tables
import client_agent.cli.watch
from client_agent.cli.agent import app as agent_app
from client_agent.daemon import run_agent
from client_agent.learning.data import DataNames
from client_agent.settings import AgentSettings, load_settings
from client_agent.site.journal import StudyJournal
from client_agent.study.outbox import create_study, outbox
from protocol.errors import (
    ConfigurationError,
    ConflictingMessage,
    MoietyError,
    PolicyRefusal,
    Unavailable,
    UnknownStudy,
)
from protocol.messages.control import Signed, Study, StudyEnd, StudyState, StudyView
from protocol.roster.keyfile import dump_roster
from protocol.sharing import Side
from tests.unit.client_agent.commands import FLAT, GOOD, OWN, command, created, image_data, own_data, write_config
from tests.unit.client_agent.federation import (
    PARTIES,
    REQUESTER,
    ROSTER,
    ended_as,
    keys,
    operator_keys,
    study,
    study_view,
)
from tests.unit.client_agent.test_daemon import signed_at
from tests.unit.wire.test_schema import STUDY as OF_A_TABLE

FEDAVG = FLAT.replace('"weight_erosion"\ndistance_penalty = 0.02', '"fedavg"')
BROKEN_PLUGIN = """
import numpy as np
import torch


def model():
    return torch.nn.Linear(2, 3)


def data(path):
    X, y = np.ones((3, 2), np.float32), np.array([0, 1, 2])
    return (X, y), (X, y)


def names(path):
    return ["age", "sex"], ["a", "b", "c"]


def loss(model, batch):
    return no_such_loss(model(batch.X), batch.y)
"""


class FakeServer:
    """Answers each call for a view with the next of a list."""

    def __init__(self, answers: Sequence[StudyState | MoietyError], at_end: MoietyError | None = None) -> None:
        self._answers = list(answers)
        self._at_end = at_end
        self.ended: list[StudyEnd] = []

    def view(self, name: str) -> StudyView:
        answer = self._answers.pop(0)
        if isinstance(answer, MoietyError):
            raise answer
        digest = study().digest()
        return study_view(digest, study=name, end=ended_as(answer, digest))

    def study(self, name: str) -> Signed[Study]:
        assert name == "unit"
        return signed_at(Side.A, study())

    def end(self, name: str, end: Signed[StudyEnd]) -> None:
        if self._at_end is not None:
            raise self._at_end
        self.ended.append(end.message)


class FakeSite:
    """The part of a site that the command line uses, with servers of a test."""

    def __init__(self, settings: AgentSettings, server: FakeServer) -> None:
        self.settings, self.roster, self.keys = settings, ROSTER, keys(REQUESTER)
        self.clients, self.is_requester = dict.fromkeys(Side, server), True

    def __enter__(self) -> FakeSite:
        return self

    def __exit__(self, *_: object) -> None:
        return


@pytest.fixture(autouse=True)
def _as_found(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The process's log, signal handlers and retry hooks stay as they are."""
    monkeypatch.setattr(client_agent.cli.watch, "log_to_stderr", lambda: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    yield
    stamina.instrumentation.set_on_retry_hooks(None)


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeServer], None]:
    def use(server: FakeServer) -> None:
        for module in (client_agent.cli.study_work, client_agent.cli.watch):
            monkeypatch.setattr(module, "Site", lambda settings: FakeSite(settings, server))
        monkeypatch.setattr(client_agent.cli.watch, "_POLL_S", 0.0)

    return use


def test_watching_waits_for_a_server_that_is_away(tmp_path: Path, serve: Callable[[FakeServer], None]) -> None:
    away = Unavailable("server 'operator-a' cannot be reached")
    serve(FakeServer([away, away, StudyState.OPEN, away, StudyState.COMPLETED]))
    seen = command("watch", "unit", "--config", str(write_config(tmp_path)))
    assert seen.stdout.splitlines()[:2] == ["study unit: open", "study unit: completed (as asked)"]
    # Twice away in a row is said once; away again later is said again.
    assert seen.stderr.splitlines() == ["waiting for server: server 'operator-a' cannot be reached"] * 2


def test_watching_a_queued_study_waits_and_an_unknown_one_is_refused(
    tmp_path: Path, serve: Callable[[FakeServer], None]
) -> None:
    config = write_config(tmp_path)
    serve(FakeServer([UnknownStudy("unit")]))
    with pytest.raises(UnknownStudy):
        command("watch", "unit", "--config", str(config))
    queue = outbox(tmp_path / "state")
    queue.mkdir(parents=True)
    (queue / "unit.json").write_bytes(study().canonical())
    serve(FakeServer([UnknownStudy("unit"), StudyState.CANCELLED]))
    assert "study unit: cancelled" in command("watch", "unit", "--config", str(config)).stdout


def test_creating_says_how_to_follow_the_study(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    image_data(tmp_path)
    assert created(tmp_path, GOOD) == (
        f"study first is queued; follow it with: moiety study watch first --config '{config}'\n"
        "it names no columns and no classes: no site will see whether its data mean the same\n"
    )


def test_what_the_agent_would_find_wrong_is_said_before_a_study_is_queued(tmp_path: Path) -> None:
    write_config(tmp_path, plugin="own.py")
    own_data(tmp_path)
    (tmp_path / "own.py").write_text(BROKEN_PLUGIN)
    with pytest.raises(ConfigurationError, match=r"own\.py, line 20: the loss or its gradient fails: NameError"):
        created(tmp_path, FLAT.replace('kind = "mlp"', 'kind = "plugin"'))
    assert not outbox(tmp_path / "state").exists()


def test_a_finish_waits_beside_its_study_and_goes_with_it(tmp_path: Path, serve: Callable[[FakeServer], None]) -> None:
    config, waiting = write_config(tmp_path), outbox(tmp_path / "state")
    image_data(tmp_path, 10)
    for table, said in (("held_out = 0.01", "leaves one part empty"), ('choose = "test"', "finish.choose")):
        with pytest.raises(ConfigurationError, match=said):
            created(tmp_path, f"{GOOD}\n[finish]\n{table}\n")
    assert not waiting.exists()
    created(tmp_path, f"{GOOD}\n[finish]\nheld_out = 0.3\n")
    assert sorted(path.name for path in waiting.iterdir()) == ["first.finish", "first.json"]
    assert json.loads((waiting / "first.finish").read_bytes()) == {"choose": "held_out", "held_out": 0.3}
    server = FakeServer([])
    server.study = _no_such_study  # type: ignore[method-assign]
    serve(server)
    command("cancel", "first", "--reason", "wrong data", "--config", str(config))
    assert not list(waiting.iterdir())


@pytest.mark.parametrize("reached", ["outbox", "journal"])
def test_a_study_that_never_reached_the_servers_can_be_cancelled(
    tmp_path: Path, serve: Callable[[FakeServer], None], reached: str
) -> None:
    config, state = write_config(tmp_path), tmp_path / "state"
    server = FakeServer([])
    server.study = _no_such_study  # type: ignore[method-assign]
    serve(server)
    cancel = ("cancel", "unit", "--reason", "wrong data", "--config", str(config))
    with pytest.raises(UnknownStudy, match="no study 'unit' is here or at the servers"):
        command(*cancel)
    if reached == "outbox":
        create_study(state, study())
    else:
        journal = StudyJournal(state, "unit")
        journal.write(journal.folder / "study.json", signed_at(Side.A, study()))
    assert "had not reached the servers; it is withdrawn here" in command(*cancel).stdout
    assert not list(outbox(state).glob("*.json"))
    assert reached == "outbox" or StudyJournal(state, "unit").is_withdrawn
    assert server.ended == []


def _no_such_study(name: str) -> Signed[Study]:
    raise UnknownStudy(name)


@pytest.mark.parametrize("place", ["outbox", "journal"])
def test_watching_shows_why_the_agent_did_not_begin_a_study(
    tmp_path: Path, serve: Callable[[FakeServer], None], place: str
) -> None:
    config, state = write_config(tmp_path), tmp_path / "state"
    serve(FakeServer([UnknownStudy("unit")]))
    if place == "journal":
        StudyJournal(state, "unit").stopped("configuration: y holds NaN in 2 rows")
    else:
        outbox(state).mkdir(parents=True)
        (outbox(state) / "unit.refusal.txt").write_text("configuration: y holds NaN in 2 rows")
    with pytest.raises(ConfigurationError, match=r"never reached the servers; .* says: configuration: y holds NaN"):
        command("watch", "unit", "--config", str(config))


def test_creating_takes_the_names_of_the_requesters_data(tmp_path: Path) -> None:
    write_config(tmp_path)
    own_data(tmp_path)
    told = created(tmp_path, FLAT).splitlines()
    assert told[1].startswith("it holds 2 feature_names and 3 class_names: every site compares its own with them")
    (queued,) = outbox(tmp_path / "state").glob("*.json")
    assert Study.parse(queued.read_bytes()).model.feature_names == OWN.features
    queued.unlink()
    answer = json.loads(created(tmp_path, FLAT, "--json"))
    assert (answer["feature_names"], answer["class_names"]) == (2, 3)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(
            'correlation_source = "dealer"\n' + FLAT, "'dealer', which exists in simulation only", id="dealer"
        ),
        pytest.param(OF_A_TABLE, "nothing says how these data were made", id="data made otherwise"),
        pytest.param(f'protection = "ckks"\n{FEDAVG}', "set allow_ckks = true", id="own policy, ckks"),
        pytest.param(FLAT + "[ranking]\n", "set may_rank = true", id="own policy, ranking"),
    ],
)
def test_a_study_that_cannot_be_is_not_created(tmp_path: Path, text: str, said: str) -> None:
    write_config(tmp_path)
    own_data(tmp_path, DataNames(("age", "age missing"), ("a", "b", "c")) if text == OF_A_TABLE else OWN)
    with pytest.raises((ConfigurationError, PolicyRefusal), match=said):
        created(tmp_path, text)
    assert not outbox(tmp_path / "state").exists()


def test_a_study_is_cancelled_at_both_servers(tmp_path: Path, serve: Callable[[FakeServer], None]) -> None:
    server = FakeServer([])
    serve(server)
    told = command("cancel", "unit", "--reason", "enough", "--config", str(write_config(tmp_path))).stdout
    assert told == "study unit is cancelled at both servers\n"
    assert [end.reason for end in server.ended] == ["enough", "enough"]


@pytest.mark.parametrize(
    ("state", "told"), [(StudyState.LOCAL_ONLY, "alone: stop its agent"), (StudyState.COMPLETED, "ended as x$")]
)
def test_cancelling_a_study_that_has_ended(
    tmp_path: Path, serve: Callable[[FakeServer], None], state: StudyState, told: str
) -> None:
    serve(FakeServer([state], at_end=ConflictingMessage("the study ended as x")))
    with pytest.raises(ConflictingMessage, match=told):
        command("cancel", "unit", "--reason", "enough", "--config", str(write_config(tmp_path)))


def run(config: Path, device: str) -> BaseException | None:
    return CliRunner().invoke(agent_app, ["run", "--config", str(config), "--device", device]).exception


def test_an_agent_is_not_started_with_a_wrong_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    config = write_config(tmp_path, device="cpu")
    refused = run(config, "bogus")
    assert isinstance(refused, ConfigurationError)
    assert "option --device: key 'device'" in refused.detail
    assert "found 'bogus'" in refused.detail
    monkeypatch.setenv("MOIETY_AGENT_DEVICE", "cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    refused = run(config, "cuda")
    assert isinstance(refused, ConfigurationError)
    assert "0 CUDA devices are here" in refused.detail


def test_an_agent_is_not_started_without_its_data(tmp_path: Path) -> None:
    settings = load_settings(write_config(tmp_path))
    with pytest.raises(ConfigurationError, match=r"key 'data': .*data does not exist"):
        run_agent(settings, threading.Event())
    assert not settings.state_dir.exists()


def test_a_roster_that_lacks_a_signature_says_whom_to_ask(tmp_path: Path) -> None:
    write_config(tmp_path)
    b = operator_keys(Side.B).name
    signatures = tuple(one for one in PARTIES.roster.signatures if one.signer != b)
    (tmp_path / "roster.toml").write_text(dump_roster(Signed(message=ROSTER, signatures=signatures)))
    with pytest.raises(MoietyError, match=rf"roster\.toml: .*'{b}' is missing; .*: moiety site status"):
        created(tmp_path, GOOD)
