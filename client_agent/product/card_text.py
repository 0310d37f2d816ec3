"""A model card as a person reads it, in Markdown."""

from __future__ import annotations

from typing import Final

from client_agent.product.baseline import LEAST_EVENTS
from client_agent.product.card import ModelCard
from client_agent.scoring.score import shown_score
from protocol.messages.control import StudyState
from protocol.messages.model import Buffers
from protocol.text import printable

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
