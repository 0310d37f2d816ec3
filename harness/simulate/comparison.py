"""A comparison of personal models on all sites: its file, its runs, and what they leave on disk.

[personal]       data set, seeds, how often all sites are evaluated, what is tampered with
[model] [rule] [training] [parameters], name, rounds    as in every study file
[[variant]]      name, scheme, and what it changes in [model] and [training]

results.jsonl                       one ``PersonalLine`` a finished run
final/VARIANT-SEED.safetensors      the state after the last round: models, personal layers, mixing weights
partial/VARIANT-SEED.*              where an unfinished run stood after its last evaluation
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Annotated, Any, Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from safetensors import safe_open
from safetensors.numpy import save
from sklearn.metrics import accuracy_score, f1_score

from client_agent.learning.data import Examples
from client_agent.learning.evaluation import evaluate
from client_agent.learning.models import build_model
from client_agent.learning.study_file import StudyTable, checked_study_table
from harness.datasets.registry import DataRequest, load_data
from harness.datasets.site_data import Federation, SiteData, check_examples, check_targets
from harness.engine.algorithms import Apfl
from harness.engine.all_sites import (
    Alone,
    SchemeName,
    Setting,
    SitesScheme,
    SitesState,
    UnderTheProtocol,
    in_the_open,
    scheme_of,
    used_model,
)
from harness.engine.training import Batched, train
from harness.engine.training import Progress as SchemeProgress
from harness.simulate.run_one import Protection, digest_of
from harness.simulate.store import Checkpoint, append_line, read_lines
from harness.simulate.study_files import StudyFile, read_study_file, simulated_study
from harness.versions import versions
from host.files import write_durably
from protocol.configuration import parse_toml, validated
from protocol.errors import ConfigurationError
from protocol.messages.control import Study


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
    return tuple(_changed(site, tampering) if site.name == tampering.site else site for site in sites)


def _changed(site: SiteData, tampering: Tampering) -> SiteData:
    columns = site.train.X.shape[1]
    if any(column >= columns for column in tampering.shifted):
        raise ConfigurationError(f"tampering: columns {tampering.shifted}; the data have 0 to {columns - 1}")
    if tampering.swapped and len(set(tampering.swapped)) != 2:
        raise ConfigurationError(f"tampering: swapped takes two different labels, found {tampering.swapped}")
    return replace(
        site,
        train=_changed_part(site.train, tampering),
        validation=_changed_part(site.validation, tampering),
        test=_changed_part(site.test, tampering),
    )


def _changed_part(part: Examples, tampering: Tampering) -> Examples:
    X, y = part.X.copy(), part.y.copy()
    X[:, tampering.shifted] += np.float32(tampering.shift)
    if tampering.swapped:
        first, second = tampering.swapped
        y[part.y == first], y[part.y == second] = second, first
    return Examples(X, y)


CHANGEABLE: Final = ("model", "training")


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class PersonalTable(_Table):
    """``[personal]``. ``validation_share`` of every site's training part is kept to choose settings on."""

    data: str
    seeds: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] = [0]
    evaluate_every: Annotated[int, Field(ge=1)] = 10
    validation_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    tampering: Tampering = Tampering()


