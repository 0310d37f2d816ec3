"""What every site of a run in one process works out before it contributes: its isolation (docs/protocol.md 13).

An agent keeps the sums that it was in and a sketch of its own updates; here all sites' memories stand side by side.
The sums are the same for everybody, so they are kept once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from harness.announcing import Announced
from harness.history import SiteValue
from harness.run_state import Run, RunState
from harness.site_updates import ClippedUpdate
from protocol.arithmetic.prg import derive
from protocol.policy.kept_update import kept_update
from protocol.policy.sums import KnownSum, SummedRow, SummedWeight, exposure

Kept = Mapping[str, NDArray[np.float64]]


def summed_row(run: Run, announced: Announced) -> SummedRow:
    """What the announced round may add to everybody's memory, its end still open."""
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


def kept_updates(run: Run, updates: Mapping[str, ClippedUpdate]) -> Kept:
    """Each site's update as it keeps it, float64[at most 4096], under a seed that is its own."""
    seed = derive(bytes(32), f"kept updates {run.study.seed}")
    return {site: kept_update(update.values, derive(seed, site)) for site, update in updates.items()}


def isolations(run: Run, state: RunState, row: SummedRow, kept: Kept) -> tuple[SiteValue, ...]:
    """The figure that each of ``kept`` compares with its policy: the least over all updates in all sums."""
    t = max(run.policy.assumed_colluders, run.study.parameters.assumed_colluders)
    return tuple(
        SiteValue(site, exposure(_past(run, state, site), row, update, colluders=t).least)
        for site, update in kept.items()
    )


def remembered(run: Run, state: RunState, row: SummedRow, released: tuple[str, ...], kept: Kept) -> RunState:
    """The state once the sum over ``released``, contributors only, was opened."""
    length = max(len(update) for update in kept.values())
    newest = np.zeros((1, len(run.sites), length), np.float32)
    for place, site in enumerate(run.sites):
        if site.name in kept and (site.name in released or site.name == run.requester.name):
            newest[0, place] = kept[site.name]
    earlier = state.kept if len(state.sums) else newest[:0]
    return replace(
        state,
        sums=(*state.sums, row.model_copy(update={"released": tuple(sorted(released))})),
        kept=np.concatenate([earlier, newest]),
    )


def _past(run: Run, state: RunState, site: str) -> list[KnownSum]:
    """The sums so far with the site's own updates; None where it was in none."""
    place = (run.requester.name, *run.names).index(site)
    return [
        KnownSum(row, state.kept[number, place].astype(np.float64) if _was_in(run, row, site) else None)
        for number, row in enumerate(state.sums)
    ]


def _was_in(run: Run, row: SummedRow, site: str) -> bool:
    return site == run.requester.name or site in (row.released or ())
