"""One column of a study's table: what it holds, what for, and what becomes of a missing value (docs/protocol.md 1).

    type         values                                        columns of X
    number       decimal numbers                               one
    integer      whole numbers                                 one
    boolean      false or true, as the two ``categories``      one, 0 or 1
    category     one of ``categories``                         one for each label
    time         date or time of an observation                none
    text         a patient's id                                none

What is left at its default is no part of the bytes.
"""

from __future__ import annotations

from enum import StrEnum
from itertools import pairwise
from typing import Annotated, ClassVar, Final

from pydantic import AfterValidator, Field, model_validator

from protocol.text_forms import comparable
from protocol.wire.message import Message
from protocol.wire.names import MAX_NAME_CHARACTERS, printable_name, printable_text


class ColumnType(StrEnum):
    NUMBER = "number"
    INTEGER = "integer"
    BOOLEAN = "boolean"
    CATEGORY = "category"
    TIME = "time"
    TEXT = "text"

    @property
    def numeric(self) -> bool:
        """True if the column has a unit, a range and a scale."""
        return self in (ColumnType.NUMBER, ColumnType.INTEGER)

    @property
    def listed(self) -> bool:
        """True if its values are among ``categories``."""
        return self in (ColumnType.BOOLEAN, ColumnType.CATEGORY)


class ColumnRole(StrEnum):
    """The purpose of a column. A patient's rows are never parted; ``observed_at`` orders rows for a split by time."""

    FEATURE = "feature"
    TARGET = "target"
    SURVIVAL_TIME = "survival_time"
    EVENT = "event"
    PATIENT = "patient"
    OBSERVED_AT = "observed_at"


class MissingRule(StrEnum):
    """The treatment of a row that lacks the value: it stops the preparation; it is left out; the training part's median
    stands in, alone or with a column of its own that says so; or missing is a category of its own.
    """

    REFUSE = "refuse"
    DROP_ROW = "drop_row"
    MEDIAN = "median"
    INDICATOR = "indicator"
    CATEGORY = "category"


class LimitRule(StrEnum):
    """The value that one below a detection limit, such as "<5", counts as: the limit, half of it, or missing.

    Above an upper limit, such as ">100", half is the limit itself.
    """

    LIMIT = "limit"
    HALF = "half"
    MISSING = "missing"


MISSING: Final = "missing"
"""The label of missing values where they are a category of their own, and the end of an indicator's name."""
_NUMERIC: Final = frozenset({ColumnType.NUMBER, ColumnType.INTEGER})
_TYPES: Final[dict[ColumnRole, frozenset[ColumnType]]] = {
    ColumnRole.FEATURE: _NUMERIC | {ColumnType.BOOLEAN, ColumnType.CATEGORY},
    ColumnRole.TARGET: _NUMERIC | {ColumnType.BOOLEAN, ColumnType.CATEGORY},
    ColumnRole.SURVIVAL_TIME: _NUMERIC,
    ColumnRole.EVENT: frozenset({ColumnType.BOOLEAN}),
    ColumnRole.PATIENT: frozenset({ColumnType.TEXT, ColumnType.INTEGER}),
    ColumnRole.OBSERVED_AT: frozenset({ColumnType.TIME}) | _NUMERIC,
}
_ALWAYS: Final = frozenset({MissingRule.REFUSE, MissingRule.DROP_ROW})
_FILLED: Final = _ALWAYS | {MissingRule.MEDIAN, MissingRule.INDICATOR}
_RULES: Final[dict[ColumnType, frozenset[MissingRule]]] = {
    ColumnType.NUMBER: _FILLED,
    ColumnType.INTEGER: _FILLED,
    ColumnType.BOOLEAN: _FILLED,
    ColumnType.CATEGORY: _ALWAYS | {MissingRule.CATEGORY},
}
_FALSE_TRUE: Final = ("false", "true")

Name = Annotated[str, AfterValidator(printable_name)]
Text = Annotated[str, Field(max_length=MAX_NAME_CHARACTERS), AfterValidator(printable_text)]
"""What sites are shown of a column beside its name; empty where there is nothing to say."""
Finite = Annotated[float, Field(allow_inf_nan=False)]


def _absent(value: object) -> bool:
    return value in ("", (), None)


