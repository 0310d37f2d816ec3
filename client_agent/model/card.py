"""A model card: what a model is, who made it and how well it does where it was exported; JSON for programs.

Sites are pseudonyms, in an order under a key that only the study's sites hold; weights are there at the requester
alone.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib.metadata
import platform
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from client_agent.learning.scores import FinalScores, shown_score
from client_agent.model.site_model import HeldModel
from client_agent.site.events import RoundEnd
from client_agent.site.journal import FinishedModel
from client_agent.site.privacy_budget import Training, accountant, epsilon_of, share_used
from host.frozen import Frozen
from protocol.messages.control import ModelSpec, RuleSpec, Study, StudyState, TableSchema, TaskSpec
from protocol.messages.model import Buffers
from protocol.policy.site_policy import SitePolicy
from protocol.text import printable

CARD_FILE: Final = "card.json"
_VERSIONED: Final = ("moiety", "torch", "safetensors", "numpy")


LEAST_EVENTS: Final = 5
"""Events up to the first horizon, and between any two: a step of fewer would show single patients."""


class Horizon(Frozen):
    """A ``time`` in the data's own unit, and the log of the cumulative baseline hazard up to it."""

    time: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    log_hazard: Annotated[float, Field(allow_inf_nan=False)]


def survival(baseline: Sequence[Horizon], log_hazards: NDArray[np.float64]) -> NDArray[np.float64]:
    """The probability of having no event until each horizon. Shapes: float64[n] -> float64[n, horizons]"""
    with np.errstate(over="ignore"):
        return np.asarray(np.exp(-np.exp(log_hazards[:, None] + np.array([one.log_hazard for one in baseline]))))


class CardSite(Frozen):
    """A site by its pseudonym: how many sums it is in, and the rule's last weight for it, where that is known."""

    site: str
    sums: int
    last_weight: float | None = None


class Named(Frozen):
    """A version or a SHA-256 by what it is of."""

    name: str
    value: str


class CardPrivacy(Frozen):
    """The bound on what the shared model tells about a record of the exporting site: ``epsilon`` at ``delta``.

    ``spent`` is the same over all of that site's studies, ``used`` their share of its ``budget``. Other sites have
    other numbers of records, and so another epsilon. ``record_clip`` is the length of a record's gradient, which the
    noise is a multiple of. ``unit`` "site", with ``clip_norm`` in place of ``record_clip``, stands in cards of older
    versions.
    """

    unit: Literal["record", "site"] = "record"
    epsilon: float
    delta: float
    spent: float
    budget: float | None
    used: float | None
    noise_multiplier: float
    record_clip: float | None = None
    clip_norm: float | None = Field(default=None, exclude=True)
    trainings: int
    accountant: str


class ModelCard(Frozen):
    """``released`` rounds stepped the model by a sum, ``alone`` by the requester's own data. ``scores`` are those of
    the site that exports, on its own test part. ``finish`` says how the requester finished the model alone, None where
    it is the shared one. ``baseline`` is what survival is predicted by, from the exporting site's training rows alone.
    ``simulated``: no site took part, all data lay in one place. ``files`` are the digests of what lies beside the card.
    """

    card: Literal["moiety-model-card/1"] = "moiety-model-card/1"
    study: str
    study_digest: str
    model_version: int
    exported_at: Literal["requester", "contributor"]
    ended: StudyState
    why: str
    rule: RuleSpec
    rounds: int
    released: int
    alone: int
    sites: tuple[CardSite, ...]
    task: TaskSpec
    model: ModelSpec
    data_schema: TableSchema | None
    transformation_digest: str | None
    scores: FinalScores | None
    privacy: CardPrivacy | None = None
    finish: FinishedModel | None = None
    baseline: tuple[Horizon, ...] = ()
    simulated: bool = False
    versions: tuple[Named, ...]
    files: tuple[Named, ...]

    @property
    def local_only(self) -> bool:
        """True if the shared part ended before the study did."""
        return self.ended is StudyState.LOCAL_ONLY or self.alone > 0


