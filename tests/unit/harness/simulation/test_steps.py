"""How far the shipped studies may move a model: within what sites allow by default, and a huge clip norm is not."""

from __future__ import annotations

import pytest

from client_agent.learning.study_file import study_from_table
from harness.datasets.bundled import breast_cancer_five_hospitals, digits_sites
from harness.demo.studies import BREAST_CANCER, DIGITS, HEART_DISEASE, study_of
from harness.engine.parties import SiteEntry, make_parties
from harness.simulate.case import read_case
from harness.simulate.study_files import STUDIES
from protocol.errors import PolicyRefusal
from protocol.messages.control import RuleName, Study
from protocol.policy.site_policy import SitePolicy, check_steps_allowed
from protocol.shared_model import state_vectors
from tests.unit.harness.simulation.test_case import CASES

POLICY = SitePolicy()
ROSTER = make_parties("steps", "s0", [SiteEntry(f"s{k}", 50) for k in range(12)], bytes(32)).roster.message


@pytest.mark.parametrize("name", CASES)
def test_every_variant_of_a_shipped_study_is_within_the_default_caps(name: str) -> None:
    """Of those that sites could be asked: a baseline of the literature runs in one process alone."""
    for variant in read_case(STUDIES / f"{name}.toml").variants:
        if variant.baseline is not None:
            continue
        rule = variant.study.rule.model_copy(update={"erosion_applies": "next_round"})
        study = study_from_table(variant.study.model_copy(update={"rule": rule}), name, ROSTER, None)
        check_steps_allowed(study, POLICY)
        if state_vectors(study.rule.name) == 1:  # the others divide by what they saw, whatever C is
            with pytest.raises(PolicyRefusal, match="largest_step"):
                check_steps_allowed(with_clip_norm(study, 2.0**100), POLICY)


@pytest.mark.parametrize("settings", [BREAST_CANCER, DIGITS, HEART_DISEASE], ids=lambda settings: settings.name)
@pytest.mark.parametrize("rule", [RuleName.WEIGHT_EROSION, RuleName.FEDAVG, RuleName.WFEDAVG, RuleName.FEDADAM])
def test_the_demo_is_within_the_default_caps(settings, rule: RuleName) -> None:
    federation = digits_sites(0) if settings is DIGITS else breast_cancer_five_hospitals(0)
    check_steps_allowed(study_of(settings, federation, rule, ROSTER.digest(), 0), POLICY)


def with_clip_norm(study: Study, clip_norm: float) -> Study:
    return study.model_copy(update={"parameters": study.parameters.model_copy(update={"clip_norm": clip_norm})})
