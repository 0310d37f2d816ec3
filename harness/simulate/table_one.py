"""``moiety simulate summary``: what would a table one over these sites show?"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import typer

from client_agent.cli.study_work import table_of as shown_table
from client_agent.cli.tables import console as console_for
from harness.datasets.registry import DataRequest, load_data
from harness.datasets.site_data import Federation
from harness.engine.parties import SiteEntry, make_parties
from harness.engine.protected_sum import SecureResult, SecureRound, Tamper, WholeNumbers, correlations_from, honest
from harness.engine.study_round import NO_SECRET
from harness.simulate.options import SummaryOptions
from harness.simulate.run_one import Protection
from protocol.arithmetic.ring import Signed, derive
from protocol.errors import ConfigurationError
from protocol.messages.control import Announcement, Purpose, SummarySpec
from protocol.parameters import Needs
from protocol.release import self_weighted_bound
from protocol.rounds.judgement import judge_sum
from protocol.summary.layout import Categories, Column, Layout, Numeric, summary_parameters
from protocol.summary.protection import Numbers, shared_vector
from protocol.summary.protection import Protection as TableProtection
from protocol.summary.table_one import TableOne, table_one

LEAST_CONTRIBUTORS = 3


def secure_sum(layout: Layout, shared: Mapping[str, Signed], seed: bytes, tamper: Tamper = honest) -> SecureResult:
    """The sum of what sites share, the requester's first; ``total`` is None where too few are left after the checks.

    Raises: ConfigurationError for fewer than three contributors
    """
    requester, *others = shared
    if len(others) < LEAST_CONTRIBUTORS:
        raise ConfigurationError(f"a summary sums {LEAST_CONTRIBUTORS} contributors or more, found {len(others)}")
    entries = [SiteEntry(site, 1) for site in shared]
    roster = make_parties("summary", requester, entries, derive(seed, "parties")).roster.message
    parameters = summary_parameters(layout.length, least_contributors=LEAST_CONTRIBUTORS, assumed_colluders=0)
    announcement = Announcement(
        study_digest=NO_SECRET,
        round=1,
        listed=tuple(others),
        least_contributors=LEAST_CONTRIBUTORS,
        opens=Needs.NOTHING,
        purpose=Purpose.SUMMARY,
        model_version=0,
        model_digest=NO_SECRET,
        weight_list_digest=NO_SECRET,
        closes_at_s=0,
    )
    whole = SecureRound(
        roster,
        parameters,
        announcement,
        derive(seed, "round"),
        correlations_from("ot", derive(seed, "correlations")),
        lambda released: self_weighted_bound(parameters, len(released)),
        tamper,
    )
    inputs = [WholeNumbers(site, vector.astype("<u8")) for site, vector in shared.items()]
    return whole.run(inputs, lambda opened: judge_sum(opened, requester, 1))


TARGET = "target"
_MOST_FEATURES = 400


def columns_of(federation: Federation) -> tuple[Column, ...]:
    """Every feature is a number; its range is rounded outwards from all sites' values, as a schema would declare it.

    Raises: ConfigurationError for images and the like
    """
    (width, *more) = federation.inputs
    if more or width > _MOST_FEATURES:
        raise ConfigurationError(
            f"{federation.title}: a summary is of a table of at most {_MOST_FEATURES} columns, one example here has "
            f"shape {list(federation.inputs)}"
        )
    names = federation.feature_names or tuple(f"x{place}" for place in range(width))
    pooled = np.concatenate([site.train.X for site in federation.sites]).astype(np.float64)
    numbers = (Numeric(name, *_range(values)) for name, values in zip(names, pooled.T, strict=True))
    return (*numbers, Categories(TARGET, federation.class_names))


def _range(values: Numbers) -> tuple[float, float]:
    """One digit outwards: 0.13 to 87 becomes 0 to 90, -2 to 12.3 becomes -2 to 13."""
    low, high = float(values.min()), float(values.max())
    step = 10.0 ** math.floor(math.log10((high - low) / 3)) if high > low else 1.0
    return math.floor(low / step) * step, (math.ceil(high / step) + (high <= low)) * step


DEFAULTS = SummarySpec()


def summarise(asked: SummaryOptions) -> tuple[TableOne, int]:
    """The table, and how many sites are in it. Raises: ConfigurationError, UnusableUpdate"""
    protection = Protection(asked.protection)
    if protection is Protection.CKKS:
        raise ConfigurationError("--protection ckks adds updates; a summary travels as shares: take secure, or plain")
    federation = load_data(
        DataRequest(data=asked.data, seed=asked.seed, split=asked.split, sites=asked.sites, folder=asked.folder)
    )
    most = max(len(site.train) for site in federation.sites)
    try:
        layout = Layout(
            columns_of(federation),
            rounded_to=DEFAULTS.rounded_to,
            most_rows=max(most, DEFAULTS.most_rows),
            second_moments=asked.second_moments,
        )
    except ValueError as error:
        raise ConfigurationError(f"{asked.data}: {error}") from None
    seed = derive(bytes(32), f"summary {asked.seed}")
    shared = {
        site.name: shared_vector(
            layout,
            (*site.train.X.astype(np.float64).T, np.asarray(site.train.y, dtype=np.int64)),
            TableProtection(derive(seed, f"key of {site.name}"), asked.least_examples, layout.rounded_to),
        )
        for site in federation.sites
    }
    if protection is Protection.PLAIN:
        return table_one(np.sum(list(shared.values()), axis=0), layout, len(shared)), len(shared)
    result = secure_sum(layout, shared, seed)
    if result.total is None:
        raise ConfigurationError(f"{asked.data}: nothing was summed: {result.skipped_because}")
    return table_one(result.total, layout, len(result.released)), len(result.released)


def print_summary(asked: SummaryOptions) -> None:
    """Sum, and print the table. Raises: ConfigurationError, UnusableUpdate"""
    table, sites = summarise(asked)
    if asked.as_json:
        typer.echo(table.model_dump_json())
    else:
        title = f"{asked.data}: {sites} sites, {asked.protection}"
        console_for(stderr=False).print(shown_table(table, title))
