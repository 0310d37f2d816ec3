"""Studies and cases as Python objects: the same tables as in a TOML file, checked when they are run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from harness.simulate.case import Case as CheckedCase
from harness.simulate.case import case_of
from harness.simulate.study_files import StudyFile, read_study_file
from protocol.errors import ConfigurationError

Table = Mapping[str, Any]
_STUDY_KEYS: Final = ("name", "rounds", "model", "parameters", "rule", "training", "task")


@dataclass(frozen=True)
class Study:
    """The tables of a study file; ``others`` are its further keys and tables, such as ``list_every`` or ``privacy``.

    Without ``task`` the study predicts classes.
    """

    name: str
    rounds: int
    model: Table
    parameters: Table
    rule: Table = field(default_factory=lambda: {"name": "fedavg"})
    training: Table = field(default_factory=dict)
    others: Table = field(default_factory=dict)
    task: Table | None = None

    @classmethod
    def read(cls, path: str | Path) -> Study:
        """A study file, or the name of one that comes along; of a case the study part. Raises: ConfigurationError"""
        file = read_study_file(Path(path))
        return _study_of({key: value for key, value in file.tables.items() if key not in ("case", "variant")}, file)

    @property
    def tables(self) -> dict[str, Any]:
        """As in the file."""
        own = {key: getattr(self, key) for key in _STUDY_KEYS}
        return {**self.others, **{key: value for key, value in own.items() if value is not None}}


@dataclass(frozen=True)
class Case:
    """A study, the data it is run on, and what is compared.

    ``data`` is a data set's name. ``variants``: a name and what it changes, as in ``[[variant]]``; without any, the
    study as it is, called by its rule. ``seeds``: None takes the study's own, or 0. ``others`` are further keys of
    ``[case]``.
    """

    study: Study
    data: str
    variants: Mapping[str, Table] = field(default_factory=dict)
    seeds: Sequence[int] | None = None
    others: Table = field(default_factory=dict)
    source: str = "a case in Python"

    @classmethod
    def read(cls, path: str | Path) -> Case:
        """A case file, or the name of one that comes along, such as ``heart_disease``. Raises: ConfigurationError"""
        file = read_study_file(Path(path))
        tables = dict(file.tables)
        case, variants = dict(tables.pop("case", {})), tables.pop("variant", [])
        if "data" not in case:
            raise ConfigurationError(f"{file.source} is no case: it has no table [case] with a data set")
        named = {str(variant["name"]): {k: v for k, v in variant.items() if k != "name"} for variant in variants}
        data, seeds = case.pop("data"), case.pop("seeds", None)
        return cls(_study_of(tables, file), data, named, seeds, case, file.source)

    @property
    def tables(self) -> dict[str, Any]:
        """As in the file."""
        variants = self.variants or {str(self.study.rule.get("name", "study")).rpartition(":")[2]: {}}
        case = {**self.others, "data": self.data, **({} if self.seeds is None else {"seeds": list(self.seeds)})}
        named = [{"name": name, **changes} for name, changes in variants.items()]
        return {**self.study.tables, "case": case, "variant": named}

    def checked(self) -> CheckedCase:
        """Raises: ConfigurationError that names the wrong key, what was found and what is allowed"""
        return case_of(StudyFile(self.source, self.tables))


def _study_of(tables: Table, file: StudyFile) -> Study:
    missing = [key for key in ("name", "rounds", "model", "parameters") if key not in tables]
    if missing:
        raise ConfigurationError(f"{file.source} is no study file: it has no key {missing[0]!r}")
    others = {key: value for key, value in tables.items() if key not in _STUDY_KEYS}
    return Study(**{key: tables[key] for key in _STUDY_KEYS if key in tables}, others=others)
