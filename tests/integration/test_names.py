"""Columns in another order at one site: its agent refuses before it is ready, and takes part once they are mended."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from client_agent.learning.data import LocalData, save_folder
from client_agent.learning.names import DataNames
from client_agent.site.events import EventKind
from harness.federation.memory.federation import InMemoryFederation
from harness.federation.memory.learners import torch_learner
from harness.federation.processes import FederationSpec, SiteSpec
from protocol.messages.control import RuleName, RuleSpec
from protocol.policy.site_policy import SitePolicy
from tests.integration.agents import (
    MODEL,
    REQUESTER,
    final_model,
    finished,
    rounds_of,
    site_data,
    study_for,
)
from tests.ports import free_ports

CONTRIBUTORS = ("c1", "c2", "c3")
SITES = (REQUESTER, *CONTRIBUTORS)
NAMES = DataNames(("age", "sex", "pressure", "cholesterol", "glucose"), ("healthy", "ill"))
TURNED = (0, 1, 3, 2, 4)
STUDY = "named"


def turned(data: LocalData) -> LocalData:
    """The same examples with two columns in each other's place, and named so."""
    train, test = (replace(part, X=np.ascontiguousarray(part.X[:, TURNED])) for part in (data.train, data.test))
    return replace(
        data, train=train, test=test, names=DataNames(tuple(NAMES.features[n] for n in TURNED), NAMES.classes)
    )


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[InMemoryFederation]:
    data = {name: replace(site_data(place), names=NAMES) for place, name in enumerate(SITES)}
    sites = tuple(
        SiteSpec(name, turned(own) if name == "c2" else own, SitePolicy(least_isolation=0.0))
        for name, own in data.items()
    )
    spec = FederationSpec("names", REQUESTER, sites, seed=8, ports=free_ports(), bootstrap_samples=0)
    with InMemoryFederation(spec, tmp_path, torch_learner) as running:
        yield running


def test_a_site_with_columns_in_another_order_is_not_ready_until_they_are_mended(servers: InMemoryFederation) -> None:
    of = study_for(servers, STUDY, RuleSpec(name=RuleName.FEDAVG), rounds=2, deadline_s=60.0)
    with servers.agents():
        servers.hand_in(of.model_copy(update={"model": MODEL.named(NAMES.features, NAMES.classes)}))
        servers.until("c2's refusal", lambda: bool(servers.texts(EventKind.PROBLEM, "c2")))
        (refused,) = servers.texts(EventKind.PROBLEM, "c2")
        assert refused.startswith("configuration: study 'named': its feature_names are not those of")
        assert "the same names in another order" in refused
        gone, come = (set(re.findall(rf"^\{sign}(\w+)$", refused, re.MULTILINE)) for sign in "-+")
        assert gone == come
        assert gone in ({"pressure"}, {"cholesterol"})
        assert rounds_of(servers, REQUESTER, STUDY) == ()
        servers.stop_agents("c2")
        save_folder(servers.files.folder / "c2" / "data", replace(site_data(SITES.index("c2")), names=NAMES))
        servers.start("c2")
        servers.until("the end", finished(servers, STUDY, *SITES))
    assert [record.took_part for record in rounds_of(servers, REQUESTER, STUDY)] == [SITES] * 2
    assert len({final_model(servers, site, STUDY) for site in SITES}) == 1
