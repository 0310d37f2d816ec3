"""Weight lists and announcements, checked as a site checks them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from protocol.errors import Clause, PolicyRefusal
from protocol.messages.control import Announcement, WeightList
from protocol.parameters import Needs, StudyParameters
from protocol.policy.clauses import Terms, check_weight_list
from protocol.policy.memory import SiteMemory
from protocol.policy.site_policy import SitePolicy
from protocol.rules.interface import EqualRule
from tests.kit import round_messages
from tests.kit.round_messages import announcement_of

STUDY = "ab" * 32
ROSTER = ("b", "c", "d", "e", "f")


@dataclass(frozen=True)
class Declared(EqualRule):
    """A rule's declarations: the clauses ask no more."""

    needs: Needs = Needs.DISTANCES
    weights_never_rise: bool = True
    selects: bool = False
    grid: int = 32


def parameters(m: int = 3, t: int = 0, grid: int = 32) -> StudyParameters:
    return StudyParameters(dimension=62, clip_norm=1.0, weight_grid=grid, least_contributors=m, assumed_colluders=t)


def weight_list(weights: dict[str, int], round_number: int = 1, grid: int = 32, study: str = STUDY) -> WeightList:
    return round_messages.weight_list(study, weights, round=round_number, grid=grid)


def announcement(of: WeightList, m: int = 3, version: int = 0, **changes: Any) -> Announcement:
    named: dict[str, Any] = {"study_digest": STUDY, "least_contributors": m, "model_version": version}
    return announcement_of(of, **(named | changes))


def check(
    of: WeightList,
    told: Announcement | None = None,
    site: str = "b",
    m: int = 3,
    t: int = 0,
    never_rises: bool = True,
    policy: SitePolicy | None = None,
    memory: SiteMemory | None = None,
    contributors: tuple[str, ...] = ROSTER,
    needs: Needs = Needs.DISTANCES,
    own_weight: float | None = None,
    rule_selects: bool = False,
    grid: int = 32,
) -> None:
    terms = Terms(
        parameters(m, t, grid), contributors, Declared(needs, never_rises, rule_selects), policy or SitePolicy()
    )
    told = announcement(of, m=m) if told is None else told
    check_weight_list(site, told, of, terms, memory or SiteMemory(), own_weight)


def refused(clause: Clause, *parts: str) -> pytest.RaisesExc[PolicyRefusal]:
    pattern = f"^{clause.value}: .*" + ".*".join(parts)
    return pytest.raises(PolicyRefusal, match=pattern)


EVEN = {"b": 32, "c": 32, "d": 32, "e": 32}
