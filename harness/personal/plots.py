"""The plots of a finished comparison, written beside its results."""

from __future__ import annotations

from pathlib import Path

from harness.personal.case import PersonalCase
from harness.personal.heatmap import heatmap, score_curves
from harness.personal.outliers import AffineLayers, affine_layers
from harness.personal.records import PersonalLine, ResultFolder


def write_plots(case: PersonalCase, folder: ResultFolder) -> tuple[Path, ...]:
    """``plots/scores.svg`` and, for every run with personal layers, ``plots/VARIANT-SEED-LAYER-b.svg`` and ``-w``."""
    place = folder.folder / "plots"
    place.mkdir(exist_ok=True)
    lines = folder.lines()
    written = [_write(place / "scores.svg", score_curves(lines))] if lines else []
    for line in lines:
        for name, layers in _layers(case, folder, line):
            columns = "feature" if name == "input" else "class"
            for symbol, values, neutral in (("b", layers.bias, 0.0), ("w", layers.weight, 1.0)):
                title = f"{line.variant}, seed {line.seed}: {symbol} of the {name} layer minus {neutral:g}"
                path = place / f"{line.variant}-{line.seed}-{name}-{symbol}.svg"
                written.append(_write(path, heatmap(values, neutral, line.sites, columns, title)))
    return tuple(written)


def _layers(case: PersonalCase, folder: ResultFolder, line: PersonalLine) -> list[tuple[str, AffineLayers]]:
    """The run's personal layers by place, in the order of the vector."""
    model = case.only((line.variant,))[0].study.model
    if not model.personal:
        return []
    state, features = folder.final_state(line.variant, line.seed), model.inputs[0]
    found: list[tuple[str, AffineLayers]] = []
    start = 0
    for place, columns in (("input", features), ("target", model.classes)):
        if place in model.personal:
            found.append((place, affine_layers(state, start, columns)))
            start += 2 * columns
    return found


def _write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path
