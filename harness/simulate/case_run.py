"""All runs of a case: planned, resumed, done over processes, and written down as they finish."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from client_agent.learning.models import build_model
from client_agent.learning.study_file import StudyTable
from harness.datasets.registry import DataRequest, load_data
from harness.datasets.site_data import Federation, check_federation
from harness.engine.baseline_rounds import require_baseline
from harness.engine.protected_sum import SourceName
from harness.engine.study_round import require_willing
from harness.engine.training import ON_CPU, Computing
from harness.simulate.case import UNTUNED, Case, Settings, Variant
from harness.simulate.run_line import RunKey, RunLine
from harness.simulate.run_one import PlannedRun, Protection, require_plain_for_same_round
from harness.simulate.store import (
    Results,
    append_line,
    finished,
    forget_checkpoint,
    read_lines,
    require_same_code,
    require_unchanged,
)
from harness.simulate.study_files import own_metrics, simulated_study
from harness.simulate.tuning import TUNING, Choice, TuningLine, choose, combinations
from harness.simulate.workers import RayCluster, run_all
from host.extensions import loaded_plugins
from host.output_files import rewrite
from protocol.errors import ConfigurationError
from protocol.rules.registry import rule_for


def require_plain(case: Case, variant: Variant, protection: Protection) -> None:
    """Raises: ConfigurationError for a variant that exists in plain simulation only, under a protection"""
    where = f"{case.source}: variant {variant.name!r}"
    require_plain_for_same_round(variant.study, protection, where)
    chosen, model, table = variant.chosen_rule(), variant.chosen_model, variant.table
    rule, own = chosen and chosen.name, model and model.name
    baseline = table.baseline and table.baseline.name
    plain_only = {
        f"rule {rule!r} is from a package, and servers and sites know the rules of the protocol alone": rule,
        f"model {own!r} is from a package, and sites run no code of others": own,
        "'pooled' puts all data at one place, in plain runs only": table.pooled,
        f"baseline {baseline!r} runs in plain simulation only, since no server and no site's agent knows it": baseline,
    }
    why = next((why for why, given in plain_only.items() if given), None)
    if why is not None and protection is not Protection.PLAIN:
        raise ConfigurationError(f"{where}: {why}: name the other variants with --only, or give --protection plain")


def require_possible(
    case: Case,
    variants: Sequence[Variant],
    requesters: Sequence[str],
    federation: Federation,
    protection: Protection,
) -> None:
    """The data fit the model, every variant's rule fits the sites with each requester, and no policy forbids it.

    ``federation`` is the split of any seed. Every value that a variant tunes is tried out as a setting, not run.

    Raises: ConfigurationError that names the file and the variant
    """
    check_federation(federation)
    own_metrics(case.table.metrics)
    case.table.attendance.require_sites(federation.names_of_sites, case.source)
    for variant in variants:
        for settings in combinations(variant):
            _require_options(case, variant, settings)
        for requester in requesters:
            _require_study(case, variant, federation.asked_by(requester), protection)


def _require_options(case: Case, variant: Variant, settings: Settings) -> None:
    table, chosen = variant.with_settings(settings, case.source), variant.chosen_rule(settings)
    variant.baseline_with(settings, case.source)
    if chosen is None:
        return
    try:
        chosen.rule(table.training.batch_size, table.parameters.weight_grid)
    except ConfigurationError as error:
        raise ConfigurationError(f"{case.source}: variant {variant.name!r}: {error.detail}") from None


def _require_study(case: Case, variant: Variant, federation: Federation, protection: Protection) -> None:
    where = f"{case.source}: variant {variant.name!r}"
    study = simulated_study(protection.of(variant.study), where, federation, 0, variant.chosen_model)
    chosen = variant.chosen_rule()
    grid = study.parameters.weight_grid
    rule = chosen.rule_of(study) if chosen else rule_for(study.rule, batch_size=study.training.batch_size, grid=grid)
    try:
        if variant.table.baseline is not None:
            made = variant.chosen_model.build(variant.study.model, 0) if variant.chosen_model else None
            require_baseline(study, made or build_model(study.model, 0), f"baseline {variant.table.baseline.name!r}")
        require_willing(rule.needs, variant.policy.policy(), [site.name for site in federation.contributors])
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error.detail}") from None


@dataclass(frozen=True)
class CaseOptions:
    """The command line's options about a case. None: as the case says, or all variants.

    ``requesters``: names of sites, or ``each``. ``shard``: only the i-th of n parts of all runs, counted from 1.
    ``cluster``: who does the runs, instead of ``jobs`` processes of this machine.
    """

    out: Path
    data: Path | None = None
    seeds: tuple[int, ...] | None = None
    only: tuple[str, ...] | None = None
    protection: Protection = Protection.PLAIN
    jobs: int = 1
    correlation_source: SourceName | None = None
    checkpoint_every_s: float = 1.0
    computing: Computing = ON_CPU
    requesters: tuple[str, ...] | None = None
    shard: tuple[int, int] | None = None
    cluster: RayCluster | None = None

    @property
    def where(self) -> int | RayCluster:
        return self.cluster or self.jobs


@dataclass(frozen=True)
class CaseProgress:
    """The progress of ``doing``: ``rounds_done`` of ``rounds`` over its runs; some may have been done before."""

    doing: str
    runs_done: int
    runs: int
    rounds_done: int
    rounds: int


Show = Callable[[CaseProgress], None]


def run_case(case: Case, options: CaseOptions, show: Show = lambda progress: None) -> tuple[RunLine, ...]:
    """Do every run that ``options.out`` does not hold yet; returns the lines of all runs asked for, in their order.

    Raises: ConfigurationError for options that do not fit the case, or a folder with runs of a changed one
    """
    variants = tuple(case.variant(name) for name in options.only) if options.only else case.variants
    for variant in variants:
        require_plain(case, variant, options.protection)
    results = Results(options.out)
    with results.held():
        return _CaseRun(case, options, variants, results, show).all_lines()


@dataclass(frozen=True)
class _CaseRun:
    case: Case
    options: CaseOptions
    variants: tuple[Variant, ...]
    results: Results
    show: Show

    def all_lines(self) -> tuple[RunLine, ...]:
        """Choose settings where there is a choice, then do what is missing."""
        done = finished(self.results.lines(), self.case, self.options.protection.value, self.options.out)
        federation = load_data(request_for(self.case, self.options.data, None, self.case.table.seeds[0]))
        requesters = requesters_of(self.case, federation, self.options.requesters)
        require_possible(self.case, self.variants, requesters, federation, self.options.protection)
        each = self.case.table.tuned_for == "each_requester"
        tuned_for = requesters if each else requesters_of(self.case, federation)
        choices = {variant.name: self._choices(variant, tuned_for) for variant in self.variants}
        # seeds outermost, so that an interrupted case has something of every variant
        keys = tuple(
            RunKey(variant.name, requester, seed)
            for seed in self.options.seeds or self.case.table.seeds
            for requester in requesters
            for variant in self.variants
        )
        if self.options.shard is not None:
            part, parts = self.options.shard
            keys = keys[part - 1 :: parts]
            if not keys:
                raise ConfigurationError(f"--shard: there are fewer than {part} runs: take fewer parts")
        planned = [
            self._planned(key, _settings(choices[key.variant], key.requester)) for key in keys if key not in done
        ]
        tally = _Tally(self.case.name, planned, len(keys) - len(planned), self.show)
        for one, line in run_all(planned, self.options.where, tally.round_done):
            self.results.append(line)
            forget_checkpoint(self.results.partial, str(one.key))
            done[line.key] = line
            tally.run_done()
        return tuple(done[key] for key in keys)

    def _choices(self, variant: Variant, requesters: tuple[str, ...]) -> tuple[Choice, ...]:
        """Return the variant's choices, tried now where they have not been; written to ``choices_<variant>.json``."""
        if not variant.table.tune:
            return ()
        lines = self._tried(variant, requesters)
        each = self.case.table.tuned_for == "each_requester"
        chosen = tuple(choose(variant, lines, requester) for requester in (requesters if each else (None,)))
        text = "[" + ",\n".join(choice.model_dump_json(indent=2) for choice in chosen) + "]\n"
        rewrite(self.options.out / f"choices_{variant.name}.json", text)
        return chosen

    def _tried(self, variant: Variant, requesters: tuple[str, ...]) -> list[TuningLine]:
        path = self.options.out / TUNING
        tried = [line for line in read_lines(path, TuningLine) if line.variant == variant.name]
        for one in tried:
            require_same_code(one.code_digest, self.options.out)
            require_unchanged(one.study_digest, self.case, variant.name, self.options.out)
        known = {(str(one.settings), one.requester, one.seed) for one in tried}
        planned = [
            self._tuning_run(RunKey(variant.name, requester, seed), settings)
            for seed in self.case.table.tuning_seeds
            for requester in requesters
            for settings in combinations(variant)
            if (str(settings), requester, seed) not in known
        ]
        tally = _Tally(f"{self.case.name}, settings of {variant.name}", planned, len(tried), self.show)
        for _, line in run_all(planned, self.options.where, lambda key, rounds: None):
            tried.append(TuningLine.of(line))
            append_line(path, tried[-1])
            tally.run_done(line)
        return [one for one in tried if one.requester in requesters]

    def _planned(self, key: RunKey, settings: Settings) -> PlannedRun:
        variant, options = self.case.variant(key.variant), self.options
        share = self.case.table.validation_share if variant.table.keeps_validation else 0.0
        study = variant.with_settings(settings, self.case.source)
        return PlannedRun(
            self.case,
            key,
            study,
            request_for(self.case, options.data, key.requester, key.seed, share),
            options.protection,
            settings,
            options.correlation_source,
            self.results.partial,
            options.checkpoint_every_s,
            self._computing(study) if variant.table.baseline is None else ON_CPU,
            loaded_plugins(),
            self.case.table.bootstrap,
        )

    def _computing(self, study: StudyTable) -> Computing:
        """Protected runs, and single gradients, are computed on the CPU whatever there is."""
        plain = self.options.protection is Protection.PLAIN
        return self.options.computing if plain and study.training.update == "local_sgd" else ON_CPU

    def _tuning_run(self, key: RunKey, settings: Settings) -> PlannedRun:
        """A run for choosing: plain, with a validation part, its only metric what it is judged by, not resumed.

        A finish that holds nothing out of the rounds is left out, so settings are those of the rounds alone.
        """
        planned = self._planned(key, settings)
        return replace(
            planned,
            study=without_leaving_one_out(planned.study),
            data=replace(planned.data, validation_share=self.case.table.validation_share),
            protection=Protection.PLAIN,
            partial=None,
            bootstrap=0,
            followed=frozenset(),
        )


