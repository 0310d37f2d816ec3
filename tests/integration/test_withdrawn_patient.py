"""A patient withdraws in the middle of a study: the record is in nothing from then on, and the site's memory stays.

As docs/auditing.md has it: the record leaves the table, the data folder is made again, the agent is started again.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from client_agent.learning.data import Examples, LocalData, save_folder
from client_agent.learning.learner import Learner
from client_agent.settings import AgentSettings, load_settings
from client_agent.site.events import RoundEnd
from harness.federation.in_memory_federation import InMemoryFederation
from harness.federation.learners import torch_learner
from protocol.messages.control import Study
from protocol.policy.site_policy import SitePolicy
from tests.integration.agents import FEDAVG, REQUESTER, finished, rounds_of, site_data, spec, study_for

pytestmark = pytest.mark.uncounted

SITES = ("c1", "c2", "c3")
AT = "c1"
ROUNDS = 5


def remembered(federation: InMemoryFederation) -> dict[str, bytes]:
    """The site's memory of sums, by file."""
    folder = federation.state(AT) / "sums"
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_record_taken_out_is_in_nothing_from_the_restart_on_and_the_memory_stays(tmp_path: Path) -> None:
    trained_on: list[np.ndarray] = []

    def learner(settings: AgentSettings, study: Study, seed: int) -> Learner:
        made = torch_learner(settings, study, seed)
        if settings.site == AT:
            trained_on.append(made._data.train.X)  # type: ignore[attr-defined]  # what this learner sees of patients
        return made

    policies = {site: SitePolicy(least_isolation=0.0) for site in SITES}
    with InMemoryFederation(spec(policies), tmp_path, learner) as federation:
        folder = load_settings(federation.config(AT)).data
        before = site_data(1 + SITES.index(AT))
        assert np.array_equal(np.load(folder / "train.npz")["X"], before.train.X)
        withdrawn = before.train.X[7]
        federation.start()
        asked = study_for(federation, "withdrawn", FEDAVG, ROUNDS)
        federation.hand_in(asked)
        federation.until("two rounds", lambda: len(rounds_of(federation, AT, asked.name)) >= 2)
        federation.stop_agents(AT)
        kept = remembered(federation)
        rest = np.arange(len(before.train.X)) != 7
        save_folder(folder, LocalData(Examples(before.train.X[rest], before.train.y[rest]), before.test))
        federation.start(AT)
        federation.until("the end", finished(federation, asked.name, REQUESTER, *SITES))
        records = rounds_of(federation, REQUESTER, asked.name)
        after = remembered(federation)

    first, *later = trained_on
    assert (first == withdrawn).all(axis=1).any()
    assert later
    assert not any((seen == withdrawn).all(axis=1).any() for seen in later)
    assert all(len(seen) == len(first) - 1 for seen in later)
    assert [record.state for record in records] == [RoundEnd.RELEASED] * ROUNDS
    assert AT in records[0].took_part
    assert AT in records[-1].took_part
    assert kept
    assert kept.items() <= after.items()
    assert len(after) > len(kept)
