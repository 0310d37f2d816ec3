"""Seconds from lock to release over real processes: ten contributors, twenty parameters, one batch of products.

Server A measures: from both signatures under the agreed set to the released sum,
with the requester's queries, opening and release set in between.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from client_agent.learning.data import Examples, LocalData
from client_agent.learning.models import dimension, model_spec
from harness.federation.federated_run import FederatedRun, run_study
from harness.federation.measurements import Traffic, measure
from harness.federation.processes import FederationSpec, RunningFederation, SiteSpec
from harness.warm import warm
from protocol.parameters import StudyParameters
from protocol.wire.messages import RuleName, RuleSpec, Study, TrainingSpec

CONTRIBUTORS: Final = 10
_INPUTS: Final = 9
_ROWS: Final = 64
_ROUNDS: Final = 10
_MODEL: Final = model_spec("linear", (_INPUTS,), (), 2)


@dataclass(frozen=True)
class LatencyBenchmark:
    """Means over a study's rounds; ``lock_to_release_s`` is server A's own measure."""

    contributors: int
    parameters: int
    released_rounds: int
    lock_to_release_s: float | None
    whole_round_s: float
    between_servers_bytes_per_contributor: float


def benchmark_latency(rounds: int = _ROUNDS) -> LatencyBenchmark:
    """Run it, after a warm-up of the kernels."""
    warm()
    with tempfile.TemporaryDirectory(prefix="moiety-bench-") as folder:
        run, traffic = _measure(Path(folder), rounds)
    later = run.round_seconds[1:]
    return LatencyBenchmark(
        contributors=CONTRIBUTORS,
        parameters=traffic.parameters,
        released_rounds=run.history.shared_rounds,
        lock_to_release_s=traffic.lock_to_release_s,
        whole_round_s=sum(later) / len(later),
        between_servers_bytes_per_contributor=traffic.between_servers_per_contributor_round,
    )


def _measure(folder: Path, rounds: int) -> tuple[FederatedRun, Traffic]:
    """One Weight Erosion study over ``CONTRIBUTORS`` agents and a requester, on made-up data."""
    with RunningFederation(small_federation(CONTRIBUTORS), folder) as federation:
        run = run_small_study(federation, rounds)
        return run, measure(federation, [run.history], dimension(_MODEL))


def small_federation(contributors: int) -> FederationSpec:
    """A requester and so many sites, on made-up data, with seeded draws."""
    names = ("requester", *(f"site-{number}" for number in range(1, contributors + 1)))
    return FederationSpec("benchmark", "requester", tuple(_site(name, n) for n, name in enumerate(names)), seed=0)


def run_small_study(federation: RunningFederation, rounds: int) -> FederatedRun:
    """A Weight Erosion study of a linear model. Raises: Unavailable"""
    study = small_study(federation.parties.roster.message.digest(), rounds)
    return run_study(federation, study, lambda progress: None)


def small_study(roster_digest: str, rounds: int) -> Study:
    """The study that is run, for whoever wants one that is not."""
    return Study(
        name="benchmark",
        roster_digest=roster_digest,
        parameters=StudyParameters(dimension=dimension(_MODEL), clip_norm=4.0, least_contributors=3),
        rule=RuleSpec(name=RuleName.WEIGHT_EROSION),
        model=_MODEL,
        training=TrainingSpec(batch_size=16),
        rounds=rounds,
        seed=0,
    )


def _site(name: str, number: int) -> SiteSpec:
    """Two blurred classes, the same at every site but for a shift."""
    rng = np.random.default_rng([number, _ROWS])
    y = rng.integers(0, 2, size=_ROWS)
    X = (rng.normal(size=(_ROWS, _INPUTS)) + y[:, None] + 0.1 * number).astype(np.float32)
    part = Examples(X, y.astype(np.int64))
    return SiteSpec(name, LocalData(part, part))
