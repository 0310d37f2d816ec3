"""Weight lists and announcements that no site may agree to, shown to a real agent with the default policy.

Servers see no list: it is the site that declines, before it trains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from client_agent.contributor.decisions import Decision, Decisions
from client_agent.site.context import RELAY
from client_agent.site.letter import WeightMail
from harness.adversaries.catalogue.attack import Attack, Found, Party, passes
from harness.adversaries.scripted_agents import (
    GRID,
    REQUESTER,
    SITE_KEY,
    SITES,
    START,
    Federation,
    How,
    announced,
    study,
)
from protocol.bodies.letter import open_letter
from protocol.clauses import Clause
from protocol.parameters import Needs
from protocol.policy.memory import LeftOut, ReleasedSum, SiteMemory
from protocol.policy.site_policy import SitePolicy
from protocol.rounds.agree import model_digest
from protocol.wire import paths
from protocol.wire.messages import Announcement, ListedWeight, WeightList

_LISTED: Final = SITES[:4]
_VICTIM, _OTHER, _LAST = SITES[0], SITES[1], SITES[3]
_NUMBER: Final = 1
_CLAUSES: Final = "protocol.policy.clauses.check_"
_DECISIONS: Final = "client_agent.contributor.decisions."
_ISOLATION: Final[Mapping[str, object]] = {f"{_DECISIONS}Decisions._check_isolation": passes}
Change = Callable[[WeightList], WeightList]


def _same(listed: WeightList) -> WeightList:
    return listed


@dataclass(frozen=True)
class Row:
    """One hostile list or announcement: ``change`` is announced, ``mailed`` is what the site gets instead of it.

    ``clause`` is what the site names when it declines, None where what it got is not what was announced.
    """

    name: str
    clause: Clause | None
    change: Change = _same
    mailed: Change = _same
    told: Mapping[str, Any] = field(default_factory=dict)
    memory: SiteMemory = field(default_factory=SiteMemory)
    policy: SitePolicy = field(default_factory=SitePolicy)


class Declined(Attack):
    """Several lists that one defence makes a site decline."""

    party = Party.REQUESTER
    figure = "hostile lists that a site agreed to, or declined for another reason"

    def __init__(self, name: str, tries: str, defence: str, without: Mapping[str, object], rows: Sequence[Row]) -> None:
        self.name, self.tries, self.defence = name, tries, defence
        self.without, self._rows = {**without, **_ISOLATION}, tuple(rows)

    def attempt(self, folder: Path) -> Found:
        reached = []
        for place, row in enumerate(self._rows):
            with Federation(folder / str(place), row.policy) as sites:
                decision = _decided(sites, row)
            if decision.accepted:
                reached.append(row.name)
            elif decision.clause is not row.clause:
                reached.append(f"{row.name} (declined: {decision.reason})")
        return Found(bool(reached), len(reached), "; ".join(reached))


def _decided(sites: Federation, row: Row) -> Decision:
    of, how = study(), How(version=0)
    listed, told = announced(of, _NUMBER, _LISTED, how)
    listed = row.change(listed)
    told = told.model_copy(update={"weight_list_digest": listed.digest(), **row.told})
    sites.agent(_VICTIM, of).save(memory=row.memory)
    return sites.shown(of, _VICTIM, row.mailed(listed), sites.views(told))


def _weighing(site: str, numerator: int) -> Change:
    """One site's weight replaced."""

    def change(listed: WeightList) -> WeightList:
        weights = tuple(
            ListedWeight(site=one.site, numerator=numerator) if one.site == site else one for one in listed.weights
        )
        return listed.model_copy(update={"weights": weights})

    return change


def _with(**fields: object) -> Change:
    return lambda listed: listed.model_copy(update=fields)


def _without_last(listed: WeightList) -> WeightList:
    return listed.model_copy(update={"weights": tuple(one for one in listed.weights if one.site != _LAST)})


def _alone(listed: WeightList) -> WeightList:
    """The smallest weights for everybody else."""
    weights = tuple(
        ListedWeight(site=one.site, numerator=listed.grid if one.site == _VICTIM else 1) for one in listed.weights
    )
    return listed.model_copy(update={"weights": weights})


def _padded(listed: WeightList) -> WeightList:
    """Only the lightest others are sure to be in the sum: heavy names beside them add nothing."""
    for site, numerator in ((_OTHER, 10), (SITES[2], 11)):
        listed = _weighing(site, numerator)(listed)
    return listed


def _old_digest() -> str:
    return model_digest(SITE_KEY, study().digest(), _NUMBER, (START + 1).astype("<f4").tobytes())


