"""A trained model from tables of the Cleveland form: every site prepares its own file by the study's schema.

A site whose folder another schema made is not ready; the others wait, and it takes part once the folder is mended.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from client_agent.data.prepare import Prepared, write
from client_agent.learning.models import model_spec
from client_agent.site.events import EventKind
from harness.federation.in_memory_federation import InMemoryFederation
from protocol.messages.control import RuleName, RuleSpec, Scaling, TableSchema
from tests.integration.agents import REQUESTER, changed, final_model, finished, rounds_of, study_for, trained
from tests.unit.data.made import cleveland_schema, cleveland_text, prepare, written

SITES = (REQUESTER, "c1", "c2", "c3")
SCHEMA = cleveland_schema()
OTHER = SCHEMA.model_copy(update={"scaling": Scaling.NONE})
STUDY = "cleveland"


def table(folder: Path, place: int, schema: TableSchema = SCHEMA) -> Prepared:
    return prepare(schema, written(folder, cleveland_text(60, seed=place), f"{place}.csv"))


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[InMemoryFederation]:
    made = {name: table(tmp_path, place, OTHER if name == "c2" else SCHEMA) for place, name in enumerate(SITES)}
    with trained(tmp_path / "federation", {name: own.data for name, own in made.items()}) as running:
        for name, own in made.items():
            folder = running.files.folder / name / "data"
            for path in folder.iterdir():
                path.unlink()
            write(folder, own)
        yield running


def test_a_study_of_a_table(servers: InMemoryFederation, tmp_path: Path) -> None:
    model = model_spec("linear", (len(SCHEMA.feature_names),), (), 2).named(SCHEMA.feature_names, SCHEMA.class_names)
    of = study_for(servers, STUDY, RuleSpec(name=RuleName.FEDAVG), rounds=2, deadline_s=60.0)
    dimension = 2 * (len(SCHEMA.feature_names) + 1)
    with servers.agents():
        servers.hand_in(changed(of, model=model, dimension=dimension, data_schema=SCHEMA))
        servers.until("c2's refusal", lambda: bool(servers.texts(EventKind.PROBLEM, "c2")))
        (refused,) = servers.texts(EventKind.PROBLEM, "c2")
        assert "its schema is not the one that" in refused
        assert '-scaling = "standard"\n+scaling = "none"' in refused
        assert rounds_of(servers, REQUESTER, STUDY) == ()
        servers.stop_agents("c2")
        write(servers.files.folder / "c2" / "data", table(tmp_path, SITES.index("c2")))
        servers.start("c2")
        servers.until("the end", finished(servers, STUDY, *SITES))
    assert [record.took_part for record in rounds_of(servers, REQUESTER, STUDY)] == [SITES] * 2
    assert len({final_model(servers, site, STUDY) for site in SITES}) == 1
