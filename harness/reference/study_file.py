"""docs/study_file.md: every key of a study file, with type and default as the models have them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from client_agent.learning.at_requester.finish_table import FinishTable
from client_agent.learning.study_file import ArchitectureTable, ModelTable, ParametersTable, StudyTable
from protocol.messages.control import RankingSpec, RuleSpec, SummarySpec, TaskSpec, TrainingSpec
from protocol.messages.specifications import PrivacySpec

TABLES: Final[Mapping[str, type[BaseModel]]] = {
    "": StudyTable,
    "model": ModelTable,
    "model.architecture": ArchitectureTable,
    "parameters": ParametersTable,
    "rule": RuleSpec,
    "training": TrainingSpec,
    "task": TaskSpec,
    "privacy": PrivacySpec,
    "ranking": RankingSpec,
    "summary": SummarySpec,
    "finish": FinishTable,
}
_ABOUT: Final = {
    "": "At the top of the file, before the first table. All other keys stand in tables, below.",
    "model": "What is trained. With a `[schema]`, what follows from it may be left out.",
    "model.architecture": 'For `kind = "library"`; every site\'s own settings must allow it.',
    "parameters": "The protocol's numbers. `clip_norm` alone must be given.",
    "rule": "Who counts how much. A rule takes its own options and refuses the others' where they are not the default.",
    "training": "What an update is.",
    "task": "What is predicted. With a `[schema]` it follows from the target.",
    "privacy": "Noise that every site adds to its own updates ([privacy_budget.md](privacy_budget.md)). Without the "
    "table a study is not differentially private.",
    "ranking": "Sites are ranked once before training ([joining.md](joining.md)); policies must have `may_rank`.",
    "summary": "A table one over all sites, once; it needs a `[schema]`, and policies must have `may_summarise`.",
    "finish": "What the requester alone does with the last shared model; in no message, and no part of the study.",
}
WORDS: Final[Mapping[str, Mapping[str, str]]] = {
    "": {
        "name": "The study's name, for ever: letters, digits and dashes.",
        "rounds": "How many rounds train; 0: the study is its summary alone.",
        "list_every": "How many sums keep one list of sites and weights before the rule may change it.",
        "round_deadline_s": "Seconds from a round's announcement until contributions close. A round in which everybody "
        "contributed does not wait for it; one in which a site stays away does.",
        "correlation_source": "Where the servers' correlated randomness comes from: `ot`, oblivious transfer between "
        "them; `dealer` exists in simulations alone.",
        "protection": "`shares`: two halves at two servers. `ckks`: ciphertexts at A, which any site's key opens.",
        "seed": "Fixes version 0 of the model, so that runs compare; without it the study's digest does. It makes no "
        "secret predictable.",
        "tags": "Four more coordinates by which sites find, and name, a server that changes a sum "
        "([protocol.md](protocol.md), section 15).",
    },
    "model": {
        "kind": "`linear`, `mlp`, `cnn`, `library` (`[model.architecture]`) or `plugin` (each site's own file).",
        "inputs": "The shape of one example, such as `[13]` or `[1, 28, 28]`.",
        "hidden": "Widths of hidden layers.",
        "classes": "Number of classes, for tasks of classes; 2 where neither is said.",
        "outputs": "Number of outputs, for all other tasks.",
        "activation": "Between layers.",
        "dropout": "Share of hidden units that are left out in a step of training.",
        "personal": "Affine layers that stay at each site: `input`, `target`.",
        "feature_names": "What the columns are called, for sites to compare; left out: the requester's; `[]`: none.",
        "class_names": "What the classes are called, likewise.",
        "buffers": "Batch norm's running statistics: `local` at each site, or `shared`.",
        "trainable": "Beginnings of the names of layers that are trained; all others are frozen, as in `weights`.",
        "weights": "File of the frozen layers' values (safetensors), pinned by digest.",
    },
    "model.architecture": {
        "library": "Such as `monai`.",
        "name": "The network's name there.",
        "version": "The library's version at every site; left out: the one installed at the requester.",
        "arguments": "Sizes and words for the network; no code.",
    },
    "parameters": {
        "clip_norm": "Length to which a site cuts its update before it is weighted; a power of two.",
        "encoded_norm_log2": "Its length in units of the ring, as a power of two: how finely an update is encoded.",
        "weight_grid": "Weights are multiples of 1 / this.",
        "sketch_length": "Random projections by which distances are estimated; a power of two. The error falls with "
        "its square root.",
        "least_contributors": "Fewest contributors, the requester not counted, in any sum.",
        "assumed_colluders": "How many contributors are assumed to show the requester their update.",
        "ring_bits": "`64`, or `48`: a quarter fewer bytes on every way, and the range check of an honest site fails "
        "in one of a million rounds or so ([protocol](protocol.md), section 24); not with `tags`.",
    },
    "rule": {
        "name": "Which rule; [simulating.md](simulating.md) compares them.",
        "distance_penalty": "Weight Erosion's p_d: how fast a site's weight falls with its distance.",
        "size_penalty": "Weight Erosion's p_s: how fast a site's weight falls once its examples have been seen often.",
        "erosion_applies": "Whether a distance changes the weight of the same sum, or of the next round's; over "
        "servers only `next_round`, since the distance is known after the sum's list was agreed.",
        "epochs_counted": "Weight Erosion counts examples seen (the paper) or batches (the MNIST study's code).",
        "second_weights": "Fixed factors of single sites' weights: `[{site = ..., weight = ...}]`.",
        "server_momentum": "beta_1 of adaptive server optimisers; left out: 0.9, FedAdagrad 0.",
        "second_moment_decay": "beta_2 of adaptive server optimisers.",
        "adaptivity": "tau of adaptive server optimisers.",
        "byzantine": "Multi-Krum's f: how many sites may be faulty.",
        "selected": "Multi-Krum's m: how many are summed; left out: all but f.",
        "largest_count": "The number of examples whose weight is 1; left out: the roster's largest.",
        "norm_bound": "Averaging rules leave out longer updates; then norms are opened.",
        "step": "Influence: how far a weight moves in a round.",
        "criterion": "Mallows: `plug_in`, or `raw` without the noise of the other sites.",
        "bias_factor": "Mallows, plug-in: how much bias counts against noise.",
        "variance_factor": "Mallows, raw: how much the requester's own noise counts.",
        "measure_every": "Mallows measures in the first round and then in every so-manieth.",
        "averages": "Mallows averages ratios over rounds, or bias and noise each for itself.",
    },
    "training": {
        "update": "`gradient` of one batch, or the sum of steps of `local_sgd`.",
        "batch_size": "Examples in a batch; a site with fewer takes all.",
        "epochs": "Passes over the site's examples in a round of local SGD.",
        "local_learning_rate": "Rate of a step at a site, in local SGD; with one gradient it changes nothing.",
        "server_learning_rate": "Rate at which the average update moves the model.",
        "l2": "Weight of the squared norm of the parameters in the loss.",
        "momentum": "Of local SGD.",
        "learning_rate_decay": "Factor of the local rate every `decay_every_rounds` rounds.",
        "decay_every_rounds": "0: never.",
        "batches": "Drawn anew (`shuffled`), or cut once and taken in turn (`cycled`).",
        "class_weights": "`inverse_frequency` weighs a class by one over its share at the site.",
    },
    "task": {
        "kind": "What the target is.",
        "loss": "One of the task's losses; left out: its first.",
        "huber_delta": "Where Huber's loss becomes linear, in units of the target.",
        "ties": "How Cox's partial likelihood treats events at one time.",
    },
    "privacy": {
        "unit": "What the noise hides: a `record`. Older versions also knew `site`, which is refused.",
        "record_clip": "Length to which every record's gradient is cut.",
        "noise_multiplier": "Standard deviation of the noise, in units of `record_clip`.",
    },
    "ranking": {
        "penalty": "Of the ridge regression, per example.",
        "clip_norm": "Longest model vector that a site shares, a power of two.",
    },
    "summary": {
        "bins": "Of every histogram.",
        "most_rows": "The largest site's rows; the larger, the coarser the sums.",
        "least_examples": "Columns and categories of fewer values leave a site as zeros.",
        "rounded_to": "Counts are rounded to multiples of this.",
        "second_moments": "Also sums of products of numeric columns.",
    },
    "finish": {
        "choose": "The pull to the shared model is chosen on examples held out, or by leaving each out once.",
        "held_out": "Share of the requester's training part that no shared round sees.",
    },
}
_WITHIN: Final = frozenset({"version"})


def page() -> str:
    """The whole page in Markdown."""
    parts = [
        "# The study file",
        "Every key of the TOML file that `moiety study create` takes. Strict: an unknown key stops it; "
        "`moiety study check STUDY.TOML --config settings.toml` says what is wrong and sends nothing. Tables "
        "`[schema]` and `[task]` are explained in [preparing_data.md](preparing_data.md) and [models.md](models.md), "
        "an example is [first.toml](examples/first.toml). This page is made by `python -m harness.reference`.",
    ]
    for name, table in TABLES.items():
        heading = f"## `[{name}]`" if name else "## The study"
        parts += [heading, _ABOUT[name], "\n".join(_rows(name, table))]
    return "\n\n".join(parts) + "\n"


def keys_of(name: str) -> dict[str, FieldInfo]:
    """The keys of a table that are no tables themselves."""
    inner = {key.rpartition(".")[2] for key in TABLES if key.rpartition(".")[0] == name and key} | {"data_schema"}
    fields = TABLES[name].model_fields.items()
    of_message = _WITHIN if name != "model.architecture" else frozenset()
    return {key: field for key, field in fields if key not in inner and key not in of_message}


def _rows(name: str, table: type[BaseModel]) -> Iterator[str]:
    yield "| key | what it takes | default | meaning |"
    yield "|---|---|---|---|"
    for key, field in keys_of(name).items():
        default = "required" if field.is_required() else _default(field.default)
        yield f"| `{key}` | {taken(field)} | {default} | {WORDS[name][key]} |"


def _default(value: object) -> str:
    if value is None or value in ((), {}):
        return "none"
    if isinstance(value, StrEnum):
        value = value.value
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def taken(field: FieldInfo) -> str:
    limits = [_limit(one) for one in field.metadata]
    found = _kind(field.annotation)
    return found + "".join(f", {limit}" for limit in limits if limit)


def _limit(one: object) -> str:
    signs = (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below"))
    return ", ".join(f"{word} {getattr(one, sign):g}" for sign, word in signs if getattr(one, sign, None) is not None)


_NAMES: Final = {str: "text", int: "whole number", float: "number", bool: "`true`, `false`"}


def _kind(annotation: Any) -> str:  # noqa: ANN401  # any type that a field may have
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        limits = [_limit(limit) for one in inner[1:] for limit in getattr(one, "metadata", [one])]
        found = _kind(inner[0]) + "".join(f", {limit}" for limit in limits if limit)
    elif origin in (Union, UnionType):
        found = " or ".join(_kind(one) for one in inner if one is not NoneType)
    elif origin is Literal:
        found = ", ".join(f"`{one}`" for one in inner)
    elif origin is tuple:
        found = f"list of {_kind(inner[0])}"
    elif origin is dict:
        found = "table"
    elif issubclass(annotation, StrEnum):
        found = ", ".join(f"`{one.value}`" for one in annotation)
    else:
        found = _NAMES.get(annotation) or re.sub(r"(?<!^)(?=[A-Z])", " ", annotation.__name__).lower()
    return found
