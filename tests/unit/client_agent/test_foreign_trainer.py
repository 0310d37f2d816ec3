"""The site's own trainer: what it is given, and how everything that it can do wrong ends by name."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_agent.learning import foreign_trainer
from client_agent.learning.data import Examples, LocalData, save_folder
from client_agent.learning.foreign_trainer import LOG_BYTES, ForeignTrainer, put_aside
from client_agent.learning.models import model_spec
from client_agent.learning.settings import TrainerSettings
from client_agent.learning.study_file import FinishTable
from client_agent.learning.torch_learner import ForeignLearner
from client_agent.settings import load_settings
from client_agent.trainer_programs.round_task import read_tensors, write_tensors
from protocol.errors import ConfigurationError, UnusableUpdate
from protocol.messages.control import ModelSpec, Study, TrainingSpec
from tests.kit.studies import study_of
from tests.unit.client_agent.benches import until
from tests.unit.client_agent.test_settings import GOOD

MODEL = model_spec("linear", (3,), (), 2)
SHAPES = {layer.name: layer.shape for layer in MODEL.layers}
DIMENSION = 8
TRAINING = TrainingSpec(update="local_sgd", local_learning_rate=0.5, batch_size=64)
FIRST = np.arange(DIMENSION, dtype=np.float32)


def study(model: ModelSpec = MODEL, **changes: Any) -> Study:
    return study_of(model, **({"name": "foreign", "training": TRAINING, "rounds": 3} | changes))


def settings(folder: Path, body: str, **changes: Any) -> TrainerSettings:
    program = folder / "site.py"
    program.write_text("import os, signal, sys, time\nimport numpy as np\n" + body)
    values: dict[str, Any] = {
        "kind": "python",
        "python": Path(sys.executable),
        "program": program,
    }
    return TrainerSettings(**(values | changes))


def trainer(folder: Path, body: str, **changes: object) -> ForeignTrainer:
    return ForeignTrainer(study(), settings(folder, body, **changes), folder / "data", folder / "state")


def test_a_program_gets_layers_and_task_and_its_model_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOIETY_AGENT_SECRET", "x")
    body = """
def app(parameters, task):
    assert {n: p.shape for n, p in parameters.items()} == {l["name"]: tuple(l["shape"]) for l in task["layers"]}
    assert {p.dtype for p in parameters.values()} == {np.dtype(np.float32)}
    assert (task["round"], task["rounds"], task["training"]["local_learning_rate"]) == (2, 3, 0.5)
    assert task["config"] == {"depth": 4} and task["data"].endswith("/data")
    assert not [name for name in os.environ if name.startswith("MOIETY")]
    print("a patient's name")
    return {name: 2 * value for name, value in reversed(parameters.items())}
