"""A study's settings in words, from what its requester signed."""

from __future__ import annotations

from typing import Final

from protocol.ckks.ciphertext import CkksParameters
from protocol.messages.control import RuleName, Study
from protocol.parameters import WORD_BITS
from protocol.text import printable

Setting = tuple[str, str]
RULE_NAMES: Final = {
    RuleName.WEIGHT_EROSION: "Weight Erosion",
    RuleName.FEDAVG: "FedAvg",
    RuleName.WFEDAVG: "WFedAvg",
    RuleName.LOCAL: "Local",
}


def rule_words(rule: RuleName) -> str:
    """The rule's name for people."""
    return RULE_NAMES.get(rule, rule.value)


def training_words(study: Study) -> list[Setting]:
    """Model, update, learning rates, rounds."""
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
