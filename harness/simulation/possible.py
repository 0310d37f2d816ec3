"""What can be refused about a case before its first run: a mistake in the last variant is not found hours later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from client_agent.learning.models import build_model
from harness.baselines.run import require_baseline
from harness.datasets.site_data import Federation, check_examples, check_targets
from harness.engine.announcing import require_willing
from harness.simulation.case import Case, Setting, Variant
from harness.simulation.files.own_metrics import own_metrics
from harness.simulation.run_one import Protection, require_plain_for_same_round
from harness.simulation.simulated_study import simulated_study
from harness.simulation.tuning import combinations
from protocol.errors import ConfigurationError
from protocol.rules.registry import rule_for


def require_plain(case: Case, variant: Variant, protection: Protection) -> None:
    """Raises: ConfigurationError for a variant that exists in plain simulation only, under a protection"""
    where = f"{case.source}: variant {variant.name!r}"
    require_plain_for_same_round(variant.study, protection, where)
    chosen, model = variant.chosen_rule(), variant.chosen_model
    if chosen is not None and protection is not Protection.PLAIN:
        raise ConfigurationError(
            f"{where}: rule {chosen.name!r} is from a package, and servers and sites know the rules of the protocol "
            "alone: name the other variants with --only, or give --protection plain"
        )
    if model is not None and protection is not Protection.PLAIN:
        raise ConfigurationError(
            f"{where}: model {model.name!r} is from a package, and sites run no code of others: name the other "
            "variants with --only, or give --protection plain"
        )
    if variant.pooled and protection is not Protection.PLAIN:
        raise ConfigurationError(
            f"{where}: 'pooled' puts all data at one place, in plain runs only: name the other variants with --only, "
            "or give --protection plain"
        )
    if variant.baseline is not None and protection is not Protection.PLAIN:
        raise ConfigurationError(
            f"{where}: baseline {variant.baseline.name!r} runs in plain simulation only, since no server and no site's "
            "agent knows it: name the other variants with --only, or give --protection plain"
        )
    if chosen is not None and variant.published_mistake is not None:
        raise ConfigurationError(f"{where}: 'published_mistake' is of no package's rule; leave it out")
    if variant.published_mistake is not None and protection is not Protection.PLAIN:
        raise ConfigurationError(
            f"{where}: 'published_mistake' repeats a mistake in plain runs only: name the other variants with --only, "
            "or give --protection plain"
        )


def require_possible(
    case: Case,
    variants: Sequence[Variant],
    requesters: Sequence[str],
    federation: Federation,
    protection: Protection,
) -> None:
    """The data fit the model, every variant's rule fits the sites with each requester, and no policy forbids it.

    ``federation`` is the split of any seed. Every value that a variant tunes is tried out as a setting, not run.

    Raises: ConfigurationError that names the file and the variant
    """
    check_examples(federation)
    check_targets(federation)
    own_metrics(case.table.metrics)
    case.table.attendance.require_sites(federation.names_of_sites, case.source)
    for variant in variants:
        for settings in combinations(variant):
            _require_options(case, variant, settings)
        for requester in requesters:
            _require_study(case, variant, _asked_by(requester, federation), protection)


def _require_options(case: Case, variant: Variant, settings: tuple[Setting, ...]) -> None:
    table, chosen = variant.with_settings(settings, case.source), variant.chosen_rule(settings)
    variant.baseline_with(settings, case.source)
    if chosen is None:
        return
    try:
        chosen.rule(table.training.batch_size, table.parameters.weight_grid)
    except ConfigurationError as error:
        raise ConfigurationError(f"{case.source}: variant {variant.name!r}: {error.detail}") from None


def _require_study(case: Case, variant: Variant, federation: Federation, protection: Protection) -> None:
    where = f"{case.source}: variant {variant.name!r}"
    study = simulated_study(protection.of(variant.study), where, federation, 0, variant.chosen_model)
    chosen = variant.chosen_rule()
    grid = study.parameters.weight_grid
    rule = chosen.rule_of(study) if chosen else rule_for(study.rule, batch_size=study.training.batch_size, grid=grid)
    try:
        if variant.baseline is not None:
            made = variant.chosen_model.build(variant.study.model, 0) if variant.chosen_model else None
            require_baseline(study, made or build_model(study.model, 0), f"baseline {variant.baseline.name!r}")
        require_willing(rule.needs, variant.policy.policy(), [site.name for site in federation.contributors])
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error.detail}") from None


def _asked_by(requester: str, federation: Federation) -> Federation:
    """The same sites, the requester first."""
    first = [site for site in federation.sites if site.name == requester]
    others = [site for site in federation.sites if site.name != requester]
    return replace(federation, sites=(*first, *others))
