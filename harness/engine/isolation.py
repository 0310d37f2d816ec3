"""Isolation that every site of a run in one process works out before it contributes (docs/protocol.md 13).

An agent keeps the sums that it was in and a sketch of its own updates; here all sites' memories stand side by side.
The sums are the same for everybody, so they are kept once. An agent also counts the rounding of its own update as
noise, which is far below every limit; here sums are taken to be exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from client_agent.site.events import SiteValue
from harness.engine.run_state import Announced, Run, RunState
from harness.engine.updates import ClippedUpdate
from protocol.arithmetic.fixed_point import Real
from protocol.arithmetic.ring import derive
from protocol.errors import PolicyRefusal
from protocol.policy.clauses import check_isolation
from protocol.policy.exposure import Exposure, KnownSum, SummedRow, SummedWeight, exposure
from protocol.policy.memory import kept_update

_TOLD: Final = True
"""Every site's memory holds all sums of the run."""


@dataclass(frozen=True, eq=False)
class Trained:
    """The updates of everybody who may take part in a round, or of the requester alone while it plans.

    ``kept`` is what each site keeps of its own, float64[at most 4096], under a seed that is its own.
    """

    updates: Mapping[str, ClippedUpdate]
    kept: Mapping[str, Real] = field(repr=False)

    @classmethod
    def of(cls, run: Run, updates: Mapping[str, ClippedUpdate]) -> Trained:
        if not run.works_out_isolation:
            return cls(updates, {})
        seed = derive(bytes(32), f"kept updates {run.study.seed}")
        return cls(updates, {site: kept_update(one.values, derive(seed, site)) for site, one in updates.items()})


@dataclass(frozen=True)
class Figures:
    """The least isolation that each site found, and the refusal of those that demand more."""

    found: tuple[SiteValue, ...]
    refusals: Mapping[str, PolicyRefusal]


def require_isolated(run: Run, state: RunState, announced: Announced, *, trained: Trained) -> None:
    """The clause as the requester runs it before it announces, with its own updates. Raises: PolicyRefusal"""
    if not run.works_out_isolation:
        return
    row = _summed_row(run, announced)
    check_isolation(_exposure(run, state, row, run.requester.name, trained), row, run.policy)


def isolations(run: Run, state: RunState, announced: Announced, trained: Trained, sites: tuple[str, ...]) -> Figures:
    """Return the findings of the requester, then of ``sites``; nothing where nobody asks for it."""
    if not run.works_out_isolation:
        return Figures((), {})
    row, values, refusals = _summed_row(run, announced), [], {}
    for site in (run.requester.name, *sites):
        found = _exposure(run, state, row, site, trained)
        values.append(SiteValue(site=site, value=found.least))
        try:
            check_isolation(found, row, run.policy)
        except PolicyRefusal as refusal:
            refusals[site] = refusal
    return Figures(tuple(values), refusals)


def remembered(
    run: Run, state: RunState, announced: Announced, trained: Trained, released: tuple[str, ...]
) -> RunState:
    """The state once the sum over ``released``, contributors only, was opened."""
    if not run.works_out_isolation:
        return state
    row = _summed_row(run, announced).model_copy(update={"released": tuple(sorted(released))})
    newest = np.zeros((1, len(run.sites), len(trained.kept[run.requester.name])), np.float32)
    for place, site in enumerate(run.sites):
        if site.name in trained.kept:
            newest[0, place] = trained.kept[site.name]
    earlier = state.kept if len(state.sums) else newest[:0]
    return replace(state, sums=(*state.sums, row), kept=np.concatenate([earlier, newest]))


def _exposure(run: Run, state: RunState, row: SummedRow, site: str, trained: Trained) -> Exposure:
    """The sums so far with the site's own updates, None where it was away, and the new one."""
    place = (run.requester.name, *run.names).index(site)
    own = state.kept[:, place].astype(np.float64) if state.sums else ()
    past = [
        KnownSum(_as_seen_by(run, state, one, site), kept if kept.any() else None)
        for one, kept in zip(state.sums, own, strict=True)
    ]
    t = max(run.policy.assumed_colluders, run.study.parameters.assumed_colluders)
    return exposure(past, _as_seen_by(run, state, row, site), trained.kept[site], colluders=t, told=_TOLD)


def _summed_row(run: Run, announced: Announced) -> SummedRow:
    """Return the row that the announced round may add to everybody's memory, its end still open."""
    announcement, weight_list = announced.announcement, announced.weight_list
    return SummedRow(
        study_digest=announcement.study_digest,
        round=announcement.round,
        dimension=run.study.model_dimension,
        weights=tuple(
            SummedWeight(site=weight.site, weight=weight.numerator / weight_list.grid) for weight in weight_list.weights
        ),
        least=announcement.least_contributors,
    )


def _as_seen_by(run: Run, state: RunState, row: SummedRow, site: str) -> SummedRow:
    """Return the row as a site sees it where sites weigh themselves: every other weight may be the smallest there is;
    the requester's is no column.
    """
    if not run.study.rule.name.self_weighted:
        return row
    own = {one.name: run.own_weight(one, state) for one in run.contributors if one.name == site}
    least = run.study.least_weight
    weights = tuple(SummedWeight(site=one.site, weight=own.get(one.site) or least) for one in row.weights)
    known = next((weight for weight in weights if weight.site in own), None)
    return row.model_copy(update={"weights": weights, "own": known})
