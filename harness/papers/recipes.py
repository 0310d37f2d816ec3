"""The runs behind the pages: ``recipes.toml`` says which, those that are not there yet are made here."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import BaseModel

from harness.attack.attacked_study import AS_IT_IS, AttackedStudy, Setting
from harness.attack.distances import LocatingLine, LocatingRun
from harness.attack.inversion import TARGETS, InversionLine, InvertedRun
from harness.attack.leak import Asked, LeakLine, LeakRun, Question
from harness.attack.lies import Lie, LyingLine, LyingRun
from harness.attack.membership import InferenceLine, MemorisedLine, MemorisedRun, WatchedRun
from harness.attack.poisoning import Poison, Poisoned, PoisonedLine
from harness.attack.reconstruction import AttackedRun, AttackLine, DifferencedLine, DifferencedRun
from harness.datasets.public_data import data_folder, fetch_missing
from harness.datasets.registry import load_data, source_of
from harness.engine.training import Computing
from harness.simulate.case import Case, read_case
from harness.simulate.case_run import CaseOptions, request_for, requesters_of, run_case
from harness.simulate.comparison import read_personal_case, run_personal_case
from harness.simulate.run_one import Protection
from harness.simulate.store import append_line, read_lines
from harness.simulate.study_files import STUDIES, parse_seeds
from harness.simulate.workers import RayCluster, computing_of

Recipe = dict[str, Any]
L = TypeVar("L", bound=BaseModel)

ATTACKED: Final = Path("privacy/attacks.jsonl")
INVERTED: Final = Path("privacy/records.jsonl")
MEMORISED: Final = Path("privacy/memorised.jsonl")
DIFFERENCED: Final = Path("privacy/differencing.jsonl")
WATCHED: Final = Path("inference/lines.jsonl")
LEAKED: Final = Path("leak/falsified.jsonl")
POISONED: Final = Path("poisoning/lines.jsonl")
LYING: Final = Path("robustness/lies.jsonl")
LOCATED: Final = Path("robustness/distances.jsonl")
ALONE: Final = "local"


@cache
def recipes() -> Mapping[str, Recipe]:
    with Path(__file__).with_name("recipes.toml").open("rb") as file:
        return tomllib.load(file)


def case_of(name: str) -> Case:
    """A study that the product ships. Raises: ConfigurationError"""
    return read_case(STUDIES / f"{name}.toml")


@dataclass(frozen=True)
class Making:
    """The making of missing runs: one folder per case below ``runs``, by ``jobs`` processes or a ``cluster``.

    ``download``: fetch missing public data into the data folder first.
    """

    runs: Path
    data: Path | None
    jobs: int
    device: str
    tell: Callable[[str], None]
    download: bool = False
    cluster: RayCluster | None = None

    @property
    def computing(self) -> Computing:
        """Raises: ConfigurationError for a device that is not there"""
        return computing_of(self.cluster, self.device, None)

    def get_data(self, name: str) -> None:
        """Fetch the files a data set lacks, if that is wanted. Raises: ConfigurationError"""
        files = source_of(name).files
        if self.download and files:
            fetch_missing(files, data_folder(self.data), self.tell)

    def case(self, name: str) -> Case:
        """A study whose data are there, if they can be fetched. Raises: ConfigurationError"""
        case = case_of(name)
        self.get_data(case.table.data)
        return case

    def requesters(self, case: Case) -> tuple[str, ...]:
        """The sites that may ask. Raises: ConfigurationError"""
        return tuple(requesters_of(case, load_data(request_for(case, self.data, None, case.table.seeds[0]))))

    def append_missing(
        self,
        file: Path,
        kind: type[L],
        runs: Iterable[Any],
        keys: Callable[[Any], set[tuple[Any, ...]]] = lambda run: {run.key},
        key: Callable[[Any], Hashable] = lambda line: line.key,
    ) -> None:
        """Make the runs of which the file lacks a line; one process. Raises: ConfigurationError

        ``keys``: of all lines that a run makes, ``key``: of one line.
        """
        path = self.runs / file
        path.parent.mkdir(parents=True, exist_ok=True)
        done = {key(line) for line in read_lines(path, kind)}
        for run in runs:
            if keys(run) <= done:
                continue
            self.tell(f"{file}: {' '.join(map(str, min(keys(run), key=str)))}")
            for line in run.lines() if hasattr(run, "lines") else (run.line(),):
                if key(line) not in done:
                    append_line(path, line)


def run_missing(page: str, making: Making) -> None:
    """Make every run of a page that is not there yet. Raises: ConfigurationError"""
    recipe = recipes()[page]
    for other in recipe.get("also", ()):
        run_missing(other, making)
    for kind, make in _MAKERS.items():
        if kind in recipe:
            make(recipe, making)


def folder_of(case: str, protection: str = "plain") -> str:
    """Protected runs of a case lie apart from plain ones."""
    return case if protection == "plain" else f"{case}_{protection}"


def _simulate(recipe: Recipe, making: Making) -> None:
    _simulate_each(recipe["simulate"], making)


def _on_gpu(recipe: Recipe, making: Making) -> None:
    if making.computing.device.type == "cuda":
        _simulate_each(recipe["on_gpu"], making)


def _simulate_each(asked: Iterable[Recipe], making: Making) -> None:
    for one in asked:
        protection = one.get("protection", "plain")
        seeds = parse_seeds(one["seeds"]) if "seeds" in one else None
        for name in one["cases"]:
            making.tell(command_of(name, one))
            out, only = making.runs / folder_of(name, protection), tuple(one.get("only", ())) or None
            options = CaseOptions(out, making.data, seeds, only, Protection(protection), making.jobs)
            run_case(making.case(name), replace(options, computing=making.computing, cluster=making.cluster))


def command_of(case: str, asked: Recipe) -> str:
    """The command that a person types for the runs of one case."""
    words = [f"moiety simulate harness/studies/{case}.toml"]
    words += [f"--seeds {asked['seeds']}"] if "seeds" in asked else []
    words += [f"--only {','.join(asked['only'])}"] if "only" in asked else []
    words += [f"--protection {asked['protection']}"] if "protection" in asked else []
    return " ".join([*words, f"--out results-out/{folder_of(case, asked.get('protection', 'plain'))}"])


def _personal(recipe: Recipe, making: Making) -> None:
    """One process, whatever ``jobs``."""
    for name in recipe["personal"]:
        making.tell(f"moiety simulate harness/studies/{name}.toml --out results-out/{name}")
        case = read_personal_case(STUDIES / f"{name}.toml")
        making.get_data(case.table.data)
        run_personal_case(case, making.runs / name, making.data, device=making.device, tell=making.tell)


def _attacked(recipe: Recipe, making: Making) -> None:
    runs = (run for asked in recipe["attacked"] for run in attacked_runs(recipe, asked, making))
    making.append_missing(
        ATTACKED,
        AttackLine,
        runs,
        lambda run: {_study_key(run.attacked, run.attacked.setting.name)},
    )


def attacked_runs(recipe: Recipe, asked: Recipe, making: Making) -> Iterator[AttackedRun]:
    """The runs of one attacked study, seeds outermost. Raises: ConfigurationError"""
    case = making.case(asked["case"])
    requesters = making.requesters(case)[: asked.get("requesters")]
    changed = case.table.model_copy(update={"sites": asked.get("sites", case.table.sites)})
    case = replace(case, name=asked["key"], table=changed)
    for seed in parse_seeds(asked["seeds"]):
        for requester in requesters:
            for setting in settings_of(recipe, asked):
                study = AttackedStudy(
                    case, asked["variant"], seed, requester, setting, making.data, asked.get("rounds")
                )
                yield AttackedRun(study)


def _study_key(study: AttackedStudy, *setting: str) -> tuple[str | int, ...]:
    return (study.case.name, study.variant, *setting, study.requester or "", study.seed)


def settings_of(recipe: Recipe, asked: Recipe) -> list[Setting]:
    if not asked.get("remedies"):
        return [Setting(**{"name": name, **recipe["settings"][name]}) for name in asked["settings"]]
    needed = {"parameters": {"least_contributors": asked["contributors"]}}
    return [
        Setting(**{**one, "changes": _merged(_merged(recipe["slow"], one.get("changes", {})), needed)})
        for one in recipe["remedies"]
    ]


def _merged(tables: Recipe, changes: Recipe) -> Recipe:
    return {**tables, **{k: {**tables.get(k, {}), **v} if isinstance(v, dict) else v for k, v in changes.items()}}


def _inverted(recipe: Recipe, making: Making) -> None:
    asked = recipe["inverted"]
    for name in sorted({target.data for target in TARGETS}):
        making.get_data(name)
    runs = (
        InvertedRun(target, sites, batch, seed, making.data)
        for target in TARGETS
        for sites in asked["sites"]
        for batch in asked["batches"]
        for seed in parse_seeds(asked["seeds"])
    )
    making.append_missing(INVERTED, InversionLine, runs)


def _memorised(recipe: Recipe, making: Making) -> None:
    cases = [making.case(name) for name in recipe["memorised"]]
    runs = (
        MemorisedRun(AttackedStudy(c, variant, seed, data=making.data))
        for c in cases
        for seed in c.table.seeds
        for variant in c.names
    )
    making.append_missing(MEMORISED, MemorisedLine, runs)


def _watched(recipe: Recipe, making: Making) -> None:
    for asked in recipe["watched"]:
        case = making.case(asked["case"])
        runs = (
            WatchedRun(AttackedStudy(case, variant, seed, requester, data=making.data))
            for seed in parse_seeds(asked["seeds"])
            for requester in making.requesters(case)
            for variant in asked["variants"]
        )
        making.append_missing(
            Path(asked.get("file", WATCHED)),
            InferenceLine,
            runs,
            lambda run: {_study_key(run.attacked)},
        )


def _differenced(recipe: Recipe, making: Making) -> None:
    for asked in recipe["differenced"]:
        case = making.case(asked["case"])
        requester, parameters = making.requesters(case)[0], {"least_contributors": asked["least"]}
        runs = (
            DifferencedRun(AttackedStudy(case, rule, seed, requester, setting, making.data))
            for seed in range(5)
            for rule in asked["rules"]
            for name, training in recipe["batches"].items()
            for setting in [Setting(name, {"training": training, "parameters": parameters}, least_isolation=0.0)]
        )
        making.append_missing(DIFFERENCED, DifferencedLine, runs)


def asked_of_a_server() -> list[Asked]:
    """The falsified studies of the page on the leak, once each."""
    asked = recipes()["leak"]["leaked"]
    found = [Asked(question, clause) for question in Question for clause in (True, False)]
    found += [Asked(question, rounds=rounds) for question in Question for rounds in asked["rounds"]]
    found += [Asked(question, canaries=share) for question in Question for share in canary_shares()]
    return list(dict.fromkeys(found))


def canary_shares() -> list[float]:
    """None first, then one round of so many."""
    return [0.0, *(1 / one for one in recipes()["leak"]["leaked"]["canaries"])]


def _leaked(recipe: Recipe, making: Making) -> None:
    runs = (
        LeakRun(one, failures, seed)
        for one in asked_of_a_server()
        for failures in one.plans
        for seed in parse_seeds(recipe["leaked"]["seeds"])
    )
    making.append_missing(LEAKED, LeakLine, runs)


def poisoned_runs(recipe: Recipe, case: Case) -> Iterator[Poisoned]:
    """Every run of a case, seeds outermost, honest ones first; then some under the protocol."""
    for seed in case.table.seeds:
        for variant in case.names:
            study = AttackedStudy(case, variant, seed)
            yield Poisoned(study, 0, None)
            for number in recipe["poisoners"] if variant != ALONE else ():
                yield from (Poisoned(study, number, poison) for poison in Poison)
    for variant, poison in recipe["secure"]:
        yield Poisoned(AttackedStudy(case, variant, case.table.seeds[0]), 2, Poison(poison), secure=True)


def _poisoned(recipe: Recipe, making: Making) -> None:
    runs = (run for name in recipe["poisoned"] for run in poisoned_runs(recipe, making.case(name)))
    making.append_missing(POISONED, PoisonedLine, runs)


def lies_of(asked: Recipe) -> tuple[Lie, ...]:
    """The lies that so many liars can tell: one needs a pair."""
    return tuple(lie for lie in Lie if asked["liars"] > 1 or lie is not Lie.OPPOSED)


def _lying(recipe: Recipe, making: Making) -> None:
    finished = recipe["finished"]
    with_finish = Setting("finished", {"finish": {"held_out": finished["held_out"]}})
    for asked in recipe["lying"]:
        case = making.case(asked["case"])
        told: list[tuple[Setting, str, tuple[Lie, ...]]] = [(AS_IT_IS, ALONE, ())]
        told += [(AS_IT_IS, rule, lies_of(asked)) for rule in recipe["rules"]]
        told += [(with_finish, rule, tuple(map(Lie, finished["lies"]))) for rule in finished["rules"]]
        runs = (
            LyingRun(AttackedStudy(case, variant, seed, requester, setting, making.data), lies, asked["liars"])
            for seed in parse_seeds(recipe["seeds"])
            for requester in making.requesters(case)
            for setting, variant, lies in told
        )
        making.append_missing(
            LYING,
            LyingLine,
            runs,
            lambda run: {
                (of.case.name, of.setting.name, of.variant, of.requester, of.seed, lie)
                for of in (run.attacked,)
                for lie in (None, *run.lies)
            },
            lambda line: (line.study, line.setting, line.variant, line.requester, line.seed, line.lie),
        )


def _located(recipe: Recipe, making: Making) -> None:
    for asked in recipe["located"]:
        case = making.case(asked["case"])
        setting = Setting(asked["key"], asked.get("changes", {}), least_isolation=0.0)
        colluders, every, requester = tuple(asked["colluders"]), asked.get("every", 1), making.requesters(case)[0]
        runs = (
            LocatingRun(AttackedStudy(case, "fedavg", seed, requester, setting, making.data), colluders, every)
            for seed in parse_seeds(recipe["seeds"])
        )
        making.append_missing(
            LOCATED,
            LocatingLine,
            runs,
            lambda run: {(run.attacked.setting.name, run.attacked.seed)},
            lambda line: (line.setting, line.seed),
        )


def _soak(recipe: Recipe, making: Making) -> None:
    """Hours of accidents are asked for by name, not by the way."""
    making.tell(f"'make soak' and the commands at the page's end write what {making.runs / recipe['soak']} lacks")


_MAKERS: Final[Mapping[str, Callable[[Recipe, Making], None]]] = {
    "simulate": _simulate,
    "on_gpu": _on_gpu,
    "personal": _personal,
    "attacked": _attacked,
    "inverted": _inverted,
    "memorised": _memorised,
    "watched": _watched,
    "differenced": _differenced,
    "leaked": _leaked,
    "poisoned": _poisoned,
    "lying": _lying,
    "located": _located,
    "soak": _soak,
}
