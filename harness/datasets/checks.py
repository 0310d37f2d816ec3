"""What is checked about a federation before round 1 of a simulation, each with an error that a person can act on."""

from __future__ import annotations

import numpy as np

from client_agent.learning.data import checked
from client_agent.tasks.targets import EVENT
from harness.datasets.site_data import Federation
from protocol.errors import ConfigurationError
from protocol.rules.registry import require_sites
from protocol.wire.messages import RuleSpec, TaskKind, TaskSpec


def check_federation(federation: Federation, rule: RuleSpec, least_contributors: int) -> None:
    """Every site's examples against the model, all sites together against its classes, and their number.

    Raises: ConfigurationError
    """
    check_examples(federation)
    check_targets(federation)
    require_sites(rule, [site.name for site in federation.contributors], least_contributors)


def check_examples(federation: Federation) -> None:
    """Types, shapes, labels and finite values, of every part of every site; every site has something to train on."""
    outputs, task = len(federation.class_names), TaskSpec(kind=federation.task)
    for site in federation.sites:
        for part, examples in (("training", site.train), ("validation", site.validation), ("test", site.test)):
            where = f"{federation.title}: site {site.name!r}, {part} part"
            checked(examples.X, examples.y, federation.inputs, outputs, where, task)
        if not len(site.train):
            raise ConfigurationError(
                f"{federation.title}: site {site.name!r} has no sample of any class to train on: leave it out"
            )
    if not len(federation.requester.test):
        raise ConfigurationError(
            f"{federation.title}: the requester {federation.requester.name!r} has no test example, and the run is "
            "judged by them"
        )


def check_targets(federation: Federation) -> None:
    """All sites together have what the task cannot be learned without: every class, or an event.

    Raises: ConfigurationError
    """
    if federation.task is TaskKind.CLASSES:
        _check_classes(federation)
    if federation.task is TaskKind.SURVIVAL and not any(site.train.y[:, EVENT].any() for site in federation.sites):
        raise ConfigurationError(
            f"{federation.title}: no site has a training example with an event, so that no order of risks can be "
            "learned: follow up longer, or choose another endpoint"
        )


def _check_classes(federation: Federation) -> None:
    seen = np.zeros(len(federation.class_names), np.int64)
    for site in federation.sites:
        seen += np.bincount(site.train.y, minlength=len(seen))
    missing = [name for name, count in zip(federation.class_names, seen, strict=True) if count == 0]
    if missing:
        raise ConfigurationError(
            f"{federation.title}: no site has a training example of class {', '.join(map(repr, missing))}; leave it "
            "out of the classes, or add a site that has some"
        )
