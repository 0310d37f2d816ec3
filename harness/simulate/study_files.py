"""Read what a person types: the tables of a study, seeds, names and parts of lists.

    [matrix]         names, such as "mnist_{letter}_{sites}": what each study is called
    [matrix.axes]    lists of rows: every row of one axis is combined with every row of the others

Everywhere else in the file ``"{sites}"`` stands for the row's value, whatever its type, and ``{sites}`` inside a longer
text for its digits or letters.

``harness/studies/mnist_b_10.toml`` is no file: ``mnist.toml`` beside it holds a matrix that makes a study of that name.

Servers and sites know the rules of the protocol and the built-in models alone, and so does a study. What a package's
rule does happens at the requester: the sum over the sites, and how it is applied, are FedAvg's.

A metric is a function of the model's outputs, float32[n, K], and the targets of the same examples, as arrays; it gives
a number. What it cannot compute is missing in that round, with the reason.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import torch
from pydantic import Field
from torch import nn

from client_agent.learning.data import require_names_of_study
from client_agent.learning.evaluation import OwnMetrics
from client_agent.learning.flat_vector import keep_buffers
from client_agent.learning.foreign_code import came_from, words_of
from client_agent.learning.losses import Batch
from client_agent.learning.models import completed, private_state
from client_agent.learning.scores import Score
from client_agent.learning.study_file import ModelTable, StudyTable, study_from_table
from harness.datasets.site_data import Federation
from harness.engine.parties import SiteEntry, make_parties
from harness.engine.training import own_sources
from host.extensions import Kind, extension, is_brought
from host.frozen import Frozen
from host.settings import read_text
from protocol.arithmetic.ring import derive
from protocol.configuration import parse_toml, validated
from protocol.errors import ConfigurationError
from protocol.messages.control import ModelSpec, RuleName, Study
from protocol.rules.interface import Rule
from protocol.rules.registry import packaged_rule_for

STAND_IN: Final = {"name": RuleName.FEDAVG.value}
MODEL_STAND_IN: Final = "plugin"


@dataclass(frozen=True)
class ChosenRule:
    """The rule's name and its options as they were written."""

    name: str
    options: Mapping[str, Any]

    @property
    def package(self) -> tuple[str, str]:
        """Its name and version. Raises: ConfigurationError"""
        return package_of(Kind.RULE, self.name)

    def rule(self, batch_size: int, grid: int) -> Rule:
        """The rule itself. Raises: ConfigurationError for options that it does not take"""
        offered = extension(Kind.RULE, self.name).load()
        return packaged_rule_for(self.name, offered, self.options, batch_size=batch_size, grid=grid)

    def rule_of(self, study: Study) -> Rule:
        """The rule with the study's numbers. Raises: ConfigurationError"""
        return self.rule(study.training.batch_size, study.parameters.weight_grid)


@dataclass(frozen=True)
class ChosenModel:
    """A model that others bring: a function of the shape of one example and the number of outputs."""

    name: str

    def build(self, table: ModelTable, seed: int) -> nn.Module:
        """The model with its first values, drawn from the seed. Raises: ConfigurationError"""
        make = extension(Kind.MODEL, self.name).load()
        if not callable(make):
            raise ConfigurationError(f"model {self.name!r}: found {type(make).__name__}, expected a function")
        with private_state():
            torch.manual_seed(seed % 2**63)
            try:
                made = make(table.inputs, table.width)
            except Exception as error:  # whatever foreign code raises
                raise ConfigurationError(f"model {self.name!r}: {words_of(error)}") from error
        if not isinstance(made, nn.Module):
            raise ConfigurationError(f"model {self.name!r}: gave {type(made).__name__}, expected a torch.nn.Module")
        keep_buffers(made, table.buffers)
        came_from(made, f"model {self.name!r}")
        return made

    def spec(self, table: ModelTable) -> ModelSpec:
        """As a study has it. Raises: ConfigurationError; UnusableUpdate for a model that cannot be shared"""
        made = self.build(table, 0)
        given = ModelSpec(kind="plugin", inputs=table.inputs, hidden=table.hidden, classes=table.width, layers=())
        return completed(given.model_copy(update={"buffers": table.buffers}), made)


