"""A comparison of personal models: all its runs, their table, plots and detections.

Source: Roschewitz et al. 2021: an entry more than two standard deviations from its feature's mean over the sites
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Final

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, TypeAdapter
from rich.table import Table

from client_agent.learning.flat_vector import pick_device
from harness.engine.all_sites import SitesState
from harness.engine.training import one_thread
from harness.simulate.charts import Spread
from harness.simulate.comparison import (
    Evaluated,
    PersonalCase,
    PersonalLine,
    ResultFolder,
    Run,
    Scores,
    Variant,
    execute,
)
from harness.simulate.run_one import Protection
from host.output_files import rewrite
from protocol.errors import ConfigurationError
from protocol.summary.table_one import is_constant

MARKED_DEVIATIONS: Final = 2.0


@dataclass(frozen=True, eq=False)
class AffineLayers:
    """One affine layer of all sites: ``bias`` b and ``weight`` w, float32[S, n]."""

    bias: NDArray[np.float32]
    weight: NDArray[np.float32]


@dataclass(frozen=True)
class Mark:
    """An entry that stands out: numbers of site and column, and by how many standard deviations, signed."""

    site: int
    column: int
    deviations: float


def affine_layers(state: SitesState, start: int, columns: int) -> AffineLayers:
    """The layers whose b begins at ``start`` of the personal parameters.

    Raises: ConfigurationError when the sites keep too few
    """
    if state.personal.shape[1] < start + 2 * columns:
        raise ConfigurationError(
            f"the sites keep {state.personal.shape[1]} personal parameters, too few for a layer of {columns} columns"
        )
    bias = state.personal[:, start : start + columns]
    return AffineLayers(bias, state.personal[:, start + columns : start + 2 * columns])


def deviations(values: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return by how many standard deviations over sites each entry differs from its column's mean; 0 where all agree.

    Shapes: float32[S, n] -> float64[S, n]
    """
    exact = values.astype(np.float64)
    spread = exact.std(axis=0)
    found: NDArray[np.float64] = np.zeros_like(exact)
    np.divide(exact - exact.mean(axis=0), spread, out=found, where=~is_constant(exact.min(axis=0), exact.max(axis=0)))
    return found


def marks(values: NDArray[np.float32], threshold: float = MARKED_DEVIATIONS) -> tuple[Mark, ...]:
    """The entries beyond ``threshold``, those that stand out most first."""
    found = deviations(values)
    sites, columns = np.nonzero(np.abs(found) > threshold)
    marked = [Mark(int(s), int(c), float(found[s, c])) for s, c in zip(sites, columns, strict=True)]
    return tuple(sorted(marked, key=lambda mark: -abs(mark.deviations)))


class Detection(BaseModel):
    """The marks of one run's layer. An entry counts as marked when its b or its w is.

    ``changed`` columns of ``site`` were tampered with, ``found`` of them are marked; ``elsewhere`` is the share of
    all other entries that are marked. ``strongest`` is the largest deviation of a changed entry, in standard
    deviations, and ``rank`` its place among all entries, from 1.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    variant: str
    seed: int
    layer: str
    site: str
    changed: int
    found: int
    elsewhere: float
    strongest: float
    rank: int


_DETECTIONS: Final = TypeAdapter(tuple[Detection, ...])


def detections(case: PersonalCase, folder: ResultFolder) -> tuple[Detection, ...]:
    """One for every finished run whose personal layer can show what was tampered with; empty without tampering."""
    tampering = case.table.tampering
    columns_of = {"input": tampering.shifted if tampering.shift else [], "target": tampering.swapped}
    found = []
    for line in folder.lines() if tampering.site is not None else ():
        for place, layers in personal_layers(case, folder, line):
            if tampering.site is not None and columns_of[place]:
                found.append(_detection(line, place, layers, tampering.site, columns_of[place]))
    return tuple(found)


def detections_json(found: Sequence[Detection]) -> bytes:
    """``detections.json``."""
    return _DETECTIONS.dump_json(tuple(found), indent=2)


def personal_layers(case: PersonalCase, folder: ResultFolder, line: PersonalLine) -> list[tuple[str, AffineLayers]]:
    """The run's personal layers by place, ``input`` and ``target``, after the last round."""
    model = case.only((line.variant,))[0].study.model
    if not model.personal:
        return []
    state = folder.final_state(line.variant, line.seed)
    found: list[tuple[str, AffineLayers]] = []
    start = 0
    for place, columns in (("input", model.inputs[0]), ("target", model.width)):
        if place in model.personal:
            found.append((place, affine_layers(state, start, columns)))
            start += 2 * columns
    return found


def _detection(line: PersonalLine, place: str, layers: AffineLayers, site: str, columns: Sequence[int]) -> Detection:
    strength = np.maximum(np.abs(deviations(layers.bias)), np.abs(deviations(layers.weight)))
    changed = np.zeros(strength.shape, dtype=bool)
    changed[line.sites.index(site), list(columns)] = True
    strongest = float(strength[changed].max())
    marked: NDArray[np.bool_] = strength > MARKED_DEVIATIONS
    return Detection(
        variant=line.variant,
        seed=line.seed,
        layer=place,
        site=site,
        changed=int(changed.sum()),
        found=int((marked & changed).sum()),
        elsewhere=float(marked[~changed].mean()),
        strongest=strongest,
        rank=int((strength > strongest).sum()) + 1,
    )


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


# Mean and worst F1 over the 30 people, Roschewitz et al. 2021.
PUBLISHED: Final = {
    "ifedavg": (0.994, 0.950),
    "apfl": (0.992, 0.972),
    "fedavg": (0.967, 0.909),
    "local": (0.993, 0.974),
    "centralised": (0.988, 0.955),
}


