"""The sites' personal layers as heatmaps, and the scores over rounds, drawn by matplotlib as SVG."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Final

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from harness.personal.outliers import marks
from harness.personal.records import PersonalLine

_COLOURS: Final = ("#2b6cb0", "#c05621", "#2f855a", "#805ad5", "#b83280", "#4a5568", "#b7791f", "#2c7a7b")
_STYLE: Final = {"svg.fonttype": "none", "svg.hashsalt": "moiety", "font.size": 9}


def heatmap(values: NDArray[np.float32], neutral: float, sites: Sequence[str], columns: str, title: str) -> str:
    """Sites x columns, coloured by the difference from ``neutral``; a dot marks an entry beyond two deviations."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(11, 0.16 * len(sites) + 1.2), layout="constrained")
        axes = figure.subplots()
        difference = values.astype(np.float64) - neutral
        limit = max(float(np.quantile(np.abs(difference), 0.995)), 1e-12)
        image = axes.imshow(
            difference, cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest", rasterized=True
        )
        marked = marks(values)
        axes.scatter([m.column for m in marked], [m.site for m in marked], s=1.2, color="black", linewidths=0)
        axes.set_yticks(range(len(sites)), sites, fontsize=6)
        axes.set_xlabel(columns)
        axes.set_title(title, fontsize=9)
        figure.colorbar(image, ax=axes, pad=0.01)
        return _svg(figure)


def score_curves(lines: Sequence[PersonalLine]) -> str:
    """Mean and worst F1 of every variant over rounds, averaged over seeds."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(9, 3.4), layout="constrained")
        for axes, worst in zip(figure.subplots(1, 2), (False, True), strict=True):
            for name, colour in zip(dict.fromkeys(line.variant for line in lines), _COLOURS, strict=False):
                rounds, scores = _curve([line for line in lines if line.variant == name], worst=worst)
                axes.plot(rounds, scores, color=colour, label=name, linewidth=1.4)
            axes.set_xlabel("round")
            axes.set_ylabel("F1 at the worst site" if worst else "F1, mean over sites")
            axes.grid(alpha=0.25)
            axes.spines[["top", "right"]].set_visible(False)
            axes.legend(frameon=False, fontsize=7)
        return _svg(figure)


def _curve(lines: Sequence[PersonalLine], *, worst: bool) -> tuple[list[int], NDArray[np.float64]]:
    table = [[one.test.worst_f1 if worst else one.test.mean_f1 for one in line.evaluated] for line in lines]
    return [one.round for one in lines[0].evaluated], np.mean(table, axis=0)


def _svg(figure: Figure) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", dpi=120, metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]
