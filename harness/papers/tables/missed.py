"""What the estimate of risk behind Mallows averaging misses, from drawn rounds: no patient's data are in it."""

from __future__ import annotations

from typing import Final

from harness.papers.page import Page
from harness.papers.risk_missed import squared_errors

PARAMETERS: Final = (10, 30, 100, 1000)
BIASES: Final = (0.0, 0.5, 1.0, 2.0, 4.0, 16.0)
FACTORS: Final = (2.0, 1.0)
_WHY: Final = (
    "Rounds were drawn in which everything that the rule assumes is true: the requester's noise v_0 is known, three "
    "other sites have the same noise, and each a bias of its own, whose squared length is given in units of v_0. The "
    "table has the squared error of the step, less that of the better of training alone and plain averaging, in units "
    "of v_0: above 0 the rule misses something, below 0 it gains "
    "(harness/papers/risk_missed.py, 400 rounds a cell).\n\n"
    "So with hundreds of parameters nothing is missed. With ten up to {worst:.2f} v_0 is, where the biases are smaller "
    "than the noise and FedAvg is right. The reason: with p parameters a squared distance is known to a relative "
    "sqrt(2 / p) only, and the weights follow from the same noise that they are to average out. Measuring again does "
    "not help while the examples are the same. In the loss it is small: near the optimum of a model that is right, "
    "with n examples and whitened features, an error of v_0 is a loss of p / 2n, so {worst:.2f} v_0 of ten parameters "
    "is a loss of {per_n:.2f} / n, about what one example is worth; with 124 examples {loss:.3f}.\n\n"
    "What this does not count: noise that is estimated and not known, sites whose curvature differs, and more "
    "parameters than examples, where the model comes to fit its own examples and v_0 goes to 0 while it should not."
)


def missed_table(page: Page) -> None:
    """Rows: parameters and the rule's b; columns: the sites' squared bias."""
    found = {
        (factor, parameters): [squared_errors(parameters, bias, bias_factor=factor) for bias in BIASES]
        for factor in FACTORS
        for parameters in PARAMETERS
    }
    worst = max(cell.missed for cell in found[FACTORS[0], PARAMETERS[0]])
    per_n = worst * PARAMETERS[0] / 2
    page.text(_WHY.format(worst=worst, per_n=per_n, loss=per_n / 124))
    page.table(
        ("parameters", *(f"bias {bias:g} v_0" for bias in BIASES)),
        [
            (f"{parameters}{'' if factor == FACTORS[0] else f', b = {factor:g}'}", *(f"{c.missed:+.2f}" for c in cells))
            for (factor, parameters), cells in found.items()
        ],
    )
