"""Seconds from lock to release over real processes: ten contributors, twenty parameters, one batch of products.

``python -m harness.benchmark``. Server A measures: from both signatures under the agreed set to the released sum,
with the requester's queries, opening and release set in between.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

import numpy as np
from rich.console import Console

from client_agent.data import Examples, LocalData
from client_agent.models import dimension, model_spec
from harness.federated_run import FederatedRun, run_study
from harness.measurements import Traffic, measure
from harness.processes import FederationSpec, RunningFederation, SiteSpec
from harness.warm import warm
from protocol.parameters import StudyParameters
from protocol.wire.messages import RuleName, RuleSpec, Study, TrainingSpec

CONTRIBUTORS: Final = 10
_INPUTS: Final = 9
_ROWS: Final = 64
_ROUNDS: Final = 10


def benchmark(folder: Path, rounds: int = _ROUNDS) -> tuple[FederatedRun, Traffic]:
    """One Weight Erosion study over ``CONTRIBUTORS`` agents and a requester, on made-up data."""
    names = ("requester", *(f"site-{number}" for number in range(1, CONTRIBUTORS + 1)))
    spec = FederationSpec("benchmark", "requester", tuple(_site(name, n) for n, name in enumerate(names)), seed=0)
    model = model_spec("linear", (_INPUTS,), (), 2)
    with RunningFederation(spec, folder) as federation:
        study = Study(
            name="benchmark",
            roster_digest=federation.parties.roster.message.digest(),
            parameters=StudyParameters(dimension=dimension(model), clip_norm=4.0, least_contributors=3),
            rule=RuleSpec(name=RuleName.WEIGHT_EROSION),
            model=model,
            training=TrainingSpec(batch_size=16),
            rounds=rounds,
            seed=0,
        )
        run = run_study(federation, study, lambda progress: None)
        return run, measure(federation, [run.history], dimension(model))


def main() -> None:
    """Run it and print what was measured."""
    console = Console()
    warm()
    with tempfile.TemporaryDirectory(prefix="moiety-benchmark-") as folder:
        run, traffic = benchmark(Path(folder))
    console.print(
        f"{CONTRIBUTORS} contributors, {traffic.parameters} parameters, {run.history.shared_rounds} released rounds"
    )
    shown = "not measured" if traffic.lock_to_release_s is None else f"{traffic.lock_to_release_s:.3f} s"
    console.print(f"from lock to release, mean: {shown}")
    later = run.round_seconds[1:]
    console.print(f"whole rounds after the first, mean: {sum(later) / len(later):.3f} s")
    console.print(
        f"between the servers: {traffic.between_servers_per_contributor_round:,.0f} bytes a contributor and round"
    )


def _site(name: str, number: int) -> SiteSpec:
    """Two blurred classes, the same at every site but for a shift."""
    rng = np.random.default_rng([number, _ROWS])
    y = rng.integers(0, 2, size=_ROWS)
    X = (rng.normal(size=(_ROWS, _INPUTS)) + y[:, None] + 0.1 * number).astype(np.float32)
    part = Examples(X, y.astype(np.int64))
    return SiteSpec(name, LocalData(part, part))


if __name__ == "__main__":
    main()
