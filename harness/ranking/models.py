"""A study's own model, trained by every site alone before it is ranked: the plain variant."""

from __future__ import annotations

from pathlib import Path

from client_agent.learning.data import Examples
from client_agent.learning.evaluation import Evaluation, evaluate
from client_agent.learning.flat_vector import load_vector, model_vector
from client_agent.learning.models import build_model
from client_agent.learning.study_file import checked_study_table, study_from_table
from client_agent.learning.trainer import apply_aggregate, compute_update
from client_agent.learning.training_seeds import site_seed
from harness.datasets.site_data import Federation, SiteData
from harness.engine.parties import SiteEntry, make_parties
from harness.engine.site_updates import CPU
from harness.simulation.files.study_files import read_study_file
from protocol.arithmetic.prg import derive
from protocol.errors import ConfigurationError
from protocol.wire.messages import Study


def study_for(path: Path, federation: Federation, seed: int) -> Study:
    """A study file for these sites, trained alone. Raises: ConfigurationError"""
    file = read_study_file(path)
    table = checked_study_table(file.tables, file.source)
    if table.model.kind == "plugin":
        raise ConfigurationError(f"{file.source}: key 'model.kind': 'plugin' runs at a site's agent, not here")
    entries = [SiteEntry(site.name, len(site.train)) for site in federation.sites]
    parties = make_parties("ranking", federation.requester.name, entries, derive(bytes(32), f"ranking {seed}"))
    return study_from_table(table.model_copy(update={"seed": seed}), file.source, parties.roster.message, plugin=None)


def loss_of_own_model(study: Study, site: SiteData, seed: int, judged: Examples) -> Evaluation:
    """The study's model after its rounds on one site's data alone, on the requester's examples."""
    model = build_model(study.model, seed)
    vector = model_vector(model)
    for number in range(1, study.rounds + 1):
        load_vector(model, vector)
        update = compute_update(
            model, site.train, study.training, round=number, seed=site_seed(seed, site.name), device=CPU
        )
        vector = apply_aggregate(vector, update, study.training.server_learning_rate)
    load_vector(model, vector)
    return evaluate(model, judged, CPU)
