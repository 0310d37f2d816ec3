"""A comparison of personal models on all sites, as a person writes it in TOML.

[personal]       data set, seeds, how often all sites are evaluated, what is tampered with
[model] [rule] [training] [parameters], name, rounds    as in every study file
[[variant]]      name, scheme, and what it changes in [model] and [training]
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from client_agent.learning.study_file import StudyTable, checked_study_table
from harness.personal.schemes import SchemeName
from harness.personal.tampering import Tampering
from harness.simulation.files.study_files import StudyFile, read_study_file
from protocol.configuration import parse_toml, validated
from protocol.errors import ConfigurationError

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
