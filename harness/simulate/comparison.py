"""A comparison of personal models on all sites: its file, its runs, what they leave on disk, and what they show.

[personal]       data set, seeds, how often all sites are evaluated, what is tampered with
[model] [rule] [training] [parameters], name, rounds    as in every study file
[[variant]]      name, scheme, and what it changes in [model] and [training]

results.jsonl                       one ``PersonalLine`` a finished run
final/VARIANT-SEED.safetensors      the state after the last round: models, personal layers, mixing weights
partial/VARIANT-SEED.*              where an unfinished run stood after its last evaluation
plots/                              F1 over rounds, and b and w of the personal layers
detections.json                     what the personal layers show of tampered data

Source: Roschewitz et al. 2021: an entry more than two standard deviations from its feature's mean over the sites
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Annotated, Any, Final, Literal, TypeAlias

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from rich.table import Table
from safetensors import safe_open
from safetensors.numpy import save
from sklearn.metrics import accuracy_score, f1_score

from client_agent.learning.data import Examples
from client_agent.learning.evaluation import evaluate
from client_agent.learning.flat_vector import pick_device
from client_agent.learning.models import build_model
from client_agent.learning.study_file import StudyTable, checked_study_table
from harness.datasets.registry import DataRequest, load_data
from harness.datasets.site_data import Federation, SiteData, check_examples, check_targets
from harness.engine.algorithms import Apfl
from harness.engine.all_sites import Alone, SchemeName, Setting, SitesScheme, SitesState, scheme_of, used_model
from harness.engine.training import Batched, one_thread, train
from harness.engine.training import Progress as SchemeProgress
from harness.simulate.case import NamedTable, parts_of
from harness.simulate.charts import Series, Spread, curved, drawn
from harness.simulate.run_one import digest_of
from harness.simulate.store import Checkpoint, append_line, read_lines
from harness.simulate.study_files import StudyFile, read_study_file, simulated_study
from harness.versions import versions
from host.files import write_durably
from host.output_files import rewrite
from protocol.errors import ConfigurationError
from protocol.messages.control import Study
from protocol.summary.table_one import is_constant


class Scores(BaseModel):
    """One number per site, in the federation's order; F1 is averaged over classes by their number of examples."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    accuracy: tuple[float, ...]
    f1: tuple[float, ...]

    @property
    def mean_f1(self) -> float:
        return mean(self.f1)

    @property
    def worst_f1(self) -> float:
        return min(self.f1)

    @property
    def mean_accuracy(self) -> float:
        return mean(self.accuracy)


def scores_of(labels: Sequence[NDArray[np.int64]], predictions: Sequence[NDArray[np.int64]]) -> Scores:
    """Score every site's true and predicted classes; no site's may be empty."""
    pairs = list(zip(labels, predictions, strict=True))
    return Scores(
        accuracy=tuple(float(accuracy_score(true, found)) for true, found in pairs),
        f1=tuple(float(f1_score(true, found, average="weighted", zero_division=0.0)) for true, found in pairs),
    )


