"""One variant of a comparison with one seed, from its data to its line; goes on where it stopped."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from client_agent.learning.evaluation import predicted
from client_agent.learning.flat_vector import model_vector
from client_agent.learning.models import build_model
from harness.datasets.registry import DataRequest, load_data
from harness.datasets.site_data import Federation, check_examples, check_targets
from harness.personal.averaging import UnderTheProtocol, in_the_open
from harness.personal.case import PersonalCase, Variant
from harness.personal.records import Evaluated, PersonalLine, Progress, ResultFolder
from harness.personal.schemes import Alone, Comparison, Mixing, SchemeState, load_site, scheme_of
from harness.personal.scores import Scores, scores_of
from harness.personal.tampering import tampered
from harness.simulation.run_one import Protection, digest_of
from harness.simulation.simulated_study import simulated_study
from harness.training.batched import Batched
from harness.training.site_training import SiteTraining
from harness.versions import versions
from protocol.errors import ConfigurationError
from protocol.wire.messages import Study

OnEvaluation = Callable[[Evaluated], None]


@dataclass(frozen=True)
class Run:
    """A variant and a seed; ``batched`` computes all sites' steps in one call where the model allows it.

    ``secure``: the sites' updates are shared and summed under the protocol.
    """

    case: PersonalCase
    variant: Variant
    seed: int
    data: Path | None
    device: torch.device
    batched: bool = False
    secure: bool = False

    @property
    def protection(self) -> Protection:
        return Protection.SECURE if self.secure else Protection.PLAIN


def load_sites(case: PersonalCase, seed: int, data: Path | None) -> Federation:
    """The comparison's sites, tampered with as the file says.

    Raises: ConfigurationError, also for a site without test examples, since every site is judged
    """
    share = case.table.validation_share
    federation = load_data(DataRequest(case.table.data, seed, validation_share=share, folder=data))
    check_examples(federation)
    check_targets(federation)
    for site in federation.sites:
        if not len(site.test):
            raise ConfigurationError(f"{case.source}: site {site.name!r} of {case.table.data} has no test example")
    return replace(federation, sites=tampered(federation.sites, case.table.tampering))


def execute(run: Run, folder: ResultFolder, show: OnEvaluation = lambda evaluated: None) -> PersonalLine:
    """Do the run, or the rest of it, and write its line; ``show`` is called after each evaluation.

    Raises: ConfigurationError for data that do not fit, UnusableUpdate when a model diverges
    """
    federation = load_sites(run.case, run.seed, run.data)
    study = simulated_study(run.variant.study, run.case.source, federation, run.seed)
    table, digest = run.variant.table, digest_of(federation)
    comparison = _comparison(run, study, federation)
    identity = f"{run.variant.digest} {digest}" + (" secure" if run.secure else "")
    progress, state = _rounds(run, study, comparison, folder, identity, show)
    fine_tuned, state = _fine_tuned(comparison, state, study.rounds, table.fine_tune_epochs)
    line = PersonalLine(
        case=run.case.name,
        variant=table.name,
        scheme=table.scheme,
        seed=run.seed,
        protection=run.protection.value,
        rounds=study.rounds,
        sites=tuple(site.name for site in federation.sites),
        study_digest=run.variant.digest,
        data_digest=digest,
        clipped_share=progress.clipped / study.rounds,
        seconds=progress.seconds,
        evaluated=progress.evaluated,
        fine_tuned=fine_tuned,
        versions={one.name: one.version for one in versions()},
    )
    folder.finish(line, state)
    return line


def _comparison(run: Run, study: Study, federation: Federation) -> Comparison:
    """Raises: ConfigurationError for what has no protected run"""
    table, model = run.variant.table, build_model(study.model, run.seed)
    if run.secure and not table.scheme.protectable:
        raise ConfigurationError(
            f"{run.case.source}: variant {table.name!r} pools the sites' data, so it has no protected run; leave it out"
        )
    return Comparison.of(
        model,
        federation.sites,
        run.seed,
        study.training,
        study.parameters.clip_norm,
        Mixing(table.mixing, table.adaptive),
        run.device,
        UnderTheProtocol.of(study, federation.sites, model) if run.secure else in_the_open,
    )


def evaluated_sites(comparison: Comparison, state: SchemeState, round: int) -> Evaluated:
    """Every site's model on its own test examples, and on its validation examples where all sites keep some."""
    validates = all(len(site.validation) for site in comparison.sites)
    return Evaluated(
        round=round,
        test=_scores(comparison, state, "test"),
        validation=_scores(comparison, state, "validation") if validates else None,
    )


def _rounds(
    run: Run, study: Study, comparison: Comparison, folder: ResultFolder, identity: str, show: OnEvaluation
) -> tuple[Progress, SchemeState]:
    scheme = scheme_of(run.variant.table.scheme, comparison, _training(run, comparison))
    name, every = run.variant.table.name, run.case.table.evaluate_every
    known = folder.load(name, run.seed, identity)
    progress, state = known or (
        Progress(identity=identity, round=0, seconds=0.0, clipped=0.0, evaluated=()),
        scheme.start(),
    )
    begun, before_s, clipped = time.monotonic(), progress.seconds, progress.clipped
    for number in range(progress.round + 1, study.rounds + 1):
        state, share = scheme.round(state, number)
        clipped += share
        if number % every == 0 or number == study.rounds:
            latest = evaluated_sites(comparison, state, number)
            progress = Progress(
                identity=identity,
                round=number,
                seconds=before_s + time.monotonic() - begun,
                clipped=clipped,
                evaluated=(*progress.evaluated, latest),
            )
            folder.save(name, run.seed, progress, state)
            show(latest)
    return progress, state


def _training(run: Run, comparison: Comparison) -> SiteTraining:
    if not run.batched:
        return comparison.one_by_one()
    examples = [site.train for site in comparison.sites]
    return Batched(comparison.model, examples, comparison.seeds(), comparison.training, comparison.device)


def _fine_tuned(
    comparison: Comparison, state: SchemeState, rounds: int, epochs: int
) -> tuple[Scores | None, SchemeState]:
    """Every site goes on alone, at the learning rate of the round after the last."""
    if epochs == 0:
        return None, state
    models = np.stack([model_vector(load_site(comparison, state, site)) for site in range(len(comparison.sites))])
    state = replace(state, models=models, own=state.own[:0])
    alone = Alone(comparison, comparison.one_by_one())
    for number in range(rounds + 1, rounds + epochs + 1):
        state, _ = alone.round(state, number)
    return _scores(comparison, state, "test"), state


def _scores(comparison: Comparison, state: SchemeState, part: str) -> Scores:
    labels, predictions = [], []
    for number, site in enumerate(comparison.sites):
        examples = site.test if part == "test" else site.validation
        labels.append(examples.y)
        predictions.append(predicted(load_site(comparison, state, number), examples, comparison.device))
    return scores_of(labels, predictions)