def card_of(
    held: HeldModel,
    *,
    is_requester: bool,
    transformation_digest: str | None,
    files: Mapping[str, str],
    baseline: tuple[Horizon, ...] = (),
) -> ModelCard:
    """The card of an exported model; ``files`` are digests by name."""
    ends = [record.state for record in held.records]
    study = held.study
    return ModelCard(
        study=study.name,
        study_digest=study.digest(),
        model_version=held.version,
        exported_at="requester" if is_requester else "contributor",
        ended=held.ended,
        why=held.why,
        rule=study.rule,
        rounds=study.rounds,
        released=sum(one.state is RoundEnd.RELEASED and one.purpose.plan.steps_model for one in held.records),
        alone=ends.count(RoundEnd.ALONE),
        sites=_card_sites(held),
        task=study.task,
        model=study.model,
        data_schema=study.data_schema,
        transformation_digest=transformation_digest,
        scores=held.scores,
        privacy=None if held.simulated else privacy_of(held.study, held.spent, held.policy),
        finish=held.finish,
        baseline=baseline,
        simulated=held.simulated,
        versions=versions_of(study.model),
        files=tuple(Named(name=name, value=digest) for name, digest in sorted(files.items())),
    )


def privacy_of(study: Study, spent: tuple[Training, ...], policy: SitePolicy) -> CardPrivacy | None:
    """``spent`` are the site's trainings with noise in all studies; None for a study without noise."""
    privacy, delta = study.record_noise, policy.delta
    if privacy is None:
        return None
    own = [one.times(1) for one in spent if one.study_digest == study.digest()]
    every = [one.times(1) for one in spent]
    return CardPrivacy(
        epsilon=epsilon_of(own, delta),
        delta=delta,
        spent=epsilon_of(every, delta),
        budget=policy.epsilon,
        used=share_used(every, policy.epsilon, delta) if policy.epsilon is not None else None,
        noise_multiplier=privacy.noise_multiplier,
        record_clip=privacy.clip,
        trainings=len(own),
        accountant=accountant(),
    )


def _card_sites(held: HeldModel) -> tuple[CardSite, ...]:
    sums: dict[str, int] = {}
    weights: dict[str, float] = {}
    for record in held.records:
        if record.state is RoundEnd.RELEASED and record.purpose.plan.steps_model:
            for site in record.took_part:
                sums[site] = sums.get(site, 0) + 1
        weights |= {one.site: one.value for one in record.alphas}
    key = (held.state.site_key or held.study.digest()).encode()
    order = sorted(sums, key=lambda site: hmac.digest(key, site.encode(), "sha256"))
    return tuple(
        CardSite(site=f"site-{number}", sums=sums[site], last_weight=weights.get(site))
        for number, site in enumerate(order, start=1)
    )


def versions_of(model: ModelSpec) -> tuple[Named, ...]:
    """Return the versions of Python and of the packages that a model's numbers depend on."""
    libraries = _VERSIONED if model.architecture is None else (*_VERSIONED, model.architecture.library)
    found = [Named(name=name, value=importlib.metadata.version(name)) for name in libraries]
    return (Named(name="python", value=platform.python_version()), *found)


def file_digest(content: bytes) -> str:
    """SHA-256, hexadecimal."""
    return hashlib.sha256(content).hexdigest()


_SIMULATED: Final = "**SIMULATED: trained in one place on the data of all sites; no site took part.**"