class VariantTable(_Table):
    """``[[variant]]``. ``mixing`` and ``adaptive`` are APFL's; ``fine_tune_epochs`` are local epochs after the last
    round, in which every site goes on alone from the model it uses.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9_]+$", max_length=40)]
    scheme: Annotated[SchemeName, Field(strict=False)]
    mixing: Annotated[float, Field(ge=0, le=1)] = 0.5
    adaptive: bool = True
    fine_tune_epochs: Annotated[int, Field(ge=0)] = 0
    model: dict[str, Any] = {}
    training: dict[str, Any] = {}


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


def parse_personal_case(text: str, source: str) -> PersonalCase:
    """Raises: ConfigurationError that names what is wrong"""
    return personal_case_of(StudyFile(source, parse_toml(text, source)))


def personal_case_of(file: StudyFile) -> PersonalCase:
    """A comparison file, each variant's study checked. Raises: ConfigurationError that names what is wrong"""
    source, tables = file.source, dict(file.tables)
    part, variant_parts = tables.pop("personal", None), tables.pop("variant", [])
    if not isinstance(part, dict) or not isinstance(variant_parts, list) or not variant_parts:
        raise ConfigurationError(f"{source}: a comparison has one table [personal] and tables [[variant]]")
    if "seed" in tables:
        part = {"seeds": [tables["seed"]], **part}
    table = validated(PersonalTable, part, f"{source}: [personal]")
    parsed = [validated(VariantTable, one, f"{source}: [[variant]]") for one in variant_parts]
    names = [variant.name for variant in parsed]
    if len(set(names)) != len(names):
        raise ConfigurationError(f"{source}: every [[variant]] has a name of its own, found {names}")
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
    """A finished run; ``protection`` is plain or secure, ``fine_tuned`` the scores after further local epochs."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    format: str = FORMAT
    case: str
    variant: str
    scheme: str
    seed: int
    protection: str = "plain"
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


OnEvaluation = Callable[[Evaluated], None]


@dataclass(frozen=True)
class Run:
    """A variant and a seed; ``batched`` computes all sites' steps in one call where the model allows it.

    ``secure``: the sites' updates are shared and summed under the protocol.
    """

    case: PersonalCase
    variant: Variant
    seed: int
    data: Path | None
    device: torch.device
    batched: bool = False
    secure: bool = False

    @property
    def protection(self) -> Protection:
        return Protection.SECURE if self.secure else Protection.PLAIN


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
        found = evaluated_sites(self.sites, after, number) if judged else None
        return after, ComparedRound(clipped_share=done.clipped_share, evaluated=found)

    def over(self, progress: Progress) -> bool:
        return len(progress.records) >= self.rounds


def execute(run: Run, folder: ResultFolder, show: OnEvaluation = lambda evaluated: None) -> PersonalLine:
    """Do the run, or the rest of it, and write its line; ``show`` is called after each evaluation.

    Raises: ConfigurationError for data that do not fit, UnusableUpdate when a model diverges
    """
    federation = load_sites(run.case, run.seed, run.data)
    study = simulated_study(run.variant.study, run.case.source, federation, run.seed)
    table, digest = run.variant.table, digest_of(federation)
    sites = _scheme(run, study, federation)
    identity = f"{run.variant.digest} {digest}" + (" secure" if run.secure else "")
    checkpoint = folder.checkpoint(table.name, run.seed, identity)
    known, seconds = checkpoint.load()
    begun = time.monotonic() - seconds

    def after_round(progress: Progress) -> None:
        latest = progress.records[-1].evaluated
        if latest is not None:
            checkpoint.save(progress, time.monotonic() - begun)
            show(latest)

    rounds = Compared(sites, run.case.table.evaluate_every, study.rounds)
    progress, _ = train(rounds, known, rounds.over, after_round)
    seconds = time.monotonic() - begun
    fine_tuned, state = _fine_tuned(sites, progress.state, study.rounds, table.fine_tune_epochs)
    line = PersonalLine(
        case=run.case.name,
        variant=table.name,
        scheme=table.scheme,
        seed=run.seed,
        protection=run.protection.value,
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
    """Raises: ConfigurationError for what has no protected run"""
    table, model = run.variant.table, build_model(study.model, run.seed)
    if run.secure and not table.scheme.protectable:
        raise ConfigurationError(
            f"{run.case.source}: variant {table.name!r} pools the sites' data, so it has no protected run; leave it out"
        )
    setting = Setting.of(
        model,
        federation.sites,
        run.seed,
        study.training,
        study.parameters.clip_norm,
        run.device,
        UnderTheProtocol.of(study, federation.sites, model) if run.secure else in_the_open,
    )
    training = setting.one_by_one()
    if run.batched:
        examples = [site.train for site in federation.sites]
        training = Batched(model, examples, setting.seeds(), study.training, run.device)
    return scheme_of(table.scheme, setting, training, Apfl(table.mixing, table.adaptive))


def evaluated_sites(sites: SitesScheme, state: SitesState, round: int) -> Evaluated:
    """Every site's model on its own test examples, and on its validation examples where all sites keep some."""
    validates = all(len(site.validation) for site in sites.setting.sites)
    return Evaluated(
        round=round,
        test=_scores(sites, state, "test"),
        validation=_scores(sites, state, "validation") if validates else None,
    )


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
    labels, predictions = [], []
    for number, site in enumerate(sites.setting.sites):
        examples = site.test if part == "test" else site.validation
        labels.append(examples.y)
        outputs = evaluate(used_model(sites, state, number), examples, sites.setting.device).outputs
        assert outputs is not None  # a model of classes gives [n, K]
        predictions.append(outputs.argmax(axis=1))
    return scores_of(labels, predictions)
