"""More out of measured rounds than a model may be measured: again, on a crafted model, or beside a sum.

Seven real agents with their folders and the default policy; the requester is scripted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np

from harness.adversaries.catalogue.attack import Attack, Found, Party, passes
from harness.adversaries.scripted_agents import GRID, SITES, START, Federation, How, Round, study
from protocol.parameters import Needs
from protocol.policy.site_policy import SitePolicy
from protocol.wire.messages import Purpose, RuleName, RuleSpec

_MALLOWS: Final = study("measured", rule=RuleSpec(name=RuleName.MALLOWS))
_WILLING: Final = SitePolicy(may_open=tuple(Needs))


def _measure(
    sites: Federation, number: int, model: np.ndarray = START, numerators: Mapping[str, int] = MappingProxyType({})
) -> Round:
    asked = How(version=0, end=None, purpose=Purpose.MEASURE, model=model, numerators=numerators)
    return sites.round(_MALLOWS, number, SITES, **asked)


class MeasuredMore(Attack):
    """The figure is how many sites took part in the round that should not be."""

    party = Party.REQUESTER
    figure = "sites that took part"

    def __init__(
        self, name: str, tries: str, defence: str, script: Callable[[Federation], Round], without: Mapping[str, object]
    ) -> None:
        self.name, self.tries, self.defence, self._script, self.without = name, tries, defence, script, without

    def attempt(self, folder: Path) -> Found:
        with Federation(folder, _WILLING) as sites:
            made = self._script(sites)
        took_part = len(made.decisions) - len(made.refused)
        return Found(took_part > 0, took_part)


def _again(sites: Federation) -> Round:
    _measure(sites, 1)
    return _measure(sites, 2)


def _crafted(sites: Federation) -> Round:
    return _measure(sites, 1, model=np.full_like(START, 7))


def _weighted(sites: Federation) -> Round:
    return _measure(sites, 1, numerators=dict.fromkeys(SITES, GRID - 1))


def _before_the_end(sites: Federation) -> Round:
    sites.round(_MALLOWS, 1, SITES, version=0, opens=Needs.NORMS, end=None)
    return _measure(sites, 2)


def _around_isolation(sites: Federation) -> Round:
    """Four are summed, measured over nearly the same model, and three of them asked for a sum over that."""
    nearly = (START * (1 + 1e-6)).astype(np.float32)
    sites.round(_MALLOWS, 1, SITES[:4], version=0)
    for site in SITES[:4]:
        sites.serve(_MALLOWS, site, nearly, 1)
    sites.round(_MALLOWS, 2, SITES[:4], version=1, model=nearly, end=None, purpose=Purpose.MEASURE)
    return sites.round(_MALLOWS, 3, SITES[1:4], version=1, model=nearly)


def more_measurements() -> tuple[Attack, ...]:
    """Every attack of this family."""
    clauses, decisions = "protocol.policy.clauses.check_", "client_agent.contributor.decisions.Decisions._check_"
    return (
        MeasuredMore(
            "measured-again",
            "measures one model twice, for other numbers about the same updates",
            "one measurement without a sum per model, in the memory of every site",
            _again,
            {f"{clauses}measured_twice": passes},
        ),
        MeasuredMore(
            "measured-on-a-crafted-model",
            "has updates measured on a model that shows single examples in them",
            "every site trains on its own copy of the model, whose digest must be the announced one",
            _crafted,
            {f"{decisions}model": passes},
        ),
        MeasuredMore(
            "measured-by-other-weights",
            "has updates measured by weights other than 1, whose distances tell products of updates",
            "all weights of a measurement are 1",
            _weighted,
            {f"{clauses}grid": passes, f"{clauses}uninformative": passes},
        ),
        MeasuredMore(
            "measured-before-the-end",
            "measures a model whose sum's end the sites have not seen",
            "a site knows how its last round on a model ended before it takes part in another",
            _before_the_end,
            {f"{clauses}outcome_known": passes},
        ),
        MeasuredMore(
            "measured-around-isolation",
            "measures nearly the same model between two sums, to have a site's memory look at the newest model alone",
            "the site's memory of sums, which measurements take nothing out of",
            _around_isolation,
            {"client_agent.site.remembered_sums.check_isolation": passes},
        ),
    )
