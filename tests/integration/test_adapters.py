"""Sites whose trainers are Flower's, NVFlare's or a plain function: the sum is that of sites that train themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from client_agent.site.events import EventKind, RoundEnd
from harness.bench.cli import DEFAULT_CACHE
from harness.federation.in_memory_federation import InMemoryFederation
from harness.federation.processes import toml_lines
from protocol.messages.control import Study, TrainingSpec
from protocol.policy.site_policy import SitePolicy
from tests.integration.agents import FEDAVG, REQUESTER, changed, final_model, run_to_end, site_data, study_for, trained

CONTRIBUTORS = ("c1", "c2", "c3")
SITES = (REQUESTER, *CONTRIBUTORS)
DATA = {name: site_data(place) for place, name in enumerate(SITES)}
POLICY = SitePolicy(least_isolation=0.0, least_contributors=2)
EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples" / "trainers"
TRAINING = TrainingSpec(
    update="local_sgd", epochs=2, batch_size=10_000, local_learning_rate=0.25, server_learning_rate=0.25
)


def interpreter(framework: str, package: str) -> Path:
    """The interpreter of an environment with the framework; without one the test is skipped."""
    named = os.environ.get(f"MOIETY_TEST_{framework.upper()}_PYTHON")
    cached = sorted(DEFAULT_CACHE.expanduser().glob(f"{framework}-*/bin/python"))
    for one in ([Path(named)] if named else []) + cached + [Path(sys.executable)]:
        if subprocess.run([str(one), "-c", f"import {package}"], capture_output=True, check=False).returncode == 0:
            return one
    pytest.skip(f"{package} is not installed: moiety lab bench peers --only {framework} makes an environment with it")


def study(running: InMemoryFederation, rounds: int = 2) -> Study:
    made = study_for(running, "adapted", FEDAVG, rounds=rounds)
    return changed(made, training=TRAINING, least_contributors=2)


def give(running: InMemoryFederation, site: str, **trainer: object) -> None:
    """Put a [trainer] into a site's settings."""
    config = running.config(site)
    config.write_text(config.read_text() + "\n[trainer]\n" + toml_lines(trainer))


def model(folder: Path, trainers: dict[str, dict[str, object]]) -> np.ndarray:
    with trained(folder, DATA, POLICY) as running:
        for site, trainer in trainers.items():
            give(running, site, **trainer)
        running.start()
        records = run_to_end(running, study(running))
        assert [(one.state, one.took_part) for one in records] == [(RoundEnd.RELEASED, SITES)] * 2
        return np.frombuffer(final_model(running, REQUESTER, "adapted"), dtype=np.float32)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """The model of sites that train themselves."""
    return model(tmp_path_factory.mktemp("plain"), {})


@pytest.mark.parametrize(
    ("kind", "package", "program"),
    [
        ("python", "numpy", "plain_function.py"),
        ("flower", "flwr", "flower_client.py"),
        ("flower", "flwr", "flower_message_app.py"),
        ("nvflare", "nvflare", "nvflare_client.py"),
    ],
)
def test_a_foreign_trainer_that_takes_the_same_steps_comes_to_the_same_model(
    tmp_path: Path, plain: np.ndarray, kind: str, package: str, program: str
) -> None:
    trainer: dict[str, object] = {
        "kind": kind,
        "python": str(interpreter(kind, package)),
        "program": str(EXAMPLES / program),
    }
    found = model(tmp_path, {"c2": trainer})
    assert np.linalg.norm(plain) > 0.05
    # rounding of two rounds' sums, and float32 in another order
    assert np.max(np.abs(found - plain)) < 1e-4


def test_a_trainer_that_fails_in_a_round_is_a_decline_by_name_and_not_a_silence(tmp_path: Path) -> None:
    program = tmp_path / "odd.py"
    program.write_text("def app(p, t):\n    assert t['round'] != 2, 'patient 93'\n    return p\n")
    with trained(tmp_path / "federation", DATA, POLICY) as running:
        give(running, "c2", kind="python", python=sys.executable, program=str(program))
        running.start()
        records = run_to_end(running, study(running, rounds=3))
        declined = running.texts(EventKind.DECLINED, "c2")
        heard = [event.text for event in running.events if event.site == REQUESTER and "c2" in event.text]
    why = "the site's trainer (python) ended with exit code 1: this site's trainer.log has its last words"
    assert declined == [f"unusable_update: {why}"]
    assert any("the site's trainer (python) ended with exit code 1" in text for text in heard)
    assert not any("93" in text for text in heard)
    assert (SITES[0], "c1", "c3") in [one.took_part for one in records]


def test_a_trainer_that_never_runs_hinders_the_site_before_round_1(tmp_path: Path) -> None:
    with trained(tmp_path, DATA, POLICY) as running:
        give(running, "c2", kind="python", python=sys.executable, program=str(EXAMPLES / "nvflare_client.py"))
        running.start()
        running.hand_in(study(running))
        running.until("c2's problem", lambda: bool(running.texts(EventKind.PROBLEM, "c2")))
        (said,) = running.texts(EventKind.PROBLEM, "c2")
        running.until(
            "the requester hears",
            lambda: any("c2" in text and "cannot begin" in text for text in running.texts(EventKind.STUDY, REQUESTER)),
        )
    assert said.startswith("configuration: study 'adapted': the site's trainer (python) ended with exit code 1")