def card_markdown(card: ModelCard) -> str:
    """The whole card."""
    parts = [
        f"# Model {card.model_version} of study {card.study}",
        _SIMULATED if card.simulated else "",
        _warning(card),
        _origin(card),
        "## What it may tell about a single record\n\n" + _privacy(card),
        "## Sites\n\n" + _sites(card),
        f"## How well it does at the {_exported_at(card)}\n\n" + _scores(card),
        "## What goes in and comes out\n\n" + _inputs(card),
        "## Versions and digests\n\n" + _facts(card),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _exported_at(card: ModelCard) -> str:
    return "simulated requester" if card.simulated else f"{card.exported_at} that exported it"


def _warning(card: ModelCard) -> str:
    if card.local_only:
        reason = f" ({printable(card.why)})" if card.why else ""
        alone = f" {card.alone} rounds after that trained on the requester's own data alone." if card.alone else ""
        return (
            f"**LOCAL_ONLY: the shared part of this study ended after {card.released} of {card.rounds} rounds**"
            f"{reason}.{alone}"
        )
    if card.ended is not StudyState.COMPLETED:
        reason = f": {printable(card.why)}" if card.why else ""
        return f"**The study is {card.ended.value}, not completed**{reason}."
    return ""


def _origin(card: ModelCard) -> str:
    made = "Simulated" if card.simulated else "Trained by federated learning"
    opened = "" if card.simulated else "; every round's sum was opened, no site's update"
    return (
        f"{_finish(card)}{made} under rule `{card.rule.name.value}`, {card.released} rounds "
        f"released of {card.rounds}{opened}. The model itself may show what it was trained on: give it to nobody who "
        "may not learn about the patients."
    )


def _privacy(card: ModelCard) -> str:
    if card.simulated:
        return "Nothing is bounded: what noise a simulation adds comes from its seed, which is in `study.json`."
    if card.privacy is None:
        return (
            "The sites added no noise: no bound is known on what the model, or the sums that made it, tell about a "
            "single record (no differential privacy)."
        )
    own = card.privacy
    finished = (
        " **This model was finished without noise on the requester's records, and the number does not hold for them.**"
        if card.finish is not None
        else ""
    )
    budget = "" if own.used is None else f" ({own.used:.0%} of a budget of {own.budget:g})"
    return (
        f"Epsilon {own.epsilon:.2f} at delta {own.delta:g} for each record of the site that exported this "
        f"({own.trainings} trainings, noise multiplier {own.noise_multiplier:g}, gradients clipped to "
        f"{own.record_clip:g}); {own.spent:.2f} with its other studies{budget}. Accountant: {own.accountant}. Records "
        f"of other sites have their own numbers. A patient with several records has that many times as much.{finished}"
    )


def _finish(card: ModelCard) -> str:
    if card.finish is None:
        return ""
    return (
        f"**The requester's own model of version {card.finish.shared_version}** ({card.finish.text}): after the last "
        "shared round it was moved on the requester's examples alone. No other site has it, and it says more about "
        "the requester's patients than the shared model does.\n\n"
    )


def _sites(card: ModelCard) -> str:
    if not card.sites:
        return "No sum was recorded here."
    lines = ["| site | sums it is in | last weight |", "|---|---|---|"]
    for one in card.sites:
        weight = "not known here" if one.last_weight is None else f"{one.last_weight:.3f}"
        lines.append(f"| {one.site} | {one.sums} | {weight} |")
    return "\n".join(lines)


def _scores(card: ModelCard) -> str:
    if card.scores is None:
        return "No metrics: the study has not ended here, or this site has no test examples."
    head = f"{card.scores.examples} test examples of that site alone"
    drawn = f", 95 % intervals over {card.scores.samples} bootstrap draws" if card.scores.samples else ""
    return f"{head}{drawn}. They say nothing about other patients.\n\n" + "\n".join(
        f"- {printable(shown_score(score))}" for score in card.scores.scores
    )


def _inputs(card: ModelCard) -> str:
    lines = [f"- task: {card.task.kind.value}", f"- one example: float32{list(card.model.inputs)}"]
    if card.model.feature_names:
        lines.append(f"- columns: {', '.join(map(printable, card.model.feature_names))}")
    if card.model.class_names:
        lines.append(f"- classes: {', '.join(map(printable, card.model.class_names))}")
    if card.baseline:
        until = ", ".join(f"{one.time:g}" for one in card.baseline)
        lines.append(
            f"- survival at {until}: by a cumulative baseline hazard (Breslow) of the training rows of the "
            f"{card.exported_at} that exported this, of no other site; other sites' patients may fare otherwise. It "
            "tells how many of that site's patients had their event until each of these times, at least "
            f"{LEAST_EVENTS} between any two; no event time is in this folder"
        )
    if card.transformation_digest is not None:
        lines.append("- tables go through `transformation.json`, whose medians and scales are of the exporting site")
    if card.model.buffers is Buffers.LOCAL or card.model.personal:
        lines.append("- personal layers and batch norm's statistics are those of the exporting site")
    return "\n".join(lines)


def _facts(card: ModelCard) -> str:
    lines = [f"- study: `{card.study_digest}`"]
    if card.transformation_digest is not None:
        lines.append(f"- transformation: `{card.transformation_digest}`")
    lines += [f"- {one.name}: `{one.value}`" for one in card.files]
    return "\n".join([*lines, *(f"- {one.name} {one.value}" for one in card.versions)])
