"""The part of a study report on noise: epsilon, delta, the unit, and by what they were counted."""

from __future__ import annotations

from client_agent.drawn.document import table
from client_agent.product.card import CardPrivacy


def noise_html(own: CardPrivacy | None) -> str:
    """A table and a note; None is a study without noise."""
    if own is None:
        return (
            "<p>No noise: this study is not differentially private, and nothing bounds what its model and its sums "
            "tell about a single record.</p>"
        )
    unit = "whole site" if own.unit == "site" else "record of this site"
    rows = [
        (f"epsilon of this study, per {unit}", f"{own.epsilon:.3f}"),
        (f"epsilon of all this site's studies, per {unit}", f"{own.spent:.3f}"),
        ("delta", f"{own.delta:g}"),
        ("budget", _budget(own)),
        _noise(own),
        ("trainings", str(own.trainings)),
        ("accountant", own.accountant),
    ]
    return table(("what", "at this site"), rows) + f"<p class=note>{_others(own)}</p>"


def _budget(own: CardPrivacy) -> str:
    if own.budget is None:
        return f"none of unit {own.unit} is set"
    return f"{own.budget:g}, of which {own.used or 0:.0%} is used"


def _noise(own: CardPrivacy) -> tuple[str, str]:
    """Return the noise's origin and its multiple."""
    if own.clip_norm is not None:
        return "noise multiplier of each server, clip norm of an update", f"{own.noise_multiplier:g}, {own.clip_norm:g}"
    return "noise multiplier, record clip", f"{own.noise_multiplier:g}, {own.record_clip or 0:g}"


def _others(own: CardPrivacy) -> str:
    if own.unit == "site":
        return (
            "Every site spends the same in a round that it trains in. The number holds as long as one of the two "
            "servers adds its noise and keeps it, and against both together nothing does."
        )
    return "Other sites have their own numbers."
