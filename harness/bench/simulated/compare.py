"""Plain simulation against a hand-written loop of the same steps: CPU seconds of both, and their ratio.

Both train in this process on one thread, in turn; each figure is the median over repeats, after one that does not
count. Imports, reading of data and result files belong to neither. That both end with the same model shows that they
take the same steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Final

import numpy as np
from pydantic import BaseModel, ConfigDict

from client_agent.learning.data import Examples
from client_agent.learning.flat_vector import model_vector
from client_agent.learning.models import build_model
from client_agent.learning.study_file import checked_study_table
from harness.bench.probe import machine
from harness.bench.simulated.by_hand import train_by_hand
from harness.datasets.site_data import Federation, SiteData
from harness.engine.loop import run_plain
from harness.engine.training import one_thread
from harness.simulate.study_files import simulated_study
from protocol.wire.messages import Study

TEST_ROWS: Final = 100
FEATURES: Final = 13


class SimulateBenchmark(BaseModel):
    """``ratio`` is simulation over hand-written; ``largest_difference`` is between the two final models."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    sites: int
    rounds: int
    rows: int
    features: int
    batch_size: int
    repeats: int
    machine: str
    simulate_cpu_s: float
    by_hand_cpu_s: float
    ratio: float
    largest_difference: float


def benchmark_simulation(sites: int, rounds: int, rows: int, batch_size: int, repeats: int) -> SimulateBenchmark:
    """``rows`` training examples at each of ``sites`` sites, 13 features, two classes, FedAvg, one epoch a round."""
    federation = _federation(sites, rows)
    study = _study(federation, rounds, batch_size)
    ends: dict[str, np.ndarray] = {}

    def simulated() -> None:
        ends["simulated"] = run_plain(study, federation.sites).final_model

    def by_hand() -> None:
        model = build_model(study.model, study.seed or 0)
        train_by_hand(study, federation.sites, model)
        ends["by hand"] = model_vector(model)

    with one_thread():
        pairs = [(_cpu_s(simulated), _cpu_s(by_hand)) for _ in range(repeats + 1)][1:]
    ours, theirs = median(pair[0] for pair in pairs), median(pair[1] for pair in pairs)
    return SimulateBenchmark(
        sites=sites,
        rounds=rounds,
        rows=rows,
        features=FEATURES,
        batch_size=batch_size,
        repeats=repeats,
        machine=machine(),
        simulate_cpu_s=ours,
        by_hand_cpu_s=theirs,
        ratio=ours / theirs,
        largest_difference=float(np.abs(ends["simulated"] - ends["by hand"]).max()),
    )


def simulate_text(result: SimulateBenchmark) -> str:
    """The figures, one a line."""
    return (
        f"{result.rounds} rounds of logistic regression, {result.sites} sites of {result.rows} rows, "
        f"{result.features} features, batches of {result.batch_size}, {result.machine}\n"
        f"CPU seconds, medians of {result.repeats}: plain simulation {result.simulate_cpu_s:.3f}, "
        f"by hand {result.by_hand_cpu_s:.3f}, ratio {result.ratio:.2f} (target: below 2)\n"
        f"largest difference between the two models: {result.largest_difference:.2g}"
    )


def _cpu_s(work: Callable[[], None]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


def _federation(sites: int, rows: int) -> Federation:
    random = np.random.default_rng(0)

    def examples(count: int) -> Examples:
        X = random.standard_normal((count, FEATURES)).astype(np.float32)
        return Examples(X, (X[:, 0] + random.standard_normal(count) > 0).astype(np.int64))

    made = tuple(
        SiteData(f"site-{number}", examples(rows), examples(0), examples(TEST_ROWS)) for number in range(sites)
    )
    return Federation("drawn for the benchmark", (FEATURES,), ("no", "yes"), made)


def _study(federation: Federation, rounds: int, batch_size: int) -> Study:
    table = {
        "name": "benchmark",
        "rounds": rounds,
        "model": {"kind": "linear", "inputs": [FEATURES]},
        "rule": {"name": "fedavg"},
        "training": {
            "update": "local_sgd",
            "batch_size": batch_size,
            "local_learning_rate": 0.05,
            "server_learning_rate": 0.05,
        },
        "parameters": {"clip_norm": 1024.0},
    }
    return simulated_study(checked_study_table(table, "the benchmark"), "the benchmark", federation, 0)