def package_of(kind: Kind, name: str) -> tuple[str, str]:
    """Return the package and its version. Raises: ConfigurationError"""
    found = extension(kind, name)
    return found.package, found.version


def chosen_model(tables: Mapping[str, Any]) -> ChosenModel | None:
    """The model of others that a study's tables name, None for one of the built-in ones."""
    written = tables.get("model")
    kind = str(written.get("kind", "")) if isinstance(written, Mapping) else ""
    return ChosenModel(kind) if is_brought(kind) else None


def chosen_rule(tables: Mapping[str, Any]) -> ChosenRule | None:
    """The package's rule that a study's tables name, None where they name one of the protocol's."""
    written = tables.get("rule")
    if not isinstance(written, Mapping) or not is_brought(str(written.get("name", ""))):
        return None
    return ChosenRule(str(written["name"]), {key: value for key, value in written.items() if key != "name"})


def without_package(tables: Mapping[str, Any]) -> dict[str, Any]:
    """The same tables with a rule and a model that studies know."""
    rule = {"rule": STAND_IN} if chosen_rule(tables) else {}
    model = {"model": {**tables["model"], "kind": MODEL_STAND_IN}} if chosen_model(tables) else {}
    return {**tables, **rule, **model}


def refuse_package(tables: Mapping[str, Any], source: str) -> None:
    """ConfigurationError where a package's rule or model is named and only the project's own can be run."""
    named: tuple[tuple[str, str, ChosenRule | ChosenModel | None], ...] = (
        ("rule", f"take one of {', '.join(name.value for name in RuleName)}", chosen_rule(tables)),
        ("model", "a built-in kind of model", chosen_model(tables)),
    )
    for what, own, found in named:
        if found is not None:
            raise ConfigurationError(
                f"{source}: {what} {found.name!r} is from a package, and such {what}s run in plain runs of cases only: "
                f"give the file a [case], or {own}"
            )


Metric = Callable[[Any, Any], object]


def own_metrics(names: Sequence[str]) -> OwnMetrics | None:
    """All of them over some examples; None for no name. Raises: ConfigurationError for what is not there"""
    found = [(name, _function(name)) for name in names]
    if not found:
        return None

    def measured(model: nn.Module, batch: Batch) -> tuple[Score, ...]:
        with torch.no_grad():
            outputs = model(batch.X).cpu().numpy()
        targets = batch.y.cpu().numpy()
        return tuple(_score(name, function, outputs, targets) for name, function in found)

    return measured


def _function(name: str) -> Metric:
    found = extension(Kind.METRIC, name).load()
    if not callable(found):
        raise ConfigurationError(
            f"metric {name!r}: found {type(found).__name__}, expected a function of outputs and targets"
        )
    function: Metric = found
    return function


def _score(name: str, function: Metric, outputs: object, targets: object) -> Score:
    try:
        value = float(np.asarray(function(outputs, targets), np.float64))
    except Exception as error:  # whatever foreign code raises
        return Score(name=name, value=None, reason=f"{type(error).__name__}: {error}")
    finite = math.isfinite(value)
    return Score(name=name, value=value if finite else None, reason="" if finite else "it gave no finite number")


MOST_SEEDS: Final = 10_000
_SEEDS: Final = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")
_SHARD: Final = re.compile(r"(\d{1,6})/(\d{1,6})")


def parse_seeds(text: str) -> tuple[int, ...]:
    """``0-9,12`` as numbers, in this order. Raises: ConfigurationError"""
    seeds: list[int] = []
    for part in text.split(","):
        found = _SEEDS.fullmatch(part.strip())
        if found is None:
            raise ConfigurationError(
                f"--seeds: found {text!r}; give whole numbers and ranges of them, separated by commas: 0-9,12"
            )
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first or last - first >= MOST_SEEDS:
            raise ConfigurationError(f"--seeds: found {part.strip()!r}; give the smaller number first: 0-9")
        seeds += range(first, last + 1)
    if len(set(seeds)) != len(seeds):
        raise ConfigurationError(f"--seeds: found {text!r}; every seed once")
    return tuple(seeds)


