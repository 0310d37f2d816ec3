"""The part of a study report on noise: epsilon, delta, and by what they were counted."""

from __future__ import annotations

from client_agent.drawn.document import table
from client_agent.product.card import CardPrivacy


def noise_html(own: CardPrivacy | None) -> str:
    """A table and a note; None is a study whose sites added none."""
    if own is None:
        return (
            "<p>The sites added no noise: no bound is known on what this study's model and its sums tell about a "
            "single record.</p>"
        )
    rows = [
        ("epsilon of this study, per record of this site", f"{own.epsilon:.3f}"),
        ("epsilon of all this site's studies, per record of this site", f"{own.spent:.3f}"),
        ("delta", f"{own.delta:g}"),
        ("budget", _budget(own)),
        ("noise multiplier, record clip", f"{own.noise_multiplier:g}, {own.record_clip or 0:g}"),
        ("trainings", str(own.trainings)),
        ("accountant", own.accountant),
    ]
    return table(("what", "at this site"), rows) + "<p class=note>Other sites have their own numbers.</p>"


def _budget(own: CardPrivacy) -> str:
    if own.budget is None:
        return "none is set"
    return f"{own.budget:g}, of which {own.used or 0:.0%} is used"
