"""Multi-Krum: only the updates that lie closest to their neighbours are summed.

Papers: Blanchard, El Mhamdi, Guerraoui, Stainer, "Machine Learning with Adversaries: Byzantine Tolerant Gradient
        Descent", NeurIPS 2017; under secret sharing as in He, Karimireddy, Jaggi, "Secure Byzantine-Robust Machine
        Learning", 2020.
Score:  of each of the n sites, the requester among them, the sum of its n - f - 2 smallest squared distances to
        others; the m sites of lowest score are selected, equal scores in the order requester, then roster.
Needs:  the distances of all pairs of sites, and n >= 2 f + 3; in a round with fewer nobody is selected, so it is
        skipped.
Beyond the papers: the requester is in the sum whatever its score, because without it no round is released.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import Field

from protocol.errors import ConfigurationError, ProtocolViolation
from protocol.parameters import Needs
from protocol.rules.interface import Declared, EqualRule, Measured, Options, RuleState


def least_sites(byzantine: int) -> int:
    """2 f + 3, the least n that tolerates f Byzantine sites, the requester counted."""
    return 2 * byzantine + 3


class KrumOptions(Options):
    """``byzantine`` f, ``selected`` m (None: all but f)."""

    byzantine: Annotated[int, Field(ge=0)] = 1
    selected: Annotated[int, Field(ge=1)] | None = None


@dataclass(frozen=True)
class MultiKrum(EqualRule):
    """f = ``byzantine``; m = ``selected``, at most and by default n - f."""

    grid: int
    byzantine: int = 1
    selected: int | None = None
    needs: Needs = Needs.PAIRS
    weights_never_rise: bool = True
    selects: bool = True

    def select(self, state: RuleState, measured: Measured) -> tuple[str, ...]:
        """The selected contributors, in the order in which they took part; nobody when too few sites did.

        Raises: ProtocolViolation when a distance is missing, or the requester cannot be told from the pairs
        """
        sites = (_requester(measured), *measured.took_part)
        if len(sites) < least_sites(self.byzantine):
            return ()
        scores = self._scores(sites, _squared(measured))
        most = len(sites) - self.byzantine
        best = sorted(sites, key=lambda site: (scores[site], sites.index(site)))[: min(self.selected or most, most)]
        return tuple(site for site in measured.took_part if site in best)

    def _scores(self, sites: Sequence[str], squared: Mapping[frozenset[str], float]) -> dict[str, float]:
        nearest = len(sites) - self.byzantine - 2
        return {
            site: math.fsum(sorted(squared[frozenset((site, other))] for other in sites if other != site)[:nearest])
            for site in sites
        }


def _requester(measured: Measured) -> str:
    """The one site in the pairs that is no contributor."""
    named = {name for pair in measured.pairs for name in (pair.first, pair.second)} - set(measured.took_part)
    if len(named) != 1:
        raise ProtocolViolation(
            f"round {measured.round}: the pairs name {sorted(named)} besides the contributors {measured.took_part}; "
            "exactly one is the requester"
        )
    return named.pop()


def _squared(measured: Measured) -> dict[frozenset[str], float]:
    """Every pair's squared distance. Raises: ProtocolViolation when one is missing"""
    sites = (_requester(measured), *measured.took_part)
    squared = {frozenset((pair.first, pair.second)): pair.distance**2 for pair in measured.pairs}
    for place, site in enumerate(sites):
        missing = [other for other in sites[:place] if frozenset((site, other)) not in squared]
        if missing:
            raise ProtocolViolation(f"round {measured.round}: no distance of {site!r} to {missing} was opened")
    return squared


def _made(options: KrumOptions, _batch_size: int, grid: int) -> MultiKrum:
    return MultiKrum(grid, options.byzantine, options.selected)


def _require_enough(options: KrumOptions, contributors: Sequence[str], least_contributors: int) -> None:
    """Below, the requester may be among the m selected, so that m - 1 contributors are sure."""
    sites = len(contributors) + 1
    least = least_sites(options.byzantine)
    if sites < least:
        raise ConfigurationError(
            f"rule 'multi_krum' with byzantine={options.byzantine} needs {least} sites with the requester, "
            f"found {sites}: let more sites join, or assume fewer Byzantine ones"
        )
    most = sites - options.byzantine
    selected = most if options.selected is None else options.selected
    if not least_contributors < selected <= most:
        raise ConfigurationError(
            f"rule 'multi_krum' selects {selected} of {sites} sites, the requester among them; allowed are "
            f"{least_contributors + 1} (least_contributors and the requester) to {most} (all but byzantine)"
        )


MULTI_KRUM: Final = Declared(
    "multi_krum", _made, options=("byzantine", "selected"), opens=Needs.PAIRS, check_sites=_require_enough
)
