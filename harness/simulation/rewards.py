"""Who gave what: rounds taken part in and the sum of weights, per site, over the runs of a case.

What an agent's ledger counts for one study (``moiety agent rewards``), here as means over seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import Final

from pydantic import BaseModel, ConfigDict

from client_agent.site.rewards import Reward, rewards_in
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
    found: list[SiteReward] = []
    for variant, requester in keys:
        runs = [line for line in lines if (line.variant, line.requester) == (variant, requester)]
        given = [{reward.site: reward for reward in rewards_in(_sums(line))} for line in runs]
        for name in dict.fromkeys(name for rewards in given for name in rewards):
            absent = Reward(site=name, rounds=0, weights=0.0)
            found.append(_mean(variant, requester, [rewards.get(name, absent) for rewards in given]))
    return tuple(found)


def _mean(variant: str, requester: str, given: Sequence[Reward]) -> SiteReward:
    """One per run; a run in which the site was in no sum counts with 0."""
    weights = [reward.weights for reward in given if reward.weights is not None]
    return SiteReward(
        variant=variant,
        requester=requester,
        site=given[0].site,
        rounds=mean(reward.rounds for reward in given),
        weights=mean(weights) if len(weights) == len(given) else None,
    )


def _sums(line: RunLine) -> list[dict[str, float | None]]:
    """Every released sum's weights, the requester first; 1 for all of a baseline's, which hands out no list."""
    known = line.rule not in _SELF_WEIGHTED
    alike = (1.0,) * len(line.kind)
    return [
        {line.requester: 1.0 if known else None}
        | {name: (line.weight.get(name, alike)[place] or 0.0) if known else None for name in names}
        for place, (kind, names) in enumerate(zip(line.kind, line.took_part, strict=True))
        if kind == _RELEASED
    ]