class ColumnSpec(Message):
    """``range``, both ends included, and ``unit`` are a number's. ``missing_marks`` replaces the table's.

    ``labels``, one for each of ``categories``, name classes; categories with one label are one class. Values outside of
    ``categories`` are refused, or count as ``other``, one of them. ``centre`` and ``spread`` are the common scale.
    ``format`` is a time's, as strptime has it; without it times are ISO 8601. ``detection_limit`` says what "<5" counts
    as; without it such values are refused.
    """

    KIND: ClassVar[str] = "column"
    name: Name
    type: ColumnType
    role: ColumnRole = ColumnRole.FEATURE
    unit: Text = Field(default="", exclude_if=_absent)
    range: tuple[Finite, Finite] | None = Field(default=None, exclude_if=_absent)
    categories: tuple[Name, ...] = Field(default=(), exclude_if=_absent)
    labels: tuple[Name, ...] = Field(default=(), exclude_if=_absent)
    other: str | None = Field(default=None, exclude_if=_absent)
    missing: MissingRule = MissingRule.REFUSE
    missing_marks: tuple[str, ...] | None = Field(default=None, exclude_if=lambda marks: marks is None)
    centre: Finite | None = Field(default=None, exclude_if=_absent)
    spread: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(default=None, exclude_if=_absent)
    format: Text = Field(default="", exclude_if=_absent)
    detection_limit: LimitRule | None = Field(default=None, exclude_if=_absent)

    @property
    def values(self) -> tuple[str, ...]:
        """The possible values of a listed column; of a boolean, false first."""
        return self.categories or (_FALSE_TRUE if self.type is ColumnType.BOOLEAN else ())

    @property
    def classes(self) -> tuple[str, ...]:
        """The labels of a listed column, each once, in the order of its categories."""
        return tuple(dict.fromkeys(self.labels or self.values))

    @property
    def class_of(self) -> tuple[int, ...]:
        """The number of the class of each of ``values``."""
        places = {label: place for place, label in enumerate(self.classes)}
        return tuple(places[label] for label in self.labels or self.values)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the columns of X that a feature becomes."""
        if self.type is ColumnType.CATEGORY:
            more = (MISSING,) if self.missing is MissingRule.CATEGORY else ()
            return tuple(f"{self.name}={label}" for label in (*self.classes, *more))
        return (self.name, f"{self.name} {MISSING}") if self.missing is MissingRule.INDICATOR else (self.name,)

    @model_validator(mode="after")
    def _consistent(self) -> ColumnSpec:
        where = f"column {self.name!r}"
        if self.type not in _TYPES[self.role]:
            allowed = ", ".join(sorted(_TYPES[self.role]))
            raise ValueError(f"{where}: a {self.role.value} has one of the types {allowed}, found {self.type.value!r}")
        rules = _RULES[self.type] if self.role is ColumnRole.FEATURE else _ALWAYS
        if self.missing not in rules:
            raise ValueError(
                f"{where}: missing values of a {self.role.value} of type {self.type.value!r} can be handled by "
                f"{', '.join(sorted(rules))}, found {self.missing.value!r}"
            )
        if not self.type.numeric:
            self._require_unset(where, "range", "unit", "centre", "spread", "detection_limit")
        elif self.range is not None and self.range[0] >= self.range[1]:
            raise ValueError(f"{where}: range is [least, most], found {list(self.range)}")
        if (self.centre is None) is not (self.spread is None):
            raise ValueError(f"{where}: centre and spread go together: give both or neither")
        if self.detection_limit is not None and self.role not in (ColumnRole.FEATURE, ColumnRole.TARGET):
            raise ValueError(f"{where}: a {self.role.value} has no detection_limit: leave it out")
        if self.detection_limit is LimitRule.HALF and self.type is ColumnType.INTEGER:
            raise ValueError(f"{where}: half of a limit need not be a whole number: take type 'number'")
        if self.type is not ColumnType.TIME:
            self._require_unset(where, "format")
        if self.type.listed:
            self._require_listed(where)
        else:
            self._require_unset(where, "categories", "labels", "other")
        return self

    def _require_unset(self, where: str, *fields: str) -> None:
        wrong = next((field for field in fields if not _absent(getattr(self, field))), None)
        if wrong is not None:
            raise ValueError(f"{where}: a column of type {self.type.value!r} has no {wrong}: leave it out")

    def _require_listed(self, where: str) -> None:
        if self.type is ColumnType.BOOLEAN:
            self._require_unset(where, "labels", "other") if self.role is not ColumnRole.TARGET else None
            if len(self.values) != 2:
                raise ValueError(f"{where}: categories of a boolean are two, false first, found {len(self.values)}")
        twice = next((one for one, other in pairwise(sorted(map(comparable, self.values))) if one == other), None)
        if twice is not None:
            raise ValueError(f"{where}: category {twice!r} is there more than once")
        if self.labels and len(self.labels) != len(self.values):
            raise ValueError(f"{where}: {len(self.labels)} labels and {len(self.values)} categories: one label each")
        if len(self.classes) < 2:
            raise ValueError(f"{where}: a column of one category tells nothing: give two or more, or leave it out")
        if self.other is not None and self.other not in self.values:
            raise ValueError(f"{where}: other is one of its categories, found {self.other!r}")
