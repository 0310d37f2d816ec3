"""Updates far longer than clipping allows, pointed where what is opened hides that.

Honest updates have length at most C, so they lie within C + ||g_0|| of the requester's and within 2 C of each other.
The requester judges the exact numbers that are opened of five sites; the figure is in clip norms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from client_agent.requester.measuring.judging import Judgement, RequesterFacts, RoundRule, judge
from harness.adversaries.catalogue.attack import Attack, Found, Party
from protocol.mpc.measurement import OpenedSite
from protocol.parameters import Needs, StudyParameters
from protocol.rules.fedavg import FedAvg
from protocol.rules.interface import SiteFacts
from protocol.wire.messages import RuleName, RuleSpec

CLIP, GRID = 2.0, 8
PARAMETERS: Final = StudyParameters(dimension=20, clip_norm=CLIP, weight_grid=GRID, least_contributors=3)
REQUESTER, CHEAT, _ACCOMPLICE = "user", "c9", "c8"
HONEST: Final = ("c1", "c2", "c3", "c4")
SITES: Final = (REQUESTER, *HONEST, CHEAT)
Vector = NDArray[np.float64]


def of_length(length: float, direction: Vector) -> Vector:
    return direction * (length / float(np.linalg.norm(direction)))


_DRAW: Final = np.random.default_rng(8)
ALONG: Final = of_length(1.0, _DRAW.normal(size=20))
OTHERS: Final = {site: of_length(CLIP, _DRAW.normal(size=20)) for site in HONEST}


def judged(updates: Mapping[str, Vector], opens: Needs, probe: Vector, byzantine: int = 1) -> Judgement:
    """What the requester makes of the exact numbers that ``opens`` shows it of these updates."""
    own, opened = updates[REQUESTER], [OpenedSite(REQUESTER, True)]
    for place, site in enumerate(SITES[1:], start=1):
        if opens is Needs.PAIRS:
            near = tuple((one, float(np.linalg.norm(updates[site] - updates[one]))) for one in SITES[:place])
            opened.append(OpenedSite(site, True, pairs=near))
        elif opens is Needs.INNER_PRODUCTS:
            opened.append(OpenedSite(site, True, inner_product=float(updates[site] @ probe)))
        else:
            centre = own if opens is Needs.DISTANCES else np.zeros(20)
            opened.append(OpenedSite(site, True, distance=float(np.linalg.norm(updates[site] - centre))))
    facts = RequesterFacts(REQUESTER, float(np.linalg.norm(own)), float(np.linalg.norm(probe)), float(own @ probe))
    rule = FedAvg(GRID, None)
    state = rule.init(tuple(SiteFacts(name=name, samples=10) for name in SITES[1:]))
    by = RoundRule(RuleSpec(name=RuleName.FEDAVG, byzantine=byzantine), rule, state, PARAMETERS)
    return judge(opened, facts, dict.fromkeys(SITES, GRID), by, round=1, opens=opens)


@dataclass(frozen=True)
class Long:
    """How long the cheat's update is, in clip norms, along the requester's, which is ``own`` long."""

    length: float
    own: float
    opens: Needs


class LongUpdate(Attack):
    """One update beyond what clipping allows; it succeeds when the requester keeps it in the sum."""

    party = Party.SITE
    figure = "clip norms, the length of the update that is in the sum; clipped ones are at most 1 long"
    defence = "an update that looks longer than any clipped one can is left out"

    def __init__(self, name: str, tries: str, long: Long, *, promised: bool = True) -> None:
        self.name, self.tries, self._long, self.promised = name, tries, long, promised
        self.without: Mapping[str, object] = (
            {"client_agent.requester.measuring.judging.too_long": lambda *_: frozenset()} if promised else {}
        )

    def attempt(self, folder: Path) -> Found:
        of = self._long
        cheat = of.length * CLIP * ALONG
        updates = {REQUESTER: of.own * CLIP * ALONG, CHEAT: cheat, **OTHERS}
        kept = CHEAT in judged(updates, of.opens, 0.5 * ALONG).measured.took_part
        return Found(kept and abs(of.length) > 1, abs(of.length) if kept else 0.0)


def long_updates() -> tuple[Attack, ...]:
    """Every attack of this family."""
    where = "sends an update of {} clip norms along the requester's, where {} are opened"
    return (
        LongUpdate("long-under-distances", where.format(2.9, "distances"), Long(2.9, 0.9, Needs.DISTANCES)),
        LongUpdate("long-under-pairs", where.format(2.9, "pairs"), Long(2.9, 0.9, Needs.PAIRS)),
        LongUpdate("long-under-norms", where.format(1.01, "norms"), Long(1.01, 0.9, Needs.NORMS)),
        LongUpdate("long-under-a-probe", where.format(5, "inner products"), Long(5.0, 0.9, Needs.INNER_PRODUCTS)),
        LongUpdate("long-against-a-probe", where.format(-5, "inner products"), Long(-5.0, 0.9, Needs.INNER_PRODUCTS)),
        LongUpdate(
            "long-within-reach",
            "sends an update of 1.8 clip norms in the direction of the requester's, of 0.4, where distances are opened",
            Long(1.8 - 1e-6, 0.4, Needs.DISTANCES),
            promised=False,
        ),
    )