class Tampering(BaseModel):
    """The tampering of ``site``'s data: ``shift`` is added to the columns ``shifted``; the labels ``swapped`` change
    places.

    In all parts of the site's data, as a sensor mounted differently, or a column coded the other way round, would.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    site: str | None = None
    shifted: list[Annotated[int, Field(ge=0)]] = []
    shift: float = 0.0
    swapped: list[Annotated[int, Field(ge=0)]] = []


def tampered(sites: tuple[SiteData, ...], tampering: Tampering) -> tuple[SiteData, ...]:
    """The sites with one of them changed. Raises: ConfigurationError for a site, column or label that is not there"""
    if tampering.site is None:
        return sites
    if tampering.site not in [site.name for site in sites]:
        raise ConfigurationError(f"tampering: no site {tampering.site!r}; there are {', '.join(s.name for s in sites)}")
    columns = sites[0].train.X.shape[1]
    if any(column >= columns for column in tampering.shifted):
        raise ConfigurationError(f"tampering: columns {tampering.shifted}; the data have 0 to {columns - 1}")
    if tampering.swapped and len(set(tampering.swapped)) != 2:
        raise ConfigurationError(f"tampering: swapped takes two different labels, found {tampering.swapped}")

    def changed(site: SiteData) -> SiteData:
        train, validation, test = (_changed(part, tampering) for part in (site.train, site.validation, site.test))
        return replace(site, train=train, validation=validation, test=test)

    return tuple(changed(site) if site.name == tampering.site else site for site in sites)


def _changed(part: Examples, tampering: Tampering) -> Examples:
    X, y = part.X.copy(), part.y.copy()
    X[:, tampering.shifted] += np.float32(tampering.shift)
    if tampering.swapped:
        first, second = tampering.swapped
        y[part.y == first], y[part.y == second] = second, first
    return Examples(X, y)


CHANGEABLE: Final = ("model", "training")


class PersonalTable(BaseModel):
    """``[personal]``. ``validation_share`` of every site's training part is kept to choose settings on."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    data: str
    seeds: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] = [0]
    evaluate_every: Annotated[int, Field(ge=1)] = 10
    validation_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    tampering: Tampering = Tampering()


class VariantTable(NamedTable):
    """``[[variant]]``. ``mixing`` and ``adaptive`` are APFL's; ``fine_tune_epochs`` are local epochs after the last
    round, in which every site goes on alone from the model it uses.
    """

    scheme: Annotated[SchemeName, Field(strict=False)]
    mixing: Annotated[float, Field(ge=0, le=1)] = 0.5
    adaptive: bool = True
    fine_tune_epochs: Annotated[int, Field(ge=0)] = 0
    model: dict[str, Any] = Field(default={})
    training: dict[str, Any] = Field(default={})


@dataclass(frozen=True)
class Variant:
    """One of the things compared; ``digest`` covers all of the file that decides its results."""

    table: VariantTable
    study: StudyTable
    digest: str


@dataclass(frozen=True)
class PersonalCase:
    """A comparison file, checked."""

    source: str
    name: str
    table: PersonalTable
    variants: tuple[Variant, ...]

    def only(self, names: tuple[str, ...]) -> tuple[Variant, ...]:
        """The named variants, all of them for no name. Raises: ConfigurationError for an unknown one"""
        known = [variant.table.name for variant in self.variants]
        for name in names:
            if name not in known:
                raise ConfigurationError(f"{self.source}: no variant {name!r}; it has {', '.join(known)}")
        return tuple(variant for variant in self.variants if not names or variant.table.name in names)


def read_personal_case(path: Path) -> PersonalCase:
    """Raises: ConfigurationError that names what is wrong"""
    return personal_case_of(read_study_file(path))


def personal_case_of(file: StudyFile) -> PersonalCase:
    """A comparison file, each variant's study checked. Raises: ConfigurationError that names what is wrong"""
    source, (table, parsed, tables) = file.source, parts_of(file, "personal", PersonalTable, VariantTable)
    variants = tuple(_variant(variant, tables, table, source) for variant in parsed)
    return PersonalCase(source, variants[0].study.name, table, variants)


def _variant(variant: VariantTable, base: Mapping[str, Any], table: PersonalTable, source: str) -> Variant:
    tables = json.loads(json.dumps(base, default=str))
    for part in CHANGEABLE:
        tables[part] = {**tables.get(part, {}), **getattr(variant, part)}
    deciding = {
        "study": tables,
        "variant": variant.model_dump(mode="json"),
        "personal": table.model_dump(mode="json", exclude={"seeds"}),
    }
    digest = hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()
    return Variant(variant, checked_study_table(tables, f"{source}: variant {variant.name!r}"), digest)


FORMAT: Final = "moiety-personal/1"
_FINAL: Final = ("models", "personal", "own", "mixing")


class Evaluated(BaseModel):
    """All sites after a round; ``validation`` is None where no site keeps validation examples."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    round: int
    test: Scores
    validation: Scores | None = None


class ComparedRound(BaseModel):
    """One round: the share of updates that were clipped, and all sites where they are evaluated."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    clipped_share: float
    evaluated: Evaluated | None = None


