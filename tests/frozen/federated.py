"""Federations of real processes with a seed: the demo, a study under CKKS, and one that ranks its sites first."""

from __future__ import annotations

import socket
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from rich.console import Console

from client_agent.learning.data import LocalData
from harness.datasets.bundled import breast_cancer_five_hospitals
from harness.demo import run as demo
from harness.demo.studies import BREAST_CANCER, study_of
from harness.federation.federated_run import run_study
from harness.federation.processes import FederationSpec, RunningFederation, SiteSpec
from protocol.messages.control import RankingSpec, RuleName, RuleSpec, Study, StudyProtection
from protocol.policy.site_policy import SitePolicy
from tests.frozen.left_behind import left_behind, model_fact
from tests.frozen.simulated import Run

PORTS: Final = (28641, 28642)
"""Studies' digests hold the servers' addresses, and a seed's draws the digests; nobody else asks for these."""
OPERATIONS_ABOVE: Final = 1000
SEED: Final = 6
DATA: Final = breast_cancer_five_hospitals(SEED)


def require_ports() -> None:
    """SystemExit where somebody else has a port: a federation would take others, and draw otherwise."""
    for port in (number + above for number in PORTS for above in (0, OPERATIONS_ABOVE)):
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                sys.exit(f"port {port} is in use, and these runs need {PORTS}: end what uses it, or wait")


def demonstration(folder: Path) -> Any:
    """The whole demo, on ports of its own."""
    require_ports()
    with patch.object(demo, "FederationSpec", partial(FederationSpec, ports=PORTS)):
        options = demo.DemoOptions(folder, quick=True, seed=SEED, keep=True)
        result = demo.run_demo(options, Console(quiet=True))
    places = sorted(path.parent for path in folder.rglob("roster.toml"))
    return {
        "processes": {str(place.relative_to(folder)): left_behind(place) for place in places},
        "in_process": {
            f"{study.key} {of.rule.value}": {
                "accuracies": of.accuracies,
                "identical": of.federated.final_models_identical,
                "models": [model_fact(run.final_model) for run in (of.federated.history, of.plain, *of.further)],
            }
            for study in result.studies
            for of in study.rules
        },
    }


def federation(rule: RuleSpec, **changes: Any) -> Run:
    """A study of two rounds over five hospitals."""
    policy = SitePolicy(least_isolation=0.0, allow_ckks=True, may_rank=True)

    def run(folder: Path) -> Any:
        sites = tuple(
            SiteSpec(s.name, LocalData(s.train, s.test, s.validation, DATA.names), policy) for s in DATA.sites
        )
        spec = FederationSpec("frozen", DATA.requester.name, sites, SEED, ports=PORTS)
        with RunningFederation(spec, folder) as running:
            roster_digest = running.parties.roster.message.digest()
            study = study_of(replace(BREAST_CANCER, name="frozen", rounds=2), DATA, rule.name, roster_digest, SEED)
            run_study(running, Study.model_validate({**dict(study), "rule": rule, **changes}), lambda progress: None)
            running.stop()
            return left_behind(running.folder)

    return run


FEDERATED: Final[dict[str, Run]] = {
    "federation-ckks": federation(RuleSpec(name=RuleName.FEDAVG), protection=StudyProtection.CKKS),
    "federation-ranking": federation(RuleSpec(name=RuleName.INFLUENCE), ranking=RankingSpec(penalty=0.02)),
    "demo": demonstration,
}