def requesters_of(case: Case, federation: Federation, asked: tuple[str, ...] | None = None) -> tuple[str, ...]:
    """The names of the sites that are the requester in turn: those ``asked`` for, the case's for None.

    Raises: ConfigurationError
    """
    wanted = case.table.requesters if asked is None else "each" if asked == ("each",) else list(asked)
    names = federation.names_of_sites
    if wanted == "first":
        return names[:1]
    if wanted == "each":
        return names
    unknown = [name for name in wanted if name not in names]
    if unknown or not wanted:
        where = "key 'case.requesters'" if asked is None else "--requesters"
        raise ConfigurationError(f"{case.source}: {where}: found {wanted}, the sites are {list(names)}")
    return tuple(wanted)


def request_for(
    case: Case, data: Path | None, requester: str | None, seed: int, validation_share: float = 0.0
) -> DataRequest:
    """Return a run's request to the case's data set."""
    table = case.table
    study = case.variants[0].study
    return DataRequest(
        table.data,
        seed,
        table.split,
        table.sites,
        requester,
        validation_share,
        data,
        table.dirichlet,
        table.whitened,
        training_share=table.training_share,
        inputs=study.model.inputs,
        outputs=study.model.width,
        task=study.task,
        schema=study.data_schema,
    )


def without_leaving_one_out(study: StudyTable) -> StudyTable:
    """The study without a finish whose rounds are those of a study that has none."""
    finish = study.finish
    return study.model_copy(update={"finish": None}) if finish and finish.choose == "leave_one_out" else study


def _settings(choices: Iterable[Choice], requester: str) -> Settings:
    return next((choice.chosen for choice in choices if choice.requester in (None, requester)), UNTUNED)


class _Tally:
    def __init__(self, doing: str, planned: Sequence[PlannedRun], already: int, show: Show) -> None:
        self._doing, self._show = doing, show
        self._rounds: dict[RunKey, int] = {}
        self._total = sum(one.study.rounds for one in planned)
        self._runs, self._done, self._finished_rounds = already + len(planned), already, 0

    def round_done(self, key: RunKey, rounds: int) -> None:
        self._rounds[key] = max(rounds, self._rounds.get(key, 0))
        self._tell()

    def run_done(self, line: RunLine | None = None) -> None:
        """A run is over; ``line`` where no round of it was told."""
        self._done += 1
        self._finished_rounds += len(line.kind) if line else 0
        self._tell()

    def _tell(self) -> None:
        rounds = sum(self._rounds.values()) + self._finished_rounds
        self._show(CaseProgress(self._doing, self._done, self._runs, rounds, self._total))