Progress: TypeAlias = SchemeProgress[SitesState, ComparedRound]


class PersonalLine(BaseModel):
    """A finished run; ``fine_tuned`` are the scores after further local epochs."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    format: str = FORMAT
    case: str
    variant: str
    scheme: str
    seed: int
    protection: Literal["plain"] = "plain"
    rounds: int
    sites: tuple[str, ...]
    study_digest: str
    data_digest: str
    clipped_share: float
    seconds: float
    evaluated: tuple[Evaluated, ...]
    fine_tuned: Scores | None
    versions: dict[str, str]

    @property
    def last(self) -> Scores:
        """On the test examples, after the last round and fine-tuning."""
        return self.fine_tuned or self.evaluated[-1].test


class ResultFolder:
    """The files of one comparison."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def lines(self) -> tuple[PersonalLine, ...]:
        """Raises: ConfigurationError when the file is not one of this kind"""
        return read_lines(self.folder / "results.jsonl", PersonalLine)

    def finish(self, line: PersonalLine, state: SitesState) -> None:
        """Write the last state, then the line."""
        path = self._final(line.variant, line.seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, save({name: np.ascontiguousarray(getattr(state, name)) for name in _FINAL}))
        append_line(self.folder / "results.jsonl", line)

    def checkpoint(self, variant: str, seed: int, identity: str) -> Checkpoint[SitesState, ComparedRound]:
        return Checkpoint(self.folder / "partial", f"{variant}-{seed}", identity, (SitesState, ComparedRound))

    def final_state(self, variant: str, seed: int) -> SitesState:
        """The state after the last round of a finished run. Raises: ConfigurationError when the file is missing"""
        path = self._final(variant, seed)
        if not path.exists():
            raise ConfigurationError(f"{path} is missing: that run is not finished")
        with safe_open(path, framework="numpy") as file:
            return SitesState(*(np.asarray(file.get_tensor(name)) for name in _FINAL))

    def _final(self, variant: str, seed: int) -> Path:
        return self.folder / "final" / f"{variant}-{seed}.safetensors"


@dataclass(frozen=True)
class Run:
    """A variant and a seed; ``batched`` computes all sites' steps in one call where the model allows it."""

    case: PersonalCase
    variant: Variant
    seed: int
    data: Path | None
    device: torch.device
    batched: bool = False


def load_sites(case: PersonalCase, seed: int, data: Path | None) -> Federation:
    """The comparison's sites, tampered with as the file says.

    Raises: ConfigurationError, also for a site without test examples, since every site is judged
    """
    share = case.table.validation_share
    federation = load_data(DataRequest(case.table.data, seed, validation_share=share, folder=data))
    check_examples(federation)
    check_targets(federation)
    for site in federation.sites:
        if not len(site.test):
            raise ConfigurationError(f"{case.source}: site {site.name!r} of {case.table.data} has no test example")
    return replace(federation, sites=tampered(federation.sites, case.table.tampering))


@dataclass(frozen=True)
class Compared:
    """A scheme's rounds, judged at every site in every so-manieth round and the last."""

    sites: SitesScheme
    every: int
    rounds: int

    def start(self) -> SitesState:
        return self.sites.start()

    def round(self, state: SitesState, number: int) -> tuple[SitesState, ComparedRound]:
        after, done = self.sites.round(state, number)
        judged = number % self.every == 0 or number == self.rounds
        found = self._evaluated(after, number) if judged else None
        return after, ComparedRound(clipped_share=done.clipped_share, evaluated=found)

    def _evaluated(self, state: SitesState, number: int) -> Evaluated:
        """Every site's model on its own test examples, and on its validation examples where all sites keep some."""
        validates = all(len(site.validation) for site in self.sites.setting.sites)
        validation = _scores(self.sites, state, "validation") if validates else None
        return Evaluated(round=number, test=_scores(self.sites, state, "test"), validation=validation)