def _any_mail(decisions: Decisions, announcement: Announcement) -> WeightMail:
    """The requester's letter, whatever list is in it."""
    context, of = decisions._context, decisions._owner
    topic = paths.fill(paths.WEIGHTS_TOPIC, round=announcement.round)
    sealed = context.clients[RELAY].get_mail(of.study.name, topic, context.site, REQUESTER, of.letter_bytes)
    return open_letter(
        sealed,
        WeightMail,
        "weights",
        of.study_digest,
        REQUESTER,
        context.site,
        announcement.round,
        context.keys.sealing,
    )


def _other_than_announced() -> Declined:
    return Declined(
        "lists-other-than-announced",
        "mails a site another list than the announced one, another round's or study's, or one without a listed site",
        "a list counts under its digest in the announcement, which both servers have signed, and for its own round",
        {
            f"{_DECISIONS}Decisions._weight_mail": _any_mail,
            f"{_CLAUSES}same_round": passes,
            f"{_CLAUSES}announced_sites": passes,
        },
        (
            Row("another salt", None, mailed=_with(salt="ee" * 32)),
            Row("another weight", None, mailed=_weighing(_OTHER, 1)),
            Row("of another round", Clause.SAME_ROUND, _with(round=2)),
            Row("of another study", Clause.SAME_ROUND, _with(study_digest="00" * 32)),
            Row("without an announced site", Clause.ANNOUNCED_SITES, _without_last),
        ),
    )


def _hostile_weights() -> Declined:
    rising = SiteMemory(last_listed=(ListedWeight(site=_OTHER, numerator=3),))
    return Declined(
        "lists-of-hostile-weights",
        "gives weights above 1, of 0, off the grid, to one site nearly alone, or higher than before",
        "the clauses of every site's policy on weights, looked at before it trains",
        {
            f"{_CLAUSES}grid": passes,
            f"{_CLAUSES}largest_share": passes,
            f"{_CLAUSES}never_rises": passes,
            f"{_CLAUSES}enough_contributors": passes,
        },
        (
            Row("its own above 1", Clause.GRID, _weighing(_VICTIM, GRID + 1)),
            Row("another site's above 1", Clause.GRID, _weighing(_LAST, 1000)),
            Row("of 0", Clause.GRID, _weighing(_OTHER, 0)),
            Row("off the grid", Clause.GRID, _with(grid=7)),
            Row("nobody else has weight", Clause.LARGEST_SHARE, _alone),
            Row("heavy accomplices beside it", Clause.LARGEST_SHARE, _padded),
            Row("a weight that rises", Clause.NEVER_RISES, memory=rising),
            Row("too few for the site", Clause.ENOUGH_CONTRIBUTORS, policy=SitePolicy(least_contributors=5)),
            Row("too many who may collude", Clause.ENOUGH_CONTRIBUTORS, policy=SitePolicy(assumed_colluders=2)),
        ),
    )


def _against_memory() -> Declined:
    ones = tuple(ListedWeight(site=site, numerator=1) for site in _LISTED)
    return Declined(
        "lists-against-a-memory",
        "goes back to an older model, asks for another sum over the same model, a third measurement, a site left out",
        "every site's memory of models, sums, measured rounds and of who was left out",
        {
            f"{_CLAUSES}model_version": passes,
            f"{_CLAUSES}outcome_known": passes,
            f"{_CLAUSES}same_sum_again": passes,
            f"{_CLAUSES}opens": passes,
            f"{_CLAUSES}measured_twice": passes,
            f"{_CLAUSES}left_out_twice": passes,
        },
        (
            Row("a model that goes back", Clause.MODEL_VERSION, memory=SiteMemory(model_version=1)),
            Row(
                "another sum over one model",
                Clause.SAME_SUM_AGAIN,
                told={"least_contributors": 4},
                memory=SiteMemory(released=ReleasedSum(model_version=0, weights=ones)),
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
    )


def _of_other_models() -> Declined:
    return Declined(
        "lists-over-another-model",
        "has a site train on a model that is not its own: another one, an old one, or one that it does not have yet",
        "the digest of every site's own copy of the model, under a key that servers do not have",
        {f"{_DECISIONS}Decisions._check_model": passes},
        (
            Row("another model", None, told={"model_digest": "00" * 32}),
            Row("an old model", None, told={"model_digest": _old_digest()}),
            Row("a model to come", Clause.MODEL_BEHIND, told={"model_version": 3}),
        ),
    )


def declined_lists() -> tuple[Attack, ...]:
    """Every attack of this family."""
    return _other_than_announced(), _hostile_weights(), _against_memory(), _of_other_models()