"""
    one = trainer(tmp_path, body, config={"depth": 4})
    assert np.array_equal(one.train(FIRST, 2), 2 * FIRST)
    assert (tmp_path / "state" / "trainer" / "trainer.log").read_text() == "a patient's name\n"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("def app(p, t): raise ValueError('a patient is 93')", "ended with exit code 1: this site's trainer.log has"),
        ("def app(p, t): os.kill(os.getpid(), signal.SIGSEGV)", "ended with signal 11"),
        ("def app(p, t): os._exit(0)", "ended without a trained model"),
        (
            "def app(p, t): return {n: v * np.nan for n, v in p.items()}",
            "gave NaN or infinite values in layer '1.weight'",
        ),
        ("def app(p, t): return {n: v[:1] for n, v in p.items()}", "found shape [1, 3], the study has [2, 3]"),
        ("def app(p, t): return dict(list(p.items())[:1])", "layer '1.bias' is missing"),
        ("def app(p, t): return {**p, 'more': p['1.bias']}", "layer 'more' is none of the study's"),
        ("def app(p, t): return [*p.values(), *p.values()]", "ended with exit code 1"),
        ("def app(p, t): return {n: v.astype(np.float64) for n, v in p.items()}", "ended with exit code 1"),
        ("nothing = 1", "ended with exit code 1"),
    ],
)
def test_whatever_a_program_does_wrong_is_named_without_what_it_printed(tmp_path: Path, body: str, said: str) -> None:
    with pytest.raises(UnusableUpdate) as refused:
        trainer(tmp_path, body).train(FIRST, 1)
    assert refused.value.detail.startswith("the site's trainer (python) ")
    assert said in refused.value.detail
    assert "93" not in refused.value.detail


def test_a_program_that_hangs_is_killed_with_what_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time is over once it has started something, however long that takes on this machine."""
    started, wait = tmp_path / "state" / "trainer" / "child", subprocess.Popen.wait

    def over(process, timeout=None):
        if timeout is None:
            return wait(process)
        while process.poll() is None and not (started.is_file() and started.read_text()):
            time.sleep(0.05)
        raise subprocess.TimeoutExpired(process.args, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", over)
    body = """
import subprocess
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open("child", "w").write(str(child.pid))
def app(p, t): time.sleep(600)
"""
    hangs = replace(trainer(tmp_path, body), study=study(round_deadline_s=5.0))
    with pytest.raises(UnusableUpdate, match=r"did not end within the 5 s of a round and was killed"):
        hangs.train(FIRST, 1)
    child = int(started.read_text())
    until(lambda: not runs(child))


def runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_the_model_of_a_round_before_never_stands_in(tmp_path: Path) -> None:
    one = trainer(tmp_path, "def app(p, t):\n    if t['round'] == 2: os._exit(0)\n    return p")
    assert np.array_equal(one.train(FIRST, 1), FIRST)
    with pytest.raises(UnusableUpdate, match="ended without a trained model"):
        one.train(FIRST, 2)


def header(**changes: object) -> bytes:
    entries: dict[str, object] = {
        "1.weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "1.bias": {"dtype": "F32", "shape": [2], "data_offsets": [24, 32]},
    }
    return json.dumps(entries | changes).encode()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (struct.pack("<Q", 2**40), "its header has"),
        (struct.pack("<Q", 2) + b"[]", "no JSON object"),
        (struct.pack("<Q", 2) + b"x}", "Expecting"),
        (header(**{"1.bias": {"dtype": "F64", "shape": [2], "data_offsets": [24, 32]}}), "found dtype F64"),
        (header(**{"1.bias": {"dtype": "F32", "shape": [2], "data_offsets": [24, 40]}}), "do not fill its shape"),
        (header(**{"1.bias": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}), "do not fill 32 bytes"),
        (header(**{"1.bias": {"dtype": "F32", "shape": [2], "data_offsets": [True, 9]}}), "do not fill its shape"),
        (header(**{"1.bias": {"dtype": "F32"}}), "not of safetensors"),
        (header(), "do not fill 32 bytes"),
    ],
)
def test_a_file_that_is_not_the_study_s_model_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "after.safetensors"
    framed = content if content[0] != ord("{") else struct.pack("<Q", len(content)) + content
    path.write_bytes(framed + bytes(40))
    with pytest.raises(ValueError, match=said):
        read_tensors(path, SHAPES)


