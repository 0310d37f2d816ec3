"""Runs in one process: every rule, plain, secure and under CKKS, as ``moiety simulate`` does them; and a ranking."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from harness.datasets.registry import DataRequest
from harness.engine.history import RunHistory
from harness.simulate.case import parse_case
from harness.simulate.case_run import CaseOptions, run_case
from harness.simulate.options import ProtectionName, StudyOptions
from harness.simulate.ranking import rank
from harness.simulate.run_one import Protection
from harness.simulate.study_run import run_simulation

Json = dict[str, Any]
Run = Callable[[Path], Json]
TIMES: Final = frozenset({"seconds", "versions", "code_digest"})
"""Fields of a run's line that say how long it took, on what, and by which code."""

CASE: Final = """
name = "every-rule"
rounds = 3
list_every = 1
[case]
data = "breast_cancer"
seeds = [3]
[case.policy]
least_isolation = 0.0
[model]
kind = "linear"
inputs = [30]
[training]
batch_size = 16
server_learning_rate = 0.3
[parameters]
clip_norm = 4.0
least_contributors = 3
"""
"""Policies ask for no isolation here, so that every round has a sum; the digits below have the default."""
AVERAGING: Final = """
[[variant]]
name = "fedavg"
rule = { name = "fedavg" }
[[variant]]
name = "fedavg_by_samples"
rule = { name = "fedavg_by_samples" }
parameters = { weight_grid = 2 }
[[variant]]
name = "wfedavg"
rule = { name = "wfedavg" }
parameters = { weight_grid = 2 }
[[variant]]
name = "local"
rule = { name = "local" }
"""
OTHERS: Final = """
[[variant]]
name = "weight_erosion"
rule = { name = "weight_erosion", distance_penalty = 0.05, size_penalty = 0.4 }
[[variant]]
name = "weight_erosion_batches"
rule = { name = "weight_erosion", distance_penalty = 0.05, epochs_counted = "batches" }
training = { update = "local_sgd", local_learning_rate = 0.1, momentum = 0.5 }
[[variant]]
name = "bounded"
rule = { name = "fedavg", norm_bound = 2.5 }
[[variant]]
name = "fedadagrad"
rule = { name = "fedadagrad" }
[[variant]]
name = "fedadam"
rule = { name = "fedadam" }
[[variant]]
name = "fedyogi"
rule = { name = "fedyogi" }
[[variant]]
name = "multi_krum"
rule = { name = "multi_krum" }
[[variant]]
name = "influence"
rule = { name = "influence", step = 0.5 }
"""
DIGITS: Final = """
name = "digits"
rounds = 2
list_every = 5
[model]
kind = "mlp"
inputs = [64]
hidden = [144]
classes = 10
[rule]
name = "weight_erosion"
distance_penalty = 0.015
size_penalty = 0.1
[training]
update = "local_sgd"
batch_size = 16
local_learning_rate = 0.1
server_learning_rate = 0.1
[parameters]
clip_norm = 16.0
least_contributors = 4
"""
"""Longer than a sketch."""


def every_rule(protection: Protection) -> Run:
    text = CASE + AVERAGING + ("" if protection is Protection.CKKS else OTHERS)

    def run(folder: Path) -> Json:
        case = parse_case(text, "every rule")
        lines = run_case(case, CaseOptions(folder, protection=protection, correlation_source="dealer"))
        return {line.variant: json.loads(line.model_dump_json(exclude=set(TIMES))) for line in lines}

    return run


def digits(protection: ProtectionName) -> Run:
    """A model of ten thousand parameters, with correlations from oblivious transfer and the sites' default policy."""

    def run(folder: Path) -> Json:
        path = folder / "digits.toml"
        path.write_text(DIGITS, encoding="utf-8")
        seen: list[RunHistory] = []
        result = run_simulation(StudyOptions(path, "digits", seeds="5", protection=protection), seen.append, "ot")
        found = json.loads(result.model_dump_json(exclude=set(TIMES)))
        models = [hashlib.sha256(history.final_model.tobytes()).hexdigest() for history in seen]
        return {"result": found, "models": models}

    return run


def ranking(secure: bool) -> Run:
    def run(folder: Path) -> Json:
        made = rank(DataRequest(data="breast_cancer", seed=4), secure=secure)
        return dict(json.loads(made.model_dump_json()))

    return run


SIMULATED: Final[dict[str, Run]] = {
    "rules-plain": every_rule(Protection.PLAIN),
    "rules-secure": every_rule(Protection.SECURE),
    "rules-ckks": every_rule(Protection.CKKS),
    "digits-plain": digits("plain"),
    "digits-secure": digits("secure"),
    "rank-plain": ranking(secure=False),
    "rank-secure": ranking(secure=True),
}
