"""Studies and rounds under CKKS: what they may name, and how a round goes without side B's shares."""

from __future__ import annotations

import json

import pytest

from protocol.ckks.ciphertext import CkksParameters
from protocol.errors import ConfigurationError, MalformedMessage
from protocol.messages.control import Announcement, Purpose, RuleName, Study, StudyProtection
from protocol.messages.round import ShareKind
from protocol.parameters import Needs
from protocol.protection.ckks import Ciphertexts
from tests.unit.parties import announcement, parties, study

STUDY = study(parties().roster.message.digest())
KEY_ID = "5c" * 16


def under_ckks(rule: dict[str, object], own_weight: int = 0) -> Study:
    fields = STUDY.model_dump(mode="json") | {"protection": "ckks", "rule": rule}
    fields["parameters"]["dimension"] = STUDY.model_dimension + own_weight
    return Study.parse(json.dumps(fields).encode())


def changed(**changes: object) -> Announcement:
    fields = json.loads(announcement("a" * 64).canonical()) | changes
    return Announcement.parse(json.dumps(fields).encode())


def test_a_study_shares_unless_it_says_otherwise() -> None:
    assert STUDY.protection is StudyProtection.SHARES


@pytest.mark.parametrize(
    ("rule", "own_weight"),
    [(RuleName.FEDAVG, 0), (RuleName.LOCAL, 0), (RuleName.FEDAVG_BY_SAMPLES, 1), (RuleName.WFEDAVG, 1)],
)
def test_averaging_rules_run_under_ckks_and_the_weight_is_one_value_more(rule: RuleName, own_weight: int) -> None:
    made = under_ckks({"name": rule.value}, own_weight)
    assert Ciphertexts().whole(made, Purpose.UPDATE) == (ShareKind.CIPHERTEXT, made.model_dimension + 1)
    assert made.model_dimension == 6
    assert made.least_weight == (1 / 32 if own_weight else 1.0)


@pytest.mark.parametrize("rule", [rule for rule in RuleName if not rule.only_averages])
def test_other_rules_are_refused_with_the_ones_that_run(rule: RuleName) -> None:
    with pytest.raises(MalformedMessage, match="take one of 'fedavg', 'fedavg_by_samples', 'wfedavg', 'local'"):
        under_ckks({"name": rule.value})


def test_a_norm_bound_is_refused_since_nothing_is_opened_about_a_ciphertext() -> None:
    with pytest.raises(MalformedMessage, match="norm_bound opens norms"):
        under_ckks({"name": "fedavg", "norm_bound": 2.0})


def test_a_cohort_beyond_what_decrypts_is_refused() -> None:
    CkksParameters().require_sites(100)
    with pytest.raises(ConfigurationError, match="up to 100 sites, found 101"):
        CkksParameters().require_sites(101)


def test_an_announcement_with_a_key_is_one_of_ciphertexts() -> None:
    assert changed(ckks_key_id=KEY_ID, opens="nothing").protection.plan.keyed
    assert not changed().protection.plan.keyed


@pytest.mark.parametrize(
    "changes", [{"opens": Needs.DISTANCES.value}, {"opens": "nothing", "purpose": Purpose.COUNTS.value}]
)
def test_measured_rounds_and_counts_never_travel_under_ckks(changes: dict[str, str]) -> None:
    with pytest.raises(MalformedMessage, match="only updates about which nothing is opened"):
        changed(ckks_key_id=KEY_ID, **changes)
