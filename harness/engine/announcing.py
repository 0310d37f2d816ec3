"""A round as it is announced, and who would take part: the policy on real messages (docs/protocol.md 4, 9).

Salts and model digests hide nothing within one process; they are there because the policy reads real messages.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from harness.datasets.site_data import SiteData
from harness.engine.run_state import Announced, Run, RunState
from protocol.clauses import Clause
from protocol.errors import ConfigurationError, PolicyRefusal
from protocol.parameters import Needs
from protocol.policy.candidates import Candidate
from protocol.policy.check import Terms, check_for_every_site, check_weight_list
from protocol.policy.site_policy import SitePolicy
from protocol.policy.study_clauses import check_needs_allowed
from protocol.rounds import planning
from protocol.wire.messages import Announcement, Purpose, WeightList

NO_SECRET: Final = "00" * 32


@dataclass(frozen=True)
class Answers:
    """Who contributes, in roster order; who declines, with the first refusal (None without one)."""

    taking_part: tuple[str, ...]
    declined: tuple[str, ...] = ()
    why: PolicyRefusal | None = None


Demand: TypeAlias = Callable[[Announced], None]
"""What the requester asks of an announcement besides the policy's other clauses. Raises: PolicyRefusal"""


def require_willing(needs: Needs, policy: SitePolicy, contributors: Sequence[str]) -> None:
    """Before round 1: no site's policy forbids what the rule opens.

    Raises: ConfigurationError that names the site and what is opened
    """
    for site in contributors:
        try:
            check_needs_allowed(needs, policy)
        except PolicyRefusal as refusal:
            raise ConfigurationError(
                f"site {site!r} refuses the study before its first round: {refusal.detail}; choose a rule that "
                "opens less, or a policy that allows it"
            ) from refusal


def require_validation(run: Run) -> None:
    """Before round 1: the requester has what its rule asks for. Raises: ConfigurationError"""
    if run.rule.needs is Needs.INNER_PRODUCTS and not len(run.requester.validation):
        raise ConfigurationError(
            f"the rule measures sites by the requester's validation loss, but {run.requester.name!r} "
            "has no validation example: split some off its training part"
        )


def lists_to_try(run: Run, state: RunState) -> tuple[Candidate, ...]:
    """As the requester's agent has them. Raises: PolicyRefusal when too few contributors have weight left"""
    if run.purpose(state) is Purpose.COUNTS and state.counts_rounds >= run.study.rounds:
        tried = f"the class counts could not be summed in {state.counts_rounds} rounds"
        raise PolicyRefusal(Clause.COUNTED_ONCE, tried)
    return planning.lists_to_try(run.situation(state))


def announce(
    run: Run,
    state: RunState,
    round_number: int,
    tried: Sequence[Candidate],
    demand: Demand = lambda announced: None,
) -> Announced:
    """The first of ``tried`` that meets the demand. Raises: PolicyRefusal; at once for what breaks another clause"""
    refused = PolicyRefusal(Clause.ISOLATION, "sites declined every list that this rule and the last sum leave")
    for candidate in tried:
        announced = _announced(run, state, round_number, candidate)
        try:
            demand(announced)
        except PolicyRefusal as refusal:
            refused = refusal
        else:
            return announced
    raise refused


def _announced(run: Run, state: RunState, round_number: int, candidate: Candidate) -> Announced:
    """Raises: PolicyRefusal when a site would decline"""
    parameters, purpose = run.study.parameters, run.purpose(state)
    weight_list = WeightList(
        study_digest=run.study.digest(),
        round=round_number,
        grid=parameters.weight_grid,
        weights=candidate.weights,
        requester=candidate.requester,
        salt=NO_SECRET,
    )
    announcement = Announcement(
        study_digest=weight_list.study_digest,
        round=round_number,
        listed=tuple(weight.site for weight in candidate.weights),
        least_contributors=candidate.least,
        opens=purpose.plan.opened(run.rule.needs),
        purpose=purpose,
        model_version=state.model_version,
        model_digest=NO_SECRET,
        weight_list_digest=weight_list.digest(),
        closes_at_s=0,
        tag_seed_hash=NO_SECRET if run.study.tagged(purpose) else None,
    )
    check_for_every_site(announcement, weight_list, _terms(run), state.memory)
    return Announced(announcement, weight_list)


def answers(run: Run, state: RunState, announced: Announced) -> Answers:
    """The listed sites that are there and accept the list.

    What :func:`announce` has asked for every site is not asked again: only the weight that a site gives itself, which
    nobody but the site knows.
    """
    taking_part: list[str] = []
    refusals: dict[str, PolicyRefusal] = {}
    for site in present(run, announced.announcement.listed, announced.announcement.round):
        own_weight = run.own_weight(site, state)
        try:
            if own_weight is not None:
                check_weight_list(
                    site.name, announced.announcement, announced.weight_list, _terms(run), state.memory, own_weight
                )
        except PolicyRefusal as refusal:
            refusals[site.name] = refusal
        else:
            taking_part.append(site.name)
    return Answers(tuple(taking_part), tuple(refusals), next(iter(refusals.values()), None))


def present(run: Run, listed: Collection[str], round_number: int) -> tuple[SiteData, ...]:
    """Who of the listed sites is there, in roster order."""
    return tuple(
        site for site in run.contributors if site.name in listed and run.attendance.present(site.name, round_number)
    )


def _terms(run: Run) -> Terms:
    return Terms(run.study.parameters, run.names, run.rule, run.policy)
