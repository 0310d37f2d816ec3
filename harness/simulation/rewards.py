"""Who gave what: rounds taken part in and the sum of weights, a site, over the runs of a case.

What an agent's ledger counts for one study (``moiety agent rewards``), here as means over seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import Final

from pydantic import BaseModel, ConfigDict

from harness.simulation.runs import RunLine
from protocol.wire.messages import RuleName

_RELEASED: Final = "released"
_SELF_WEIGHTED: Final = frozenset(name.value for name in RuleName if name.self_weighted)


class SiteReward(BaseModel):
    """One site's part in the released sums of one variant at one requester, whose own weight is 1 in every sum.

    ``rounds`` and ``weights`` are means over seeds; ``weights`` is None where every site weighs itself, since nobody
    else learns such a weight.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    variant: str
    requester: str
    site: str
    rounds: float
    weights: float | None


def rewards_of(lines: Sequence[RunLine]) -> tuple[SiteReward, ...]:
    """Of runs of any variants and requesters; sites that were in no sum are left out."""
    keys = dict.fromkeys((line.variant, line.requester) for line in lines)
    found = []
    for variant, requester in keys:
        runs = [line for line in lines if (line.variant, line.requester) == (variant, requester)]
        names = dict.fromkeys(name for line in runs for name in _sites_in_sums(line))
        found += [_reward(runs, site) for site in names]
    return tuple(found)


def _reward(runs: Sequence[RunLine], site: str) -> SiteReward:
    taken = [_rounds_of(line, site) for line in runs]
    known = not any(line.rule in _SELF_WEIGHTED for line in runs)
    return SiteReward(
        variant=runs[0].variant,
        requester=runs[0].requester,
        site=site,
        rounds=mean(len(rounds) for rounds in taken),
        weights=mean(_weights(line, site, rounds) for line, rounds in zip(runs, taken, strict=True)) if known else None,
    )


def _sites_in_sums(line: RunLine) -> tuple[str, ...]:
    """The requester first."""
    released = [names for kind, names in zip(line.kind, line.took_part, strict=True) if kind == _RELEASED]
    return (line.requester, *dict.fromkeys(name for names in released for name in names)) if released else ()


def _rounds_of(line: RunLine, site: str) -> tuple[int, ...]:
    """Places of the rounds whose released sum the site was in."""
    return tuple(
        place
        for place, (kind, names) in enumerate(zip(line.kind, line.took_part, strict=True))
        if kind == _RELEASED and (site == line.requester or site in names)
    )


def _weights(line: RunLine, site: str, rounds: Sequence[int]) -> float:
    if site == line.requester:
        return float(len(rounds))
    return sum(line.weight[site][place] or 0.0 for place in rounds)