def parse_shard(text: str) -> tuple[int, int]:
    """``2/5``: which part, counted from 1, and of how many. Raises: ConfigurationError"""
    found = _SHARD.fullmatch(text.strip())
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise ConfigurationError(f"--shard: found {text!r}; give i/n, such as 2/5 for the second of five parts")
    return int(found[1]), int(found[2])


def parse_names(text: str, option: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(","))
    if not all(names) or len(set(names)) != len(names):
        raise ConfigurationError(f"{option}: found {text!r}; give names separated by commas, every one once")
    return names


Value = float | int | str
Row = Annotated[dict[Annotated[str, Field(pattern=r"^\w+$")], Value], Field(min_length=1)]
_PLACE: Final = re.compile(r"\{(\w+)\}")


class MatrixTable(Frozen, strict=True):
    """``[matrix]``."""

    names: Annotated[str, Field(pattern=r"^[a-z0-9_{}]+$")]
    axes: Annotated[dict[str, Annotated[list[Row], Field(min_length=1)]], Field(min_length=1)]


def studies_of(tables: Mapping[str, Any], source: str) -> dict[str, dict[str, Any]]:
    """Every study of a file with ``[matrix]``: name -> its tables, as a file of its own would hold them.

    Raises: ConfigurationError for a name that is made twice, and for ``{words}`` that no axis has a value for
    """
    matrix = validated(MatrixTable, tables["matrix"], f"{source}: [matrix]")
    rest = {key: value for key, value in tables.items() if key != "matrix"}
    made: dict[str, dict[str, Any]] = {}
    for rows in itertools.product(*matrix.axes.values()):
        values: dict[str, Value] = {}
        for row in rows:
            if twice := sorted(values.keys() & row.keys()):
                raise ConfigurationError(
                    f"{source}: [matrix.axes]: two axes have a value for {twice[0]!r}: leave one out"
                )
            values |= row
        name = str(_filled(matrix.names, values, source))
        if name in made:
            raise ConfigurationError(
                f"{source}: [matrix]: 'names' makes {name!r} twice: name a key of every axis in it"
            )
        made[name] = {key: _filled(value, values, source) for key, value in rest.items()}
    return made


def _filled(part: object, values: Mapping[str, Value], source: str) -> object:
    """``part`` with every place taken by its value, copied all the way down."""
    if isinstance(part, dict):
        return {key: _filled(value, values, source) for key, value in part.items()}
    if isinstance(part, list):
        return [_filled(value, values, source) for value in part]
    if not isinstance(part, str):
        return part
    unknown = [name for name in _PLACE.findall(part) if name not in values]
    if unknown:
        raise ConfigurationError(
            f"{source}: no axis has {unknown[0]!r}, found in {part!r}; they have {', '.join(values)}"
        )
    whole = _PLACE.fullmatch(part)
    return values[whole[1]] if whole else _PLACE.sub(lambda place: str(values[place[1]]), part)


STUDIES: Final = Path(__file__).resolve().parents[1] / "studies"
"""The studies that come along."""


@dataclass(frozen=True)
class StudyFile:
    """The tables of one study, not checked yet; ``source`` says where they are from."""

    source: str
    tables: dict[str, Any]

    @property
    def is_case(self) -> bool:
        return "case" in self.tables


