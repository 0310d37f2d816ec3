"""Weight lists, announcements and measurements that no site may agree to, shown to real agents.

Seven real agents with their folders and the default policy; the requester, and whoever helps it, is scripted. Servers
see no list: it is the site that declines, before it trains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from client_agent.contributor.decisions import Decision, Decisions
from client_agent.site.letters import WeightMail
from client_agent.study.mail import fetched
from harness.attack.attack import Attempt, Found, found, passes
from harness.attack.attacked_study import relative_error
from harness.attack.scripted_agents import (
    GRID,
    REQUESTER,
    SITE_KEY,
    SITES,
    START,
    Federation,
    How,
    Round,
    announced,
    study,
)
from protocol.errors import Clause
from protocol.messages.control import Announcement, ListedWeight, Purpose, RuleName, RuleSpec, WeightList
from protocol.messages.letter import LetterKind, Topic
from protocol.parameters import Needs
from protocol.policy.memory import LeftOut, ReleasedSum, SiteMemory
from protocol.policy.site_policy import SitePolicy
from protocol.rounds.agreement import model_digest

_DECISIONS: Final = "client_agent.contributor.decisions.Decisions."
_ISOLATION: Final[Mapping[str, object]] = {"client_agent.site.sum_memory.check_isolation": passes}


def _without(*clauses: str) -> Mapping[str, object]:
    return {f"protocol.policy.clauses.check_{clause}": passes for clause in clauses}


# --- lists by which one sum nearly is one site's update ---------------------------------------------------------------

_READ: Final = 0.15


def _one_sum(
    listed: tuple[str, ...],
    folder: Path,
    *,
    accomplices: tuple[str, ...] = (),
    least: int = 3,
    numerators: Mapping[str, int] = MappingProxyType({}),
) -> Found:
    """The figure is the error of the first site's update, from the sum and what accomplices know.

    ``numerators``: weights other than 1, over the grid.
    """
    with Federation(folder) as sites:
        made = sites.round(study(), 1, listed, version=0, least=least, numerators=numerators)
        truth = {site: sites.learners[site].gradient(START).astype(np.float64) for site in listed}
    if made.refused:
        return Found(False, 1.0)
    weight = {site: numerators.get(site, GRID) / GRID for site in listed}
    known = np.sum([weight[site] * truth[site] for site in accomplices], axis=0) if accomplices else 0.0
    error = relative_error((made.sum - known) / weight[listed[0]], truth[listed[0]])
    return Found(error < _READ, error)


# --- lists and announcements that a site declines ---------------------------------------------------------------------

_LISTED: Final = SITES[:4]
_VICTIM, _OTHER, _, _LAST = _LISTED
Change = Callable[[WeightList], WeightList]


@dataclass(frozen=True)
class Row:
    """One hostile list or announcement: ``change`` is announced, ``mailed`` is what the site gets instead of it.

    ``clause`` is what the site names when it declines, None where what it got is not what was announced.
    """

    name: str
    clause: Clause | None
    change: Change = lambda listed: listed
    mailed: Change = lambda listed: listed
    told: Mapping[str, Any] = field(default_factory=dict)
    memory: SiteMemory = field(default_factory=SiteMemory)
    policy: SitePolicy = field(default_factory=SitePolicy)


def _declined(rows: Sequence[Row], folder: Path) -> Found:
    reached = []
    for place, row in enumerate(rows):
        with Federation(folder / str(place), row.policy) as sites:
            decision = _decided(sites, row)
        if decision.accepted:
            reached.append(row.name)
        elif decision.clause is not row.clause:
            reached.append(f"{row.name} (declined: {decision.reason})")
    return found(reached)


def _decided(sites: Federation, row: Row) -> Decision:
    of = study()
    listed, told = announced(of, 1, _LISTED, How(version=0))
    listed = row.change(listed)
    told = told.model_copy(update={"weight_list_digest": listed.digest(), **row.told})
    sites.agent(_VICTIM, of).save(memory=row.memory)
    return sites.shown(of, _VICTIM, row.mailed(listed), sites.views(told))


def _with(**fields: object) -> Change:
    return lambda listed: listed.model_copy(update=fields)


def _weighing(numerators: Mapping[str, int]) -> Change:
    def change(listed: WeightList) -> WeightList:
        weights = tuple(
            ListedWeight(site=one.site, numerator=numerators.get(one.site, one.numerator)) for one in listed.weights
        )
        return listed.model_copy(update={"weights": weights})

    return change


def _without_last(listed: WeightList) -> WeightList:
    return listed.model_copy(update={"weights": tuple(one for one in listed.weights if one.site != _LAST)})


def _any_mail(decisions: Decisions, announcement: Announcement) -> WeightMail:
    """The requester's letter, whatever list is in it."""
    return fetched(decisions._owner, Topic(LetterKind.WEIGHTS, announcement.round), REQUESTER, WeightMail)


