"""The clipped updates of all sites of a round, one by one or in one batched call."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from client_agent.architectures.statistics import has_statistics
from client_agent.learning.training_seeds import site_seed
from harness.datasets.site_data import SiteData
from harness.engine.run_state import Run, RunState
from harness.engine.site_updates import ClippedUpdate, clipped, clipped_update
from harness.training.batched import Batched, batchable
from harness.training.site_training import repeated


def round_updates(run: Run, state: RunState, sites: Sequence[SiteData], round_number: int) -> dict[str, ClippedUpdate]:
    """Every site's update by its name, from the model within ``state``.

    One gradient of one mini-batch is not batched: there is next to nothing to gain. Nor is a loss that compares
    examples, Cox's, or a plug-in's, whose code is not known, nor a model with batch
    norm, whose statistics one call would mix up; nor training with noise, which clips record by record.

    Raises: UnusableUpdate
    """
    possible = batchable(run.study.task, run.plugin) and not has_statistics(run.model)
    possible = possible and run.study.record_noise is None
    if run.computing.batched and run.study.training.update == "local_sgd" and possible:
        return _in_one_call(run, state, sites, round_number)
    return {site.name: _by_itself(run, state, site, round_number) for site in sites}


def _by_itself(run: Run, state: RunState, site: SiteData, round_number: int) -> ClippedUpdate:
    own_weight, personal = run.own_weight(site, state), run.personal_of(site, state)
    return clipped_update(run.training, site, run.model_of(state), round_number, own_weight, personal)


def _in_one_call(run: Run, state: RunState, sites: Sequence[SiteData], round_number: int) -> dict[str, ClippedUpdate]:
    study = run.study
    seeds = [site_seed(study.seed or 0, site.name) for site in sites]
    batched = Batched(
        run.model, [site.train for site in sites], seeds, study.training, run.computing.device, study.task
    )
    personal = np.stack([run.personal_of(site, state) for site in sites])
    trained = batched.train(repeated(run.model_of(state), len(sites)), personal, round_number)
    return {
        site.name: clipped(study, trained.updates[row], run.own_weight(site, state), trained.personal[row])
        for row, site in enumerate(sites)
    }