def read_study_file(path: Path) -> StudyFile:
    """The study that ``path`` names; a bare name, such as ``mnist_b_10``, is one of those that come along.

    Raises: ConfigurationError that names the nearest ones
    """
    bare = path.parent == Path() and not path.suffix and not path.exists()
    wanted = STUDIES / f"{path}.toml" if bare else path
    if wanted.exists() or not wanted.parent.is_dir():
        tables = parse_toml(read_text(wanted), str(wanted))
        if "matrix" in tables:
            raise ConfigurationError(
                f"{wanted} holds many studies: name one of {', '.join(studies_of(tables, str(wanted)))}"
            )
        return StudyFile(str(wanted), tables)
    files = _toml_files(wanted.parent)
    for file, tables in files.items():
        if "matrix" in tables and wanted.suffix == file.suffix:
            studies = studies_of(tables, str(file))
            if wanted.stem in studies:
                return StudyFile(f"{file} ({wanted.stem})", studies[wanted.stem])
    near = get_close_matches(wanted.stem, _names(files), n=3)
    meant = f"did you mean {' or '.join(near)}? " if near else ""
    raise ConfigurationError(
        f"{path} cannot be read: no such file or study in {wanted.parent}; {meant}'moiety simulate --list' names the "
        "studies that come along"
    )


def study_names(folder: Path = STUDIES) -> tuple[str, ...]:
    """Every study in a folder, those of its matrices too. Raises: ConfigurationError"""
    return _names(_toml_files(folder))


def _names(files: dict[Path, dict[str, Any]]) -> tuple[str, ...]:
    """Other TOML files may lie in a person's folder; a study has a model."""
    names: list[str] = []
    for file, tables in files.items():
        if "matrix" in tables:
            names += studies_of(tables, str(file))
        elif "model" in tables:
            names.append(file.stem)
    return tuple(sorted(names))


def _toml_files(folder: Path) -> dict[Path, dict[str, Any]]:
    """List the readable files; one that cannot be read is another file than the one that was named."""
    found: dict[Path, dict[str, Any]] = {}
    for file in sorted(folder.glob("*.toml")):
        try:
            found[file] = parse_toml(read_text(file), str(file))
        except ConfigurationError:
            continue
    return found


def simulated_study(
    table: StudyTable,
    source: str,
    federation: Federation,
    seed: int,
    own_model: ChosenModel | None = None,
    site_plugin: Path | None = None,
) -> Study:
    """The file's study for these sites; ``same_round`` is the plain run's business, not the study's.

    ``own_model`` is one that others bring, in place of the table's; ``site_plugin`` the file that sites would have.

    Raises: ConfigurationError when the model does not fit the data
    """
    if table.model.kind == "plugin" and own_model is None and site_plugin is None:
        raise ConfigurationError(
            f"{source}: key 'model.kind': 'plugin' runs at a site's agent, or in the simulation of a study with "
            "--site-plugin, the Python file that sites would have"
        )
    for key, given, instead in (
        ("ranking", table.ranking, "rank the sites by: moiety simulate rank"),
        ("summary", table.summary, "sum the tables by: moiety simulate summary"),
    ):
        if given is not None:
            raise ConfigurationError(f"{source}: key {key!r}: simulations only train; leave it out, and {instead}")
    _require_fitting_data(table, source, federation)
    rule = table.rule.model_copy(update={"erosion_applies": "next_round"})
    entries = [SiteEntry(site.name, len(site.train)) for site in federation.sites]
    parties = make_parties("simulation", federation.requester.name, entries, derive(bytes(32), f"seed {seed}"))
    return study_from_table(
        table.model_copy(update={"rule": rule, "seed": seed}),
        source,
        parties.roster.message,
        plugin=site_plugin,
        spec=None if own_model is None else own_model.spec(table.model),
        sources=own_sources(),
    )


def _require_fitting_data(table: StudyTable, source: str, federation: Federation) -> None:
    if (table.model.inputs, table.model.width) != (federation.inputs, len(federation.class_names)):
        raise ConfigurationError(
            f"{source}: the model takes inputs {list(table.model.inputs)} and {table.model.width} outputs, the data "
            f"{federation.title!r} have {list(federation.inputs)} and {len(federation.class_names)}"
        )
    if table.task.kind is not federation.task:
        raise ConfigurationError(
            f"{source}: the study's task is {table.task.kind.value!r}, the data {federation.title!r} have targets of "
            f"{federation.task.value!r}: set [task] kind, or take other data"
        )
    require_names_of_study(table.model.names, federation.names, table.name, federation.title)