def execute(run: Run, folder: ResultFolder, show: Callable[[Evaluated], None] = lambda evaluated: None) -> PersonalLine:
    """Do the run, or the rest of it, and write its line; ``show`` is called after each evaluation.

    Raises: ConfigurationError for data that do not fit, UnusableUpdate when a model diverges
    """
    federation = load_sites(run.case, run.seed, run.data)
    study = simulated_study(run.variant.study, run.case.source, federation, run.seed)
    table, digest = run.variant.table, digest_of(federation)
    sites = _scheme(run, study, federation)
    checkpoint = folder.checkpoint(table.name, run.seed, f"{run.variant.digest} {digest}")
    known, seconds = checkpoint.load()
    begun = time.monotonic() - seconds

    def after_round(progress: Progress) -> None:
        latest = progress.records[-1].evaluated
        if latest is not None:
            checkpoint.save(progress, time.monotonic() - begun)
            show(latest)

    rounds = Compared(sites, run.case.table.evaluate_every, study.rounds)
    progress, _ = train(rounds, known, lambda reached: len(reached.records) >= study.rounds, after_round)
    seconds = time.monotonic() - begun
    fine_tuned, state = _fine_tuned(sites, progress.state, study.rounds, table.fine_tune_epochs)
    line = PersonalLine(
        case=run.case.name,
        variant=table.name,
        scheme=table.scheme,
        seed=run.seed,
        rounds=study.rounds,
        sites=tuple(site.name for site in federation.sites),
        study_digest=run.variant.digest,
        data_digest=digest,
        clipped_share=sum(record.clipped_share for record in progress.records) / study.rounds,
        seconds=seconds,
        evaluated=tuple(record.evaluated for record in progress.records if record.evaluated is not None),
        fine_tuned=fine_tuned,
        versions={one.name: one.version for one in versions()},
    )
    folder.finish(line, state)
    checkpoint.remove()
    return line


def _scheme(run: Run, study: Study, federation: Federation) -> SitesScheme:
    table, model, clip_norm = run.variant.table, build_model(study.model, run.seed), study.parameters.clip_norm
    setting = Setting.of(model, federation.sites, run.seed, study.training, clip_norm, run.device)
    training = setting.one_by_one()
    if run.batched:
        examples = [site.train for site in federation.sites]
        training = Batched(model, examples, setting.seeds(), study.training, run.device)
    return scheme_of(table.scheme, setting, training, Apfl(table.mixing, table.adaptive))


def _fine_tuned(sites: SitesScheme, state: SitesState, rounds: int, epochs: int) -> tuple[Scores | None, SitesState]:
    """Every site goes on alone, at the learning rate of the round after the last."""
    if epochs == 0:
        return None, state
    models = np.stack([sites.vector(state, site) for site in range(len(sites.setting.sites))])
    state = replace(state, models=models, own=state.own[:0])
    alone = Alone(sites.setting, sites.setting.one_by_one())
    for number in range(rounds + 1, rounds + epochs + 1):
        state, _ = alone.round(state, number)
    return _scores(alone, state, "test"), state


def _scores(sites: SitesScheme, state: SitesState, part: str) -> Scores:
    parts: list[Examples] = [getattr(site, part) for site in sites.setting.sites]
    device = sites.setting.device
    found = []
    for place, examples in enumerate(parts):
        outputs = evaluate(used_model(sites, state, place), examples, device).outputs
        assert outputs is not None  # a model of classes gives [n, K]
        found.append(outputs.argmax(axis=1))
    return scores_of([examples.y for examples in parts], found)


MARKED_DEVIATIONS: Final = 2.0


