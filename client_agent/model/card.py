"""A model card: what a model is, who made it and how well it does where it was exported; JSON for programs.

Sites are pseudonyms, in an order under a key that only the study's sites hold; weights are there at the requester
alone.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib.metadata
import platform
import re
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
from host.web_page import SOURCE, environment_of
from protocol.messages.control import ModelSpec, RuleSpec, Study, StudyState, TableSchema, TaskSpec
from protocol.policy.site_policy import SitePolicy

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


def card_markdown(card: ModelCard) -> str:
    """The whole card."""
    template = environment_of("client_agent.model", SOURCE).overlay(autoescape=False).get_template("card.jinja")
    text = template.render(card=card, shown_score=shown_score, least_events=LEAST_EVENTS)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"
