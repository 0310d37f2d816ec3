"""The plots of a finished comparison, written beside its results."""

from __future__ import annotations

from pathlib import Path

from harness.personal.case import PersonalCase
from harness.personal.detection import personal_layers
from harness.personal.heatmap import heatmap, score_curves
from harness.personal.records import ResultFolder
from host.placed_files import rewrite


def write_plots(case: PersonalCase, folder: ResultFolder) -> tuple[Path, ...]:
    """``plots/scores.svg`` and, for every run with personal layers, ``plots/VARIANT-SEED-LAYER-b.svg`` and ``-w``."""
    place = folder.folder / "plots"
    place.mkdir(parents=True, exist_ok=True)
    lines = folder.lines()
    written = [_write(place / "scores.svg", score_curves(lines))] if lines else []
    for line in lines:
        for name, layers in personal_layers(case, folder, line):
            columns = "feature" if name == "input" else "class"
            for symbol, values, neutral in (("b", layers.bias, 0.0), ("w", layers.weight, 1.0)):
                title = f"{line.variant}, seed {line.seed}: {symbol} of the {name} layer minus {neutral:g}"
                path = place / f"{line.variant}-{line.seed}-{name}-{symbol}.svg"
                written.append(_write(path, heatmap(values, neutral, line.sites, columns, title)))
    return tuple(written)


def _write(path: Path, text: str) -> Path:
    rewrite(path, text)
    return path