def deviations(values: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return by how many standard deviations over sites each entry differs from its column's mean; 0 where all agree.

    Shapes: float32[S, n] -> float64[S, n]
    """
    exact = values.astype(np.float64)
    spread = exact.std(axis=0)
    found: NDArray[np.float64] = np.zeros_like(exact)
    np.divide(exact - exact.mean(axis=0), spread, out=found, where=~is_constant(exact.min(axis=0), exact.max(axis=0)))
    return found


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


def detections(case: PersonalCase, folder: ResultFolder) -> tuple[Detection, ...]:
    """One for every finished run whose personal layer can show what was tampered with; empty without tampering."""
    tampering = case.table.tampering
    columns_of = {"input": tampering.shifted if tampering.shift else [], "target": tampering.swapped}
    return tuple(
        _detection(line, place, bias, weight, tampering.site, columns_of[place])
        for line in folder.lines()
        if tampering.site is not None
        for place, bias, weight in personal_layers(case, folder, line)
        if columns_of[place]
    )


Layer = NDArray[np.float32]
"""b or w of an affine layer of all sites, float32[S, n]."""


def personal_layers(case: PersonalCase, folder: ResultFolder, line: PersonalLine) -> list[tuple[str, Layer, Layer]]:
    """The run's personal layers after the last round: ``input`` or ``target``, b, w."""
    model = case.only((line.variant,))[0].study.model
    personal = folder.final_state(line.variant, line.seed).personal
    found: list[tuple[str, Layer, Layer]] = []
    start = 0
    for place, columns in (("input", model.inputs[0]), ("target", model.width)):
        if place in model.personal:
            bias, weight = np.split(personal[:, start : start + 2 * columns], 2, axis=1)
            found.append((place, bias, weight))
            start += 2 * columns
    return found


def _detection(
    line: PersonalLine, place: str, bias: Layer, weight: Layer, site: str, columns: Sequence[int]
) -> Detection:
    strength = np.maximum(np.abs(deviations(bias)), np.abs(deviations(weight)))
    changed = np.zeros(strength.shape, dtype=bool)
    changed[line.sites.index(site), list(columns)] = True
    strongest = float(strength[changed].max())
    marked = strength > MARKED_DEVIATIONS
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


def heatmap(values: NDArray[np.float32], neutral: float, sites: Sequence[str], columns: str, title: str) -> Figure:
    """Sites x columns, coloured by the difference from ``neutral``; a dot marks an entry beyond two deviations."""
    figure = Figure(figsize=(11, 0.16 * len(sites) + 1.2), layout="constrained")
    axes = figure.subplots()
    difference = values.astype(np.float64) - neutral
    limit = max(float(np.quantile(np.abs(difference), 0.995)), 1e-12)
    image = axes.imshow(
        difference, cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest", rasterized=True
    )
    rows, places = np.nonzero(np.abs(deviations(values)) > MARKED_DEVIATIONS)
    axes.scatter(places, rows, s=1.2, color="black", linewidths=0)
    axes.set_yticks(range(len(sites)), sites, fontsize=6)
    axes.set_xlabel(columns)
    axes.set_title(title, fontsize=9)
    figure.colorbar(image, ax=axes, pad=0.01)
    return figure


def score_rows(lines: Sequence[PersonalLine]) -> Series:
    """Mean and worst F1 of every variant over rounds, averaged over seeds."""
    rows: Series = []
    for panel, score in (("F1, mean over sites", "mean_f1"), ("F1 at the worst site", "worst_f1")):
        for name in dict.fromkeys(line.variant for line in lines):
            of = [line for line in lines if line.variant == name]
            table = zip(*([getattr(one.test, score) for one in line.evaluated] for line in of), strict=False)
            rounds = [one.round for one in of[0].evaluated]
            rows += [(panel, name, at, mean(values), None) for at, values in zip(rounds, table, strict=False)]
    return rows


def write_plots(case: PersonalCase, folder: ResultFolder) -> None:
    """``plots/scores.svg`` and, for every run with personal layers, ``plots/VARIANT-SEED-LAYER-b.svg`` and ``-w``."""
    place = folder.folder / "plots"
    place.mkdir(parents=True, exist_ok=True)
    lines = folder.lines()
    rewrite(place / "scores.svg", curved("F1").svg(score_rows(lines)))
    for line in lines:
        for name, bias, weight in personal_layers(case, folder, line):
            columns = "feature" if name == "input" else "class"
            for symbol, values, neutral in (("b", bias, 0.0), ("w", weight, 1.0)):
                title = f"{line.variant}, seed {line.seed}: {symbol} of the {name} layer minus {neutral:g}"
                draw = partial(heatmap, values, neutral, line.sites, columns, title)
                rewrite(place / f"{line.variant}-{line.seed}-{name}-{symbol}.svg", drawn(draw, dpi=120))


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


def summaries(lines: Sequence[PersonalLine]) -> tuple[VariantSummary, ...]:
    """One per variant, in the order of the lines."""
    found = []
    for name in dict.fromkeys(line.variant for line in lines):
        of = [line for line in lines if line.variant == name]
        f1, worst, accuracy = (
            Spread.of(getattr(line.last, score) for line in of) for score in ("mean_f1", "worst_f1", "mean_accuracy")
        )
        clipped = mean(line.clipped_share for line in of)
        found.append(VariantSummary(name, len(of), of[0].rounds, f1, worst, accuracy, clipped))
    return tuple(found)


def summary_json(lines: Sequence[PersonalLine]) -> str:
    return TypeAdapter(tuple[VariantSummary, ...]).dump_json(summaries(lines)).decode()


def summary_table(lines: Sequence[PersonalLine]) -> Table:
    table = Table("variant", "seeds", "rounds", "mean F1", "worst F1", "accuracy", "published mean / worst F1")
    for one in summaries(lines):
        published = " / ".join(f"{score:.3f}" for score in PUBLISHED.get(one.variant, ()))
        cells = (one.variant, one.seeds, one.rounds, one.mean_f1, one.worst_f1, one.mean_accuracy, published)
        table.add_row(*map(str, cells))
    return table


def run_personal_case(
    case: PersonalCase,
    out: Path,
    data: Path | None = None,
    *,
    seeds: Sequence[int] | None = None,
    only: tuple[str, ...] = (),
    device: str = "auto",
    batched: bool | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> tuple[PersonalLine, ...]:
    """Every seed of every variant, with one thread, then the plots; the lines of all runs in the folder come back.

    ``data`` is the folder with the data sets (None: MOIETY_DATA). ``batched`` computes all sites' steps in one call,
    but APFL's; None: on a GPU, not on a CPU, where it saves no time.

    Raises: ConfigurationError, and when a finished run is of another file; UnusableUpdate when a model diverges
    """
    folder, variants, picked = ResultFolder(out), case.only(only), pick_device(device)
    with one_thread():
        for seed in seeds or case.table.seeds:
            for variant in variants:
                if not _finished(folder.lines(), case, variant, seed):
                    together = picked.type == "cuda" if batched is None else batched
                    name = f"{variant.table.name}, seed {seed}"
                    show = partial(_show, tell, name, variant.study.rounds)
                    execute(Run(case, variant, seed, data, picked, together), folder, show)
    write_plots(case, folder)
    found = detections(case, folder)
    if found:
        rewrite(out / "detections.json", TypeAdapter(tuple[Detection, ...]).dump_json(found, indent=2))
    for one in found:
        tell(
            f"{one.variant}, seed {one.seed}: {one.found} of {one.changed} changed columns of {one.site} marked in the "
            f"{one.layer} layer, {100 * one.elsewhere:.1f} % of all others; the strongest is number {one.rank}"
        )
    return folder.lines()


def _show(tell: Callable[[str], None], name: str, rounds: int, evaluated: Evaluated) -> None:
    test = evaluated.test
    tell(f"{name}, round {evaluated.round} of {rounds}: F1 {test.mean_f1:.4f}, worst {test.worst_f1:.4f}")


def _finished(lines: Sequence[PersonalLine], case: PersonalCase, variant: Variant, seed: int) -> bool:
    """Return whether the run has its line. Raises: ConfigurationError when that is of another file"""
    for line in lines:
        if (line.variant, line.seed) == (variant.table.name, seed):
            if line.study_digest != variant.digest:
                raise ConfigurationError(
                    f"{case.source}: variant {line.variant!r} is not the one whose results are there: it was changed; "
                    "give another --out"
                )
            return True
    return False
