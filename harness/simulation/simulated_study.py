"""The study of a file as a run in one process has it, for a data set's sites."""

from __future__ import annotations

from pathlib import Path

from client_agent.learning.names import require_names_of_study
from client_agent.learning.study_file import StudyTable, study_from_table
from harness.datasets.site_data import Federation
from harness.engine.parties import SiteEntry, make_parties
from harness.simulation.packaged import ChosenModel
from harness.training.sources import own_sources
from protocol.arithmetic.prg import derive
from protocol.errors import ConfigurationError
from protocol.wire.messages import Study


def simulated_study(
    table: StudyTable,
    source: str,
    federation: Federation,
    seed: int,
    own_model: ChosenModel | None = None,
    site_plugin: Path | None = None,
) -> Study:
    """The file's study for these sites; ``same_round`` is the plain run's business, not the study's.

    ``own_model`` is one that others bring, in place of the table's; ``site_plugin`` the file that sites would have.

    Raises: ConfigurationError when the model does not fit the data
    """
    if table.model.kind == "plugin" and own_model is None and site_plugin is None:
        raise ConfigurationError(
            f"{source}: key 'model.kind': 'plugin' runs at a site's agent, or in the simulation of a study with "
            "--site-plugin, the Python file that sites would have"
        )
    _require_only_training(table, source)
    _require_fitting_data(table, source, federation)
    rule = table.rule.model_copy(update={"erosion_applies": "next_round"})
    entries = [SiteEntry(site.name, len(site.train)) for site in federation.sites]
    parties = make_parties("simulation", federation.requester.name, entries, derive(bytes(32), f"seed {seed}"))
    return study_from_table(
        table.model_copy(update={"rule": rule, "seed": seed}),
        source,
        parties.roster.message,
        plugin=site_plugin,
        spec=None if own_model is None else own_model.spec(table.model),
        sources=own_sources(),
    )


def _require_only_training(table: StudyTable, source: str) -> None:
    if table.ranking is not None:
        raise ConfigurationError(
            f"{source}: key 'ranking': simulations only train; leave it out, and rank the sites by: moiety rank"
        )
    if table.summary is not None:
        raise ConfigurationError(
            f"{source}: key 'summary': simulations only train; leave it out, and sum the tables by: moiety summarise"
        )


def _require_fitting_data(table: StudyTable, source: str, federation: Federation) -> None:
    """Inputs, outputs, task and names are the data's. Raises: ConfigurationError"""
    if (table.model.inputs, table.model.width) != (federation.inputs, len(federation.class_names)):
        raise ConfigurationError(
            f"{source}: the model takes inputs {list(table.model.inputs)} and {table.model.width} outputs, the data "
            f"{federation.title!r} have {list(federation.inputs)} and {len(federation.class_names)}"
        )
    if table.task.kind is not federation.task:
        raise ConfigurationError(
            f"{source}: the study's task is {table.task.kind.value!r}, the data {federation.title!r} have targets of "
            f"{federation.task.value!r}: set [task] kind, or take other data"
        )
    require_names_of_study(table.model.names, federation.names, table.name, federation.title)
