"""A study in plain words: what would leave the site and who would read it, and its settings.

By the signed study alone. The rule's own disclosures are those of docs/joining.md. Every text is one of ``About`` or
``Said``, with values in it by name, so that pages can say it in other languages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final

from pydantic import Field

from client_agent.study.privacy_spending import ForeseenEpsilon, foreseen_epsilon
from host.frozen import Frozen
from protocol.ckks.ciphertext import CkksParameters
from protocol.errors import PolicyRefusal
from protocol.messages.control import Roster, RuleName, Study
from protocol.parameters import WORD_BITS, Needs
from protocol.policy.site_policy import SitePolicy, check_study_allowed
from protocol.shared_model import largest_step
from protocol.text import printable, printable_lines


class About(StrEnum):
    """The subject of a statement."""

    ASKS = "who asks"
    PURPOSE = "what for"
    QUERY = "the query"
    SERVERS = "servers"
    LEAVES = "what leaves"
    REQUESTER_READS = "the requester reads"
    EVERYBODY_READS = "every site reads"
    EVERYBODY_READS_ONCE = "once, every site reads"
    REQUESTER_READS_ONCE = "once, the requester reads"
    FIRST_MODEL = "the first model"
    MODEL = "the model"
    NOISE = "noise"
    EPSILON = "epsilon"
    POLICY = "this site's policy"


class Said(StrEnum):
    """The statements, with the names of what is filled in."""

    ASKS = "%(requester)s, in federation %(federation)s; the other sites are %(others)s"
    PURPOSE = (
        "%(task)s, %(model)s model of %(dimension)s shared parameters, %(rounds)s rounds under rule %(rule)s, on "
        "%(inputs)s"
    )
    PURPOSE_OF_ANYTHING = (
        "%(task)s, %(model)s model of %(dimension)s shared parameters, %(rounds)s rounds under rule %(rule)s"
    )
    QUERY = (
        "whoever prepares data from a database at this site runs this there, and it may read every table that the "
        "account may read:\n%(query)s"
    )
    SERVERS = "%(a)s and %(b)s, which must not be in league"
    ENCRYPTED = (
        "in each round an update, cut to length %(clip)s, encrypted under a key that every site has: SERVER A "
        "TOGETHER WITH ANY ONE SITE CAN READ IT"
    )
    IN_HALVES = (
        "in each round an update, cut to length %(clip)s, in two halves that look random, one to each server: both "
        "servers together could read it"
    )
    # by the names of ``Needs``: what the requester reads of one site
    NOTHING = "nothing about this site alone, but whether its update passed the range check"
    NORMS = "in every round one number: how long this site's update is"
    WEIGHTED_NORMS = (
        "in every round one number: how long this site's update is with its own weight, so also that weight, roughly"
    )
    DISTANCES = (
        "in every round one number: how far this site's update is from its own; a requester in bad faith chooses "
        "what it is compared with"
    )
    PAIRS = "how far this site's update is from each other site's: who resembles whom"
    INNER_PRODUCTS = (
        "in every round one number: how far this site's update points in a direction that the requester chooses, in "
        "good faith the one in which its validation loss falls"
    )
    SUM = "the sum of the updates of at least %(least)s contributors and the requester, in every round"
    CLASSES = "how many training examples of each class all sites together have"
    RANKING = "one number of its choice about a ridge regression of this site alone"
    SUMMARY = "sums over the sites of counts, means and histograms of the table; columns of few patients as zeros"
    SUMMARY_WITH_PRODUCTS = (
        "sums over the sites of counts, means and histograms of the table and of products of numeric columns; columns "
        "of few patients as zeros"
    )
    FIRST_MODEL = "comes from the requester; a crafted one can make records readable from the sum"
    MODEL = (
        "one round moves it by at most %(step)s; what it learned stays in it at every site, and may show records to "
        "whoever has it"
    )
    NO_NOISE = "none: this study is not differentially private, and what is opened says something about records"
    NOISE = "every site adds noise to its updates: %(spec)s"
    EPSILON_OF_RECORD = (
        "%(epsilon)s at delta %(delta)s, if all %(rounds)s rounds take place: of one record at a site of %(examples)s "
        "examples, which of all that sites declare, and of what this site has, spends most (%(accountant)s)"
    )
    ALLOWED = "allows this study; every list of sites and weights is checked against it again"
    REFUSED = "REFUSES this study: %(why)s"


_Filled = tuple[Said, Mapping[str, object]]


class Statement(Frozen):
    """One thing to know before saying yes: ``about`` it, in ``words``, which are ``said`` with ``values`` in it."""

    about: About
    words: str
    said: Said = Field(exclude=True)
    values: dict[str, str] = Field(exclude=True)


def in_plain_words(
    study: Study, roster: Roster, policy: SitePolicy, own: tuple[int, ...] = ()
) -> tuple[Statement, ...]:
    """Everything that the study would open and to whom, and whether this site's policy lets it.

    ``own``: this site's number of training examples, where that is known
    """
    return tuple(_statement(about, *filled) for about, filled in _all_said(study, roster, policy, own))


def _statement(about: About, said: Said, values: Mapping[str, object]) -> Statement:
    fit = printable_lines if said is Said.QUERY else printable  # a line's end ends a comment of SQL
    shown = {name: fit(str(value)) for name, value in values.items()}
    return Statement(about=about, words=said.value % shown, said=said, values=shown)


def _all_said(
    study: Study, roster: Roster, policy: SitePolicy, own: tuple[int, ...]
) -> Iterator[tuple[About, _Filled]]:
    others = ", ".join(site.name for site in roster.sites if site.name != roster.requester)
    asks = {"requester": roster.requester, "federation": roster.federation, "others": others}
    yield About.ASKS, (Said.ASKS, asks)
    yield About.PURPOSE, _purpose(study)
    if study.data_schema is not None and study.data_schema.query:
        yield About.QUERY, (Said.QUERY, {"query": study.data_schema.query.strip()})
    yield About.SERVERS, (Said.SERVERS, {"a": roster.operator_a.name, "b": roster.operator_b.name})
    clip = {"clip": f"{study.parameters.clip_norm:g}"}
    yield About.LEAVES, (Said.ENCRYPTED if study.protection.plan.keyed else Said.IN_HALVES, clip)
    needs = dict.fromkeys((study.rule.needs, study.rule.name.declared.measures))
    for need in needs:
        if need is not Needs.NOTHING or len(needs) == 1:
            yield About.REQUESTER_READS, (Said[need.name], {})
    yield About.EVERYBODY_READS, (Said.SUM, {"least": study.parameters.least_contributors})
    yield from _once(study)
    if study.pretrained_digest is not None:
        yield About.FIRST_MODEL, (Said.FIRST_MODEL, {})
    yield About.MODEL, (Said.MODEL, {"step": f"{largest_step(study):g}"})
    yield About.NOISE, _noise(study)
    spends = foreseen_epsilon(study, roster, policy.delta, own)
    if spends is not None:
        yield About.EPSILON, _epsilon(spends)
    yield About.POLICY, _policy(study, policy)


def _purpose(study: Study) -> _Filled:
    model = study.model
    inputs = ", ".join(model.feature_names) or "x".join(map(str, model.inputs))
    values = {
        "task": study.task.kind.value,
        "model": model.kind,
        "dimension": study.parameters.dimension,
        "rounds": study.rounds,
        "rule": study.rule.name.value,
        "inputs": inputs,
    }
    return Said.PURPOSE if inputs else Said.PURPOSE_OF_ANYTHING, values


def _once(study: Study) -> Iterator[tuple[About, _Filled]]:
    if study.rule.name.counts_classes:
        yield About.EVERYBODY_READS_ONCE, (Said.CLASSES, {})
    if study.ranking is not None:
        yield About.REQUESTER_READS_ONCE, (Said.RANKING, {})
    if study.summary is not None:
        said = Said.SUMMARY_WITH_PRODUCTS if study.summary.second_moments else Said.SUMMARY
        yield About.EVERYBODY_READS_ONCE, (said, {})


def _noise(study: Study) -> _Filled:
    if study.record_noise is None:
        return Said.NO_NOISE, {}
    return Said.NOISE, {"spec": study.record_noise.model_dump_json(exclude={"version"})}


def _epsilon(spends: ForeseenEpsilon) -> _Filled:
    values = {
        "epsilon": f"{spends.epsilon:.3f}",
        "delta": f"{spends.delta:g}",
        "rounds": spends.rounds,
        "examples": spends.examples,
        "accountant": spends.accountant,
    }
    return Said.EPSILON_OF_RECORD, values


def _policy(study: Study, policy: SitePolicy) -> _Filled:
    try:
        check_study_allowed(study, policy)
    except PolicyRefusal as refusal:
        return Said.REFUSED, {"why": refusal.detail}
    return Said.ALLOWED, {}


Setting = tuple[str, str]
RULE_NAMES: Final = {
    RuleName.WEIGHT_EROSION: "Weight Erosion",
    RuleName.FEDAVG: "FedAvg",
    RuleName.WFEDAVG: "WFedAvg",
    RuleName.LOCAL: "Local",
}


def rule_words(rule: RuleName) -> str:
    return RULE_NAMES.get(rule, rule.value)


def training_words(study: Study) -> list[Setting]:
    training = study.training
    return [
        ("model", f"{study.model.kind}, {study.parameters.dimension:,} parameters"),
        ("update", f"{training.update}, batch {training.batch_size}"),
        ("learning rates", f"server {training.server_learning_rate}, local {training.local_learning_rate}"),
        ("rounds", str(study.rounds)),
        ("clip norm, E", f"{study.parameters.clip_norm}, 2^{study.parameters.encoded_norm_log2}"),
        ("weight grid", f"1/{study.parameters.weight_grid}"),
    ]


def protection_words(study: Study) -> list[Setting]:
    """Describe how updates are hidden, and what is opened about them."""
    if study.protection.plan.keyed:
        ckks = CkksParameters()
        ring = f"N = {ckks.ring_degree}, q of {ckks.modulus.bit_length()} bits, scale 2^{ckks.scale_bits}"
        return [("updates", f"under CKKS, {ring}, summed at server A"), ("class counts", "in shares at both servers")]
    parameters = study.parameters
    exact = "exact" if parameters.exact_distances else f"sketched, k = {parameters.sketch_length}"
    ring = "" if parameters.ring_bits == WORD_BITS else f", modulo 2^{parameters.ring_bits}"
    return [("updates", f"in shares at both servers{ring}"), ("distances", exact)]


def settings_words(study: Study) -> tuple[Setting, ...]:
    """Everything that a reader of results asks for; texts of the study file as they can be shown."""
    taken = study.rule.model_dump(include=set(study.rule.name.declared.options), exclude_none=True, mode="json")
    options = ", ".join(f"{key} = {value}" for key, value in sorted(taken.items()) if value != [])
    columns = ", ".join(study.model.feature_names)
    said = [
        ("task", study.task.kind.value),
        ("rule", rule_words(study.rule.name)),
        ("options of the rule", options),
        *training_words(study),
        ("columns", columns),
        ("classes", ", ".join(study.model.class_names)),
        *protection_words(study),
        ("tags of sums", "checked before a sum is served" if study.tags else "none"),
        ("noise", "none" if study.privacy is None else study.privacy.model_dump_json(exclude={"version"})),
        ("least contributors", str(study.parameters.least_contributors)),
        ("colluders that the study assumes", str(study.parameters.assumed_colluders)),
        ("deadline of a round", f"{study.round_deadline_s:g} s"),
    ]
    return tuple((about, printable(words)) for about, words in said if words)
