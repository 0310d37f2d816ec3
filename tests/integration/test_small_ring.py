"""Studies whose shares are modulo 2^48 over both servers (``test_rules_secure_equals_plain.py``: plain twins)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from client_agent.site.events import RoundEnd
from harness.federation.in_memory_federation import InMemoryFederation
from harness.federation.learners import EROSION, light_study
from protocol.messages.control import RuleName, RuleSpec
from protocol.sharing import Side
from tests.integration.agents import changed, final_model, in_memory, run_to_end
from tests.kit.present import present

pytestmark = pytest.mark.uncounted

SITES = ("requester", "c1", "c2", "c3")
SKETCHED = 2500


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InMemoryFederation]:
    with in_memory(tmp_path_factory.mktemp("small")) as running:
        running.start()
        yield running


def run(
    running: InMemoryFederation, name: str, bits: int, rule: RuleSpec, dimension: int
) -> tuple[np.ndarray, list[dict[str, float]], set[str]]:
    """Two rounds, so that each side masks one: the model, the distances, and what kinds of shares the servers held."""
    study = light_study(running.parties, f"{name}-{bits}", EROSION, rounds=2, dimension=dimension)
    numbers = {"ring_bits": bits, "weight_grid": 3, "dimension": dimension + rule.name.self_weighted}
    study = changed(study, rule=rule, **numbers)
    records = run_to_end(running, study)
    assert {record.state for record in records} == {RoundEnd.RELEASED}
    assert all(not record.failed_check for record in records)
    kinds = set()
    for side in Side:
        store = running.servers.apps[side].state.server.store
        found = present(store.current_round(study.digest()))
        kinds |= {held.header.share_kind.value for held in store.contributions(found.key)}
    (model,) = {final_model(running, site, study.name) for site in SITES}
    distances = [{one.site: one.value for one in record.distances} for record in records]
    return np.frombuffer(model, dtype=np.float32), distances, kinds


@pytest.mark.parametrize(
    ("name", "rule", "dimension"),
    [
        ("exact", EROSION, 12),
        ("sketched", EROSION, SKETCHED),
        ("counts-and-own-weights", RuleSpec(name=RuleName.WFEDAVG), 12),
    ],
)
def test_over_both_servers_it_is_the_study_of_64_bits_up_to_rounding(
    federation: InMemoryFederation, name: str, rule: RuleSpec, dimension: int
) -> None:
    wide, at_64, kinds_64 = run(federation, name, 64, rule, dimension)
    narrow, at_48, kinds_48 = run(federation, name, 48, rule, dimension)
    assert (kinds_64, kinds_48) == ({"seed", "vector"}, {"seed", "vector48"})
    assert np.max(np.abs(wide - narrow)) < 1e-4
    assert np.any(wide != 0)
    assert [sorted(one) for one in at_64] == [sorted(one) for one in at_48]
    if dimension == SKETCHED or rule is not EROSION:
        return
    for ours, theirs in zip(at_48, at_64, strict=True):
        assert all(abs(ours[site] - theirs[site]) < 1e-3 for site in ours)
