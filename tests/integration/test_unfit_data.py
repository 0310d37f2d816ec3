"""A site whose data are not the study's is not ready: it says what differs, and takes part once they are mended."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from client_agent.data.prepare import Prepared, write
from client_agent.learning.data import DataNames, LocalData, save_folder
from client_agent.learning.models import model_spec
from client_agent.site.events import EventKind
from harness.federation.in_memory_federation import InMemoryFederation
from protocol.messages.control import Scaling, Study, TableSchema
from tests.integration.agents import (
    FEDAVG,
    MODEL,
    REQUESTER,
    changed,
    final_model,
    finished,
    rounds_of,
    site_data,
    study_for,
    trained,
)
from tests.unit.data.made import cleveland_schema, cleveland_text, prepare, written

SITES = (REQUESTER, "c1", "c2", "c3")
SCHEMA = cleveland_schema()
OTHER = SCHEMA.model_copy(update={"scaling": Scaling.NONE})
NAMES = DataNames(("age", "sex", "pressure", "cholesterol", "glucose"), ("healthy", "ill"))
TURNED = (0, 1, 3, 2, 4)


def refused_until_mended(running: InMemoryFederation, study: Study, mend: Callable[[Path], None]) -> str:
    """The study begins only after ``mend`` of c2's data folder; return what c2 said before."""
    with running.agents():
        running.hand_in(study)
        running.until("c2's refusal", lambda: bool(running.texts(EventKind.PROBLEM, "c2")))
        (refused,) = running.texts(EventKind.PROBLEM, "c2")
        assert rounds_of(running, REQUESTER, study.name) == ()
        running.stop_agents("c2")
        mend(running.folder / "c2" / "data")
        running.start("c2")
        running.until("the end", finished(running, study.name, *SITES))
    assert [record.took_part for record in rounds_of(running, REQUESTER, study.name)] == [SITES] * 2
    assert len({final_model(running, site, study.name) for site in SITES}) == 1
    return refused


def table(folder: Path, place: int, schema: TableSchema = SCHEMA) -> Prepared:
    return prepare(schema, written(folder, cleveland_text(60, seed=place), f"{place}.csv"))


def test_a_folder_that_another_schema_made(tmp_path: Path) -> None:
    """Tables of the Cleveland form: every site prepares its own file by the study's schema."""
    made = {name: table(tmp_path, place, OTHER if name == "c2" else SCHEMA) for place, name in enumerate(SITES)}
    model = model_spec("linear", (len(SCHEMA.feature_names),), (), 2).named(SCHEMA.feature_names, SCHEMA.class_names)
    with trained(tmp_path / "federation", {name: own.data for name, own in made.items()}) as running:
        for name, own in made.items():
            folder = running.folder / name / "data"
            for path in folder.iterdir():
                path.unlink()
            write(folder, own)
        of = study_for(running, "cleveland", FEDAVG, rounds=2)
        of = changed(of, model=model, dimension=2 * (len(SCHEMA.feature_names) + 1), data_schema=SCHEMA)
        refused = refused_until_mended(running, of, lambda folder: write(folder, table(tmp_path, SITES.index("c2"))))
    assert "its schema is not the one that" in refused
    assert '-scaling = "standard"\n+scaling = "none"' in refused


def turned(data: LocalData) -> LocalData:
    """The same examples with two columns in each other's place, and named so."""
    train, test = (replace(part, X=np.ascontiguousarray(part.X[:, TURNED])) for part in (data.train, data.test))
    names = DataNames(tuple(NAMES.features[n] for n in TURNED), NAMES.classes)
    return replace(data, train=train, test=test, names=names)


def test_columns_in_another_order(tmp_path: Path) -> None:
    data = {name: replace(site_data(place), names=NAMES) for place, name in enumerate(SITES)}
    with trained(tmp_path, data | {"c2": turned(data["c2"])}) as running:
        of = study_for(running, "named", FEDAVG, rounds=2)
        of = changed(of, model=MODEL.named(NAMES.features, NAMES.classes))
        refused = refused_until_mended(running, of, lambda folder: save_folder(folder, data["c2"]))
    assert refused.startswith("configuration: study 'named': its feature_names are not those of")
    assert "the same names in another order" in refused
    gone, come = (set(re.findall(rf"^\{sign}(\w+)$", refused, re.MULTILINE)) for sign in "-+")
    assert gone == come
    assert gone in ({"pressure"}, {"cholesterol"})
