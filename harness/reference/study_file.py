"""The keys of a study file with type and default, which docs/study_file.md must name as the models have them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from client_agent.learning.study_file import ArchitectureTable, FinishTable, ModelTable, ParametersTable, StudyTable
from protocol.messages.control import RankingSpec, RuleSpec, SummarySpec, TaskSpec, TrainingSpec
from protocol.messages.specifications import PrivacySpec

TABLES: Final[Mapping[str, type[BaseModel]]] = {
    "": StudyTable,
    "model": ModelTable,
    "model.architecture": ArchitectureTable,
    "parameters": ParametersTable,
    "rule": RuleSpec,
    "training": TrainingSpec,
    "task": TaskSpec,
    "privacy": PrivacySpec,
    "ranking": RankingSpec,
    "summary": SummarySpec,
    "finish": FinishTable,
}
_WITHIN: Final = frozenset({"version"})


def keys_of(name: str) -> dict[str, FieldInfo]:
    """The keys of a table that are no tables themselves."""
    inner = {key.rpartition(".")[2] for key in TABLES if key.rpartition(".")[0] == name and key} | {"data_schema"}
    fields = TABLES[name].model_fields.items()
    of_message = _WITHIN if name != "model.architecture" else frozenset()
    return {key: field for key, field in fields if key not in inner and key not in of_message}


def default_of(field: FieldInfo) -> str:
    value = field.default
    if field.is_required():
        return "required"
    if value is None or value in ((), {}):
        return "none"
    if isinstance(value, StrEnum):
        value = value.value
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def taken(field: FieldInfo) -> str:
    limits = [_limit(one) for one in field.metadata]
    found = _kind(field.annotation)
    return found + "".join(f", {limit}" for limit in limits if limit)


def _limit(one: object) -> str:
    signs = (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below"))
    return ", ".join(f"{word} {getattr(one, sign):g}" for sign, word in signs if getattr(one, sign, None) is not None)


_NAMES: Final = {str: "text", int: "whole number", float: "number", bool: "`true`, `false`"}


def _kind(annotation: Any) -> str:  # noqa: ANN401  # any type that a field may have
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        limits = [_limit(limit) for one in inner[1:] for limit in getattr(one, "metadata", [one])]
        found = _kind(inner[0]) + "".join(f", {limit}" for limit in limits if limit)
    elif origin in (Union, UnionType):
        found = " or ".join(_kind(one) for one in inner if one is not NoneType)
    elif origin is Literal:
        found = ", ".join(f"`{one}`" for one in inner)
    elif origin is tuple:
        found = f"list of {_kind(inner[0])}"
    elif origin is dict:
        found = "table"
    elif issubclass(annotation, StrEnum):
        found = ", ".join(f"`{one.value}`" for one in annotation)
    else:
        found = _NAMES.get(annotation) or re.sub(r"(?<!^)(?=[A-Z])", " ", annotation.__name__).lower()
    return found