def test_what_is_written_is_safetensors(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    arrays = {"1.weight": FIRST[:6].reshape(2, 3), "1.bias": FIRST[6:]}
    write_tensors(tmp_path / "ours", arrays)
    save_file({name: np.ascontiguousarray(value) for name, value in arrays.items()}, tmp_path / "theirs")
    for found in (load_file(tmp_path / "ours"), read_tensors(tmp_path / "theirs", SHAPES)):
        assert {name: value.tolist() for name, value in found.items()} == {n: v.tolist() for n, v in arrays.items()}
    with pytest.raises(ValueError, match="float64"):
        write_tensors(tmp_path / "double", {"x": np.zeros(1)})


@pytest.mark.parametrize("key", ["python", "program"])
def test_what_is_not_there_is_named_at_once(tmp_path: Path, key: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"key 'trainer.{key}': .*none is no file"):
        trainer(tmp_path, "", **{key: tmp_path / "none"})


def learner(folder: Path, body: str, of: Study) -> ForeignLearner:
    rng = np.random.default_rng(1)
    part = Examples(rng.normal(size=(8, 3)).astype(np.float32), np.arange(8) % 2)
    save_folder(folder / "data", LocalData(part, part))
    return ForeignLearner(of, folder / "data", "cpu", 1, folder / "state", settings(folder, body))


DOUBLE = "def app(p, t): return {n: 2 * v for n, v in p.items()}"


def test_the_update_is_how_far_the_model_moved_over_the_rate(tmp_path: Path) -> None:
    one = learner(tmp_path, DOUBLE, study())
    one.prepare()
    assert np.array_equal(one.update(FIRST, 1), -FIRST / 0.5)
    assert one.sample_count() == 8
    assert one.scores(FIRST)


def test_a_trainer_that_does_not_run_is_named_before_the_site_is_ready(tmp_path: Path) -> None:
    one = learner(tmp_path, "def app(p, t): os._exit(3)", study())
    with pytest.raises(
        ConfigurationError, match=r"study 'foreign': the site's trainer \(python\) ended with exit code 3"
    ):
        one.prepare()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"training": TrainingSpec()}, "'gradient'"),
        ({"model": MODEL.model_copy(update={"kind": "plugin"})}, "plug-in"),
        ({"model": model_spec("linear", (3,), (), 2, personal=("input",))}, "statistics or layers"),
    ],
)
def test_studies_that_such_a_trainer_cannot_serve_are_refused(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        learner(tmp_path, DOUBLE, study(**changes))


@pytest.mark.parametrize(
    "ask",
    [lambda one: one.update_noise(FIRST, 1), lambda one: one.hold_out(FinishTable())],
)
def test_what_needs_moiety_s_own_training_is_refused(tmp_path: Path, ask: Callable[[ForeignLearner], object]) -> None:
    with pytest.raises(ConfigurationError, match="trainer"):
        ask(learner(tmp_path, DOUBLE, study()))


def loaded(folder: Path, table: str = "") -> TrainerSettings:
    (folder / "settings.toml").write_text(GOOD + table)
    return load_settings(folder / "settings.toml").trainer


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('kind = "flower"\n', "needs python"),
        ('program = "x.py"\n', "needs kind"),
        ('kind = "fate"\npython = "p"\nprogram = "x.py"\n', "kind"),
        ('kind = "flower"\npython = "p"\nprogram = "x.py"\ntimeout_s = 9.0\n', "timeout_s' is no setting any more"),
    ],
)
def test_settings_that_are_half_a_trainer_are_refused(tmp_path: Path, table: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        loaded(tmp_path, f"[trainer]\n{table}")


def test_paths_of_a_trainer_are_relative_to_its_settings(tmp_path: Path) -> None:
    table = '[trainer]\nkind = "flower"\npython = "env/bin/python"\nprogram = "client.py"\nconfig = { a = 1 }\n'
    found = loaded(tmp_path, table)
    assert (found.python, found.program) == (tmp_path / "env/bin/python", tmp_path / "client.py")
    assert found.config == {"a": 1}
    assert loaded(tmp_path).kind is None


def test_an_environment_without_the_framework_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnusableUpdate, match=r"\(flower\) ended with exit code 1"):
        trainer(tmp_path, "app = None", kind="flower").train(FIRST, 1)
    assert os.linesep in (tmp_path / "state" / "trainer" / "trainer.log").read_text()


def test_a_program_that_prints_without_end_leaves_its_last_words_and_fills_no_disk(tmp_path: Path) -> None:
    body = """
def app(p, t):
    for _ in range(100):
        os.write(1, b"x" * 65536)
    print("the last words", flush=True)
    return p
"""
    trainer(tmp_path, body).train(FIRST, 1)
    log = tmp_path / "state" / "trainer" / "trainer.log"
    kept = [log, put_aside(log)]
    assert all(0 < path.stat().st_size <= LOG_BYTES for path in kept)
    assert log.read_text().endswith("the last words\n")
    trainer(tmp_path, "def app(p, t): return p").train(FIRST, 2)
    assert log.read_bytes() == b""
    assert not put_aside(log).exists()


def test_a_process_that_escaped_holds_nobody_up(tmp_path: Path) -> None:
    """It still runs, with the program's output open, when the training is over."""
    body = """
import subprocess
def app(p, t):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    open("child", "w").write(str(child.pid))
    return p
"""
    trainer(tmp_path, body).train(FIRST, 1)
    child = int((tmp_path / "state" / "trainer" / "child").read_text())
    assert runs(child)
    os.kill(child, signal.SIGKILL)


def test_a_full_disk_loses_words_and_not_the_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_trainer, "LOG_BYTES", 0)
    monkeypatch.setattr(foreign_trainer, "put_aside", lambda path: path / "nowhere" / "at all")
    one = trainer(tmp_path, "def app(p, t):\n    print('words')\n    return p")
    assert np.array_equal(one.train(FIRST, 1), FIRST)
    assert (tmp_path / "state" / "trainer" / "trainer.log").read_bytes() == b""
