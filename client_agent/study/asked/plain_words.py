"""What a study would have leave this site, and who would read what: for the person who approves it.

By the signed study alone. The rule's own disclosures are those of docs/joining.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pydantic import BaseModel, ConfigDict

from protocol.errors import PolicyRefusal
from protocol.parameters import Needs
from protocol.policy.site_policy import SitePolicy
from protocol.policy.study_clauses import check_study_allowed
from protocol.printable import printable
from protocol.rules.server_optimiser import largest_step
from protocol.wire.messages import Roster, Study

_OPENED: Final = {
    Needs.NOTHING: "nothing about this site alone, but whether its update passed the range check",
    Needs.NORMS: "in every round one number: how long this site's update is",
    Needs.DISTANCES: "in every round one number: how far this site's update is from its own; a requester in bad faith "
    "chooses what it is compared with",
    Needs.PAIRS: "how far this site's update is from each other site's: who resembles whom",
    Needs.INNER_PRODUCTS: "in every round one number: how far this site's update points in a direction that the "
    "requester chooses, in good faith the one in which its validation loss falls",
}


class Statement(BaseModel):
    """One thing to know before saying yes: ``about`` it, in ``words``."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    about: str
    words: str


def in_plain_words(study: Study, roster: Roster, policy: SitePolicy) -> tuple[Statement, ...]:
    """Everything that the study would open and to whom, and whether this site's policy lets it."""
    return tuple(Statement(about=about, words=printable(words)) for about, words in _said(study, roster, policy))


def _said(study: Study, roster: Roster, policy: SitePolicy) -> Iterator[tuple[str, str]]:
    others = ", ".join(site.name for site in roster.sites if site.name != roster.requester)
    yield "who asks", f"{roster.requester}, in federation {roster.federation}; the other sites are {others}"
    yield "what for", _purpose(study)
    yield "servers", f"{roster.operator_a.name} and {roster.operator_b.name}, which must not be in league"
    yield "what leaves", _leaves(study)
    needs = dict.fromkeys((study.rule.needs, study.rule.name.declared.measures))
    for need in needs:
        if need is not Needs.NOTHING or len(needs) == 1:
            yield "the requester reads", _OPENED[need]
    yield "every site reads", _sums(study)
    yield from _once(study)
    if study.pretrained_digest is not None:
        yield "the first model", "comes from the requester; a crafted one can make records readable from the sum"
    yield (
        "the model",
        (
            f"one round moves it by at most {largest_step(study):g}; what it learned stays in it at every site, "
            "and may show records to whoever has it"
        ),
    )
    yield "noise", _noise(study)
    yield "this site's policy", _policy(study, policy)


def _purpose(study: Study) -> str:
    model, rounds = study.model, study.rounds
    what = f"{study.task.kind.value}, {model.kind} model of {study.parameters.dimension} shared parameters"
    inputs = ", ".join(model.feature_names) or "x".join(map(str, model.inputs))
    on = f", on {inputs}" if inputs else ""
    return f"{what}, {rounds} rounds under rule {study.rule.name.value}{on}"


def _leaves(study: Study) -> str:
    clip = study.parameters.clip_norm
    what = f"in each round an update, cut to length {clip:g}"
    if study.protection.plan.keyed:
        return f"{what}, encrypted under a key that every site has: SERVER A TOGETHER WITH ANY ONE SITE CAN READ IT"
    return f"{what}, in two halves that look random, one to each server: both servers together could read it"


def _sums(study: Study) -> str:
    least = study.parameters.least_contributors
    return f"the sum of the updates of at least {least} contributors and the requester, in every round"


def _once(study: Study) -> Iterator[tuple[str, str]]:
    if study.rule.name.counts_classes:
        yield "once, every site reads", "how many training examples of each class all sites together have"
    if study.ranking is not None:
        yield "once, the requester reads", "one number of its choice about a ridge regression of this site alone"
    if study.summary is not None:
        more = " and of products of numeric columns" if study.summary.second_moments else ""
        yield (
            "once, every site reads",
            f"sums over the sites of counts, means and histograms of the table{more}; columns of few patients as zeros",
        )


def _noise(study: Study) -> str:
    if study.privacy is None:
        return "none: this study is not differentially private, and what is opened says something about records"
    return f"every site adds noise to its updates: {study.privacy.model_dump_json(exclude={'version'})}"


def _policy(study: Study, policy: SitePolicy) -> str:
    try:
        check_study_allowed(study, policy)
    except PolicyRefusal as refusal:
        return f"REFUSES this study: {refusal.detail}"
    return "allows this study; every list of sites and weights is checked against it again"
