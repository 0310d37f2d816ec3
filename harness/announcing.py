"""A round as it is announced, and who would take part: the policy on real messages (docs/protocol.md 4, 9).

Salts and model digests hide nothing within one process; they are there because the policy reads real messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from harness.datasets.site_data import SiteData
from harness.run_state import Run, RunState
from protocol.clauses import Clause
from protocol.errors import ConfigurationError, PolicyRefusal
from protocol.parameters import Needs
from protocol.policy import SitePolicy, check_for_every_site, check_needs_allowed, check_weight_list
from protocol.wire.messages import Announcement, ListedWeight, Purpose, WeightList

NO_SECRET: Final = "00" * 32


@dataclass(frozen=True)
class Announced:
    """A round's announcement with its weight list."""

    announcement: Announcement
    weight_list: WeightList


@dataclass(frozen=True)
class Answers:
    """Who contributes, in roster order; who declines, with the first refusal's text ('' without one)."""

    taking_part: tuple[str, ...]
    declined: tuple[str, ...] = ()
    why: str = ""


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
            f"rule {run.study.rule.name.value!r} measures the requester's validation loss, but {run.requester.name!r} "
            "has no validation example: split some off its training part"
        )


def announce(run: Run, state: RunState, round_number: int) -> Announced:
    """The next shared round. Raises: PolicyRefusal when a site would decline, or too few have weight left"""
    parameters, purpose = run.study.parameters, run.purpose(state)
    if purpose is Purpose.COUNTS and state.counts_rounds >= run.study.rounds:
        tried = f"the class counts could not be summed in {state.counts_rounds} rounds"
        raise PolicyRefusal(Clause.COUNTED_ONCE, tried)
    weights = _weights(run, state)
    if len(weights) < parameters.least_contributors:
        raise PolicyRefusal(
            Clause.ENOUGH_CONTRIBUTORS,
            f"{len(weights)} contributors have weight left, at least {parameters.least_contributors} are needed",
        )
    weight_list = WeightList(
        study_digest=run.study.digest(),
        round=round_number,
        grid=parameters.weight_grid,
        weights=weights,
        salt=NO_SECRET,
    )
    announcement = Announcement(
        study_digest=weight_list.study_digest,
        round=round_number,
        listed=tuple(weight.site for weight in weights),
        least_contributors=parameters.least_contributors,
        opens=Needs.NOTHING if purpose is Purpose.COUNTS else run.rule.needs,
        purpose=purpose,
        model_version=state.model_version,
        model_digest=NO_SECRET,
        weight_list_digest=weight_list.digest(),
        closes_at_s=0,
    )
    check_for_every_site(
        announcement,
        weight_list,
        parameters,
        rule_declares_never_rising=run.rule.weights_never_rise,
        policy=run.policy,
        memory=state.memory,
        contributors=run.names,
        needs=run.rule.needs,
        rule_selects=run.rule.selects,
    )
    return Announced(announcement, weight_list)


def answers(run: Run, state: RunState, announced: Announced) -> Answers:
    """The listed sites that are there and accept the list.

    What :func:`announce` has asked for every site is not asked again: only the weight that a site gives itself, which
    nobody but the site knows.
    """
    taking_part: list[str] = []
    refusals: dict[str, str] = {}
    for site in _present(run, announced.announcement):
        own_weight = run.own_weight(site, state)
        try:
            if own_weight is not None:
                _check_own_weight(run, state, announced, site.name, own_weight)
        except PolicyRefusal as refusal:
            refusals[site.name] = refusal.detail
        else:
            taking_part.append(site.name)
    return Answers(tuple(taking_part), tuple(refusals), next(iter(refusals.values()), ""))


def _present(run: Run, announcement: Announcement) -> tuple[SiteData, ...]:
    return tuple(
        site
        for site in run.contributors
        if site.name in announcement.listed and run.attendance.present(site.name, announcement.round)
    )


def _check_own_weight(run: Run, state: RunState, announced: Announced, site: str, own_weight: float) -> None:
    check_weight_list(
        site,
        announced.announcement,
        announced.weight_list,
        run.study.parameters,
        rule_declares_never_rising=run.rule.weights_never_rise,
        policy=run.policy,
        memory=state.memory,
        contributors=run.names,
        needs=run.rule.needs,
        own_weight=own_weight,
        rule_selects=run.rule.selects,
    )


def _weights(run: Run, state: RunState) -> tuple[ListedWeight, ...]:
    """The rule lists sites as they were admitted, a weight list names them in roster order."""
    kept = (weight for weight in run.rule.numerators(state.rule_state) if weight.site not in state.declined)
    return tuple(sorted(kept, key=lambda weight: run.names.index(weight.site)))