_OLD_MODEL: Final = model_digest(SITE_KEY, study().digest(), 1, (START + 1).astype("<f4").tobytes())
_SUMMED: Final = ReleasedSum(model_version=0, weights=tuple(ListedWeight(site=site, numerator=1) for site in _LISTED))
_DECLINED: Final[Mapping[str, tuple[Row, ...]]] = {
    "lists-other-than-announced": (
        Row("another salt", None, mailed=_with(salt="ee" * 32)),
        Row("another weight", None, mailed=_weighing({_OTHER: 1})),
        Row("of another round", Clause.SAME_ROUND, _with(round=2)),
        Row("of another study", Clause.SAME_ROUND, _with(study_digest="00" * 32)),
        Row("without an announced site", Clause.ANNOUNCED_SITES, _without_last),
    ),
    "lists-of-hostile-weights": (
        Row("its own above 1", Clause.GRID, _weighing({_VICTIM: GRID + 1})),
        Row("another site's above 1", Clause.GRID, _weighing({_LAST: 1000})),
        Row("of 0", Clause.GRID, _weighing({_OTHER: 0})),
        Row("off the grid", Clause.GRID, _with(grid=7)),
        Row("nobody else has weight", Clause.LARGEST_SHARE, _weighing(dict.fromkeys(_LISTED[1:], 1))),
        # Only the lightest others are sure to be in the sum: heavy names beside them add nothing.
        Row("heavy accomplices beside it", Clause.LARGEST_SHARE, _weighing({_OTHER: 10, SITES[2]: 11})),
        Row(
            "a weight that rises",
            Clause.NEVER_RISES,
            memory=SiteMemory(last_listed=(ListedWeight(site=_OTHER, numerator=3),)),
        ),
        Row("too few for the site", Clause.ENOUGH_CONTRIBUTORS, policy=SitePolicy(least_contributors=5)),
        Row("too many who may collude", Clause.ENOUGH_CONTRIBUTORS, policy=SitePolicy(assumed_colluders=2)),
    ),
    "lists-against-a-memory": (
        Row("a model that goes back", Clause.MODEL_VERSION, memory=SiteMemory(model_version=1)),
        Row(
            "another sum over one model",
            Clause.SAME_SUM_AGAIN,
            told={"least_contributors": 4},
            memory=SiteMemory(released=_SUMMED),
        ),
        Row(
            "a site that was left out twice",
            Clause.LEFT_OUT_TWICE,
            memory=SiteMemory(left_out=(LeftOut(site=_OTHER, rounds=(8, 9)),)),
        ),
        Row(
            "before the end of the last sum is seen",
            Clause.OUTCOME_UNKNOWN,
            memory=SiteMemory(last_accepted=7, unsettled=7),
        ),
        Row("more than the rule needs", Clause.MEASURED_FOR_NOTHING, told={"opens": Needs.DISTANCES}),
    ),
    "lists-over-another-model": (
        Row("another model", None, told={"model_digest": "00" * 32}),
        Row("an old model", None, told={"model_digest": _OLD_MODEL}),
        Row("a model to come", Clause.MODEL_BEHIND, told={"model_version": 3}),
    ),
}
_DECLINED_WITHOUT: Final[Mapping[str, Mapping[str, object]]] = {
    "lists-other-than-announced": {f"{_DECISIONS}_weight_mail": _any_mail, **_without("same_round", "announced_sites")},
    "lists-of-hostile-weights": _without("grid", "largest_share", "never_rises", "enough_contributors"),
    "lists-against-a-memory": _without(
        "model_version", "outcome_known", "same_sum_again", "opens", "measured_twice", "left_out_twice"
    ),
    "lists-over-another-model": {f"{_DECISIONS}_check_model": passes},
}

# --- more out of measured rounds than a model may be measured: again, on a crafted model, or beside a sum -------------

_MALLOWS: Final = study("measured", rule=RuleSpec(name=RuleName.MALLOWS))


def _measured(script: Callable[[Federation], Round], folder: Path) -> Found:
    """The figure is how many sites took part in the round that should not be."""
    with Federation(folder, SitePolicy(may_open=tuple(Needs))) as sites:
        made = script(sites)
    took_part = len(made.decisions) - len(made.refused)
    return Found(took_part > 0, took_part)


def _measure(
    sites: Federation, number: int = 1, model: np.ndarray = START, numerators: Mapping[str, int] = MappingProxyType({})
) -> Round:
    asked = How(version=0, end=None, purpose=Purpose.MEASURE, model=model, numerators=numerators)
    return sites.round(_MALLOWS, number, SITES, **asked)


def _again(sites: Federation) -> Round:
    _measure(sites)
    return _measure(sites, 2)


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


_FEW: Final = ("enough_contributors", "least_number", "largest_share")
ATTEMPTS: Final = {
    "list-of-one-heavy-site": Attempt(
        partial(_one_sum, _LISTED, numerators=dict.fromkeys(_LISTED[1:], 1)),
        {**_ISOLATION, **_without("largest_share")},
    ),
    "list-of-two-with-an-accomplice": Attempt(
        partial(_one_sum, SITES[:2], accomplices=SITES[1:2], least=2), {**_ISOLATION, **_without(*_FEW)}
    ),
    "list-of-one": Attempt(partial(_one_sum, SITES[:1], least=1), {**_ISOLATION, **_without(*_FEW)}),
    "list-of-accomplices": Attempt(partial(_one_sum, _LISTED, accomplices=_LISTED[1:], least=4), _ISOLATION),
    **{
        name: Attempt(partial(_declined, rows), {**_DECLINED_WITHOUT[name], f"{_DECISIONS}_check_isolation": passes})
        for name, rows in _DECLINED.items()
    },
    "measured-again": Attempt(partial(_measured, _again), _without("measured_twice")),
    "measured-on-a-crafted-model": Attempt(
        partial(_measured, partial(_measure, model=np.full_like(START, 7))), {f"{_DECISIONS}_check_model": passes}
    ),
    "measured-by-other-weights": Attempt(
        partial(_measured, partial(_measure, numerators=dict.fromkeys(SITES, GRID - 1))),
        _without("grid", "uninformative"),
    ),
    "measured-before-the-end": Attempt(partial(_measured, _before_the_end), _without("outcome_known")),
    "measured-around-isolation": Attempt(partial(_measured, _around_isolation), _ISOLATION),
}
