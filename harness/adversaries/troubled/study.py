"""One study of several rounds over a network, and what it came to: its end, its models, and what the servers hold."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from harness.federation.memory.federation import InMemoryFederation
from harness.federation.memory.learners import EROSION, light_learner, light_sites, light_study
from harness.federation.memory.network import Network
from harness.federation.processes import FederationSpec
from protocol.policy.site_policy import SitePolicy
from protocol.wire.messages import RuleSpec, Study

SITES: Final = ("requester", "c1", "c2", "c3")
NAME: Final = "troubled"
ROUNDS: Final = 3
_LEAST: Final = 2
_POLICY: Final = SitePolicy(least_isolation=0.0, least_contributors=_LEAST)


@dataclass(frozen=True)
class Plan:
    """The study: how long a round waits for its sites, and how long anybody waits for the study's end (their time).

    Most of a share of so many parameters stands behind its envelope.
    """

    rule: RuleSpec = EROSION
    rounds: int = ROUNDS
    dimension: int = 2_000
    deadline_s: float = 120.0
    within_s: float = 6 * 3600.0


def federation_spec() -> FederationSpec:
    """Four sites of whom any two contributors are enough."""
    return FederationSpec("troubled", SITES[0], light_sites(SITES, _POLICY), seed=5)


def federation(folder: Path, network: Network | None) -> InMemoryFederation:
    return InMemoryFederation(federation_spec(), folder, light_learner, network=network)


def study_of(running: InMemoryFederation, plan: Plan) -> Study:
    study = light_study(running.parties, NAME, plan.rule, rounds=plan.rounds, dimension=plan.dimension)
    parameters = study.parameters.model_copy(update={"least_contributors": _LEAST})
    return study.model_copy(update={"parameters": parameters, "round_deadline_s": plan.deadline_s})