@dataclass(frozen=True)
class VariantSummary:
    """One variant: F1 averaged over sites and at the worst site, and accuracy averaged over sites, after the end."""

    variant: str
    seeds: int
    rounds: int
    mean_f1: Spread
    worst_f1: Spread
    mean_accuracy: Spread
    clipped_share: float


_SUMMARIES: Final = TypeAdapter(tuple[VariantSummary, ...])


def summaries(lines: Sequence[PersonalLine]) -> tuple[VariantSummary, ...]:
    """One per variant, in the order of the lines."""
    names = dict.fromkeys(line.variant for line in lines)
    return tuple(_summary(name, [line for line in lines if line.variant == name]) for name in names)


def summary_json(lines: Sequence[PersonalLine]) -> str:
    """The summaries as one JSON list."""
    return _SUMMARIES.dump_json(summaries(lines)).decode()


def summary_table(lines: Sequence[PersonalLine]) -> Table:
    """Make the table for a terminal, the published numbers beside."""
    table = Table("variant", "seeds", "rounds", "mean F1", "worst F1", "accuracy", "published mean / worst F1")
    for one in summaries(lines):
        published = PUBLISHED.get(one.variant)
        beside = f"{published[0]:.3f} / {published[1]:.3f}" if published else ""
        table.add_row(
            one.variant,
            str(one.seeds),
            str(one.rounds),
            str(one.mean_f1),
            str(one.worst_f1),
            str(one.mean_accuracy),
            beside,
        )
    return table


def _summary(name: str, lines: Sequence[PersonalLine]) -> VariantSummary:
    def spread(score: Callable[[Scores], float]) -> Spread:
        return Spread.of([score(line.last) for line in lines])

    return VariantSummary(
        name,
        len(lines),
        lines[0].rounds,
        spread(lambda scores: scores.mean_f1),
        spread(lambda scores: scores.worst_f1),
        spread(lambda scores: scores.mean_accuracy),
        mean(line.clipped_share for line in lines),
    )


@dataclass(frozen=True)
class PersonalOptions:
    """``data`` is the folder with the data sets (None: MOIETY_DATA); None of ``seeds`` and ``only`` is all of them.

    ``batched`` computes all sites' steps in one call, but APFL's; None: on a GPU, not on a CPU, where it saves no time.
    ``protection``: plain, or secure, which leaves out what pools the data unless ``only`` names it.
    """

    out: Path
    data: Path | None = None
    seeds: tuple[int, ...] | None = None
    only: tuple[str, ...] = ()
    device: str = "auto"
    batched: bool | None = None
    protection: Protection = Protection.PLAIN


def run_personal_case(
    case: PersonalCase, options: PersonalOptions, tell: Callable[[str], None] = lambda text: None
) -> tuple[PersonalLine, ...]:
    """Every seed of every variant, with one thread, then the plots; the lines of all runs in the folder come back.

    Raises: ConfigurationError, and when a finished run is of another file; UnusableUpdate when a model diverges
    """
    if options.protection is Protection.CKKS:
        raise ConfigurationError(
            f"{case.source}: a comparison of personal models runs with --protection plain or secure; for ciphertexts "
            "give a study file with key 'model.personal'"
        )
    secure = options.protection is Protection.SECURE
    folder, variants = ResultFolder(options.out), _variants(case, options, tell)
    device = pick_device(options.device)
    batched = device.type == "cuda" if options.batched is None else options.batched
    with one_thread():
        for seed in options.seeds or tuple(case.table.seeds):
            for variant in variants:
                if not _finished(folder.lines(), case, variant, seed, options.protection):
                    run = Run(case, variant, seed, options.data, device, batched, secure)
                    execute(run, folder, _teller(f"{variant.table.name}, seed {seed}", variant.study.rounds, tell))
    write_plots(case, folder)
    found = detections(case, folder)
    if found:
        rewrite(options.out / "detections.json", detections_json(found))
    for one in found:
        tell(
            f"{one.variant}, seed {one.seed}: {one.found} of {one.changed} changed columns of {one.site} marked in the "
            f"{one.layer} layer, {100 * one.elsewhere:.1f} % of all others; the strongest is number {one.rank}"
        )
    return folder.lines()


def _teller(name: str, rounds: int, tell: Callable[[str], None]) -> Callable[[Evaluated], None]:
    def show(evaluated: Evaluated) -> None:
        test = evaluated.test
        tell(f"{name}, round {evaluated.round} of {rounds}: F1 {test.mean_f1:.4f}, worst {test.worst_f1:.4f}")

    return show


def _variants(case: PersonalCase, options: PersonalOptions, tell: Callable[[str], None]) -> tuple[Variant, ...]:
    """The named variants; of all, those that can be protected where protection is asked for."""
    chosen = case.only(options.only)
    if options.only or options.protection is Protection.PLAIN:
        return chosen
    for variant in chosen:
        if not variant.table.scheme.protectable:
            tell(f"{variant.table.name}: pools the sites' data, so it has no protected run; left out")
    return tuple(variant for variant in chosen if variant.table.scheme.protectable)


def _finished(
    lines: tuple[PersonalLine, ...], case: PersonalCase, variant: Variant, seed: int, protection: Protection
) -> bool:
    """Return whether the run has its line. Raises: ConfigurationError when lines are of another file or protection"""
    for line in lines:
        if line.protection != protection.value:
            raise ConfigurationError(
                f"{case.source}: the folder holds {line.protection} runs, these are {protection.value}; "
                "give another --out"
            )
        if (line.variant, line.seed) == (variant.table.name, seed):
            if line.study_digest != variant.digest:
                raise ConfigurationError(
                    f"{case.source}: variant {line.variant!r} is not the one whose results are there: it was changed; "
                    "give another --out"
                )
            return True
    return False
