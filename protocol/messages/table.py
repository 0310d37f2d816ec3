"""The table that a study's data come from, and its columns (docs/protocol.md 1).

Every site checks its own table against this and makes its examples by it, so that a column means the same everywhere
(docs/preparing_data.md). Nothing about any patient stands here; ``centre`` and ``spread`` of a column, where they come
from the sites' summary, are made of sums over sites.

    type         values                                        columns of X
    number       decimal numbers                               one
    integer      whole numbers                                 one
    boolean      false or true, as the two ``categories``      one, 0 or 1
    category     one of ``categories``                         one for each label
    time         date or time of an observation                none
    text         a patient's id                                none

What is left at its default is no part of the bytes.

Every site runs a study's query on a database of its own, so a query that no site can run is refused where it is
written. This is no parser of SQL: it splits a text into comments, quoted text, words and signs as PostgreSQL and DuckDB
do, and as SQLite does but for texts in dollar signs, which SQLite does not have. It refuses a nested comment, which not
all end at the same place. What a statement may reach is decided by each site's connection.
"""

from __future__ import annotations

import re
from collections import Counter
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, ClassVar, Final

from pydantic import AfterValidator, Field, model_validator

from protocol.channel.message import Message, omitted
from protocol.messages.model import TaskKind
from protocol.text import MAX_NAME_CHARACTERS, NamesKind, comparable, printable_name, printable_text, require_nameable


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
"""The text beside a column's name that sites are shown; empty where there is nothing to say."""
Finite = Annotated[float, Field(allow_inf_nan=False)]


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
    unit: Text = omitted("")
    range: tuple[Finite, Finite] | None = omitted()
    categories: tuple[Name, ...] = omitted(())
    labels: tuple[Name, ...] = omitted(())
    other: str | None = omitted()
    missing: MissingRule = MissingRule.REFUSE
    missing_marks: tuple[str, ...] | None = omitted()
    centre: Finite | None = omitted()
    spread: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = omitted()
    format: Text = omitted("")
    detection_limit: LimitRule | None = omitted()

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
        wrong = next((one for one in fields if getattr(self, one) != ColumnSpec.model_fields[one].default), None)
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


_PIECE: Final = re.compile(
    r"""
      (?P<skipped>--[^\n]*|/\*(?:(?!\*/|/\*).)*+\*/|[ \t\n]+)
    | (?P<quoted>[eE]'(?:[^'\\]|\\.|'')*+'|'[^']*'|"[^"]*"|`[^`]*`|\$(?P<tag>(?:(?!\d)%W+)?)\$.*?\$(?P=tag)\$)
    | (?P<word>%W[$\w\u0080-\U0010ffff]*)
    | (?P<open>/\*|['"`])
    | (?P<sign>.)
    """.replace("%W", r"[\w\u0080-\U0010ffff]"),  # every character beyond ASCII is a letter to both
    re.DOTALL | re.VERBOSE,
)
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_READS: Final = frozenset({"select", "with"})
_WRITES: Final = re.compile(r'\binto\b|[()] (?:delete from\b|update [\w"`])|\bfor (?:no key |key )?(?:update|share)\b')


def reading_statement(query: str) -> str:
    """Return the query's one statement, without what ends it and follows.

    Raises: ValueError, when it is not one statement that reads
    """
    text = query.replace("\r\n", " \n")  # as long as it was: places below are the query's
    if _CONTROL.search(text):
        raise _refused("it holds a control character; lines end with a line feed")
    words: list[str] = []
    end = None
    before = ""
    for piece in _PIECE.finditer(text):
        if piece.lastgroup == "skipped":
            before += " "
            continue
        if before.startswith("' ") and piece[0][0] == "'":  # PostgreSQL reads E'' and '' on two lines as one text
            raise _refused("a text goes on in another one: join them with ||")
        before = piece[0][-1]
        if piece[0] == ";":
            end = piece.start() if end is None else end
            continue
        if end is not None:
            raise _refused("leave out what follows the first ';'")
        if piece.lastgroup == "open":
            raise _refused(f"{piece[0]} is not closed, or stands in a comment")
        words.append(piece[0].lower() if piece.lastgroup == "word" else piece[0][-1])
    if not words or words[0] not in _READS:
        raise _refused("begin with SELECT or WITH")
    found = _WRITES.search(" ".join(words))
    if found is not None:
        raise _refused(f"leave out {found[0].strip('() ').upper()}")
    return query[:end]


def _refused(why: str) -> ValueError:
    return ValueError(f"query: not one statement that reads: {why}")


MAX_SCHEMA_BYTES: Final = 2**17
"""The most canonical bytes of a schema; both operators keep it with the study."""
MAX_QUERY_CHARACTERS: Final = 2**14


class SplitOrder(StrEnum):
    """The choice of test patients: drawn at random from the seed, or those who were observed last."""

    RANDOM = "random"
    TIME = "time"


class Scaling(StrEnum):
    """The divisor of numeric features: the training part's standard deviation after its mean is taken off, the declared
    range (to 0..1), the study's common scale, or nothing.
    """

    STANDARD = "standard"
    RANGE = "range"
    COMMON = "common"
    NONE = "none"


class SplitSpec(Message):
    """Shares of patients (rows, where no column is a patient's id) for testing and for validation.

    All of a patient's rows are on one side. Random order depends on ``seed`` and the patient's id alone, or on the
    row's place in the file where there is none.
    """

    KIND: ClassVar[str] = "split"
    order: SplitOrder = SplitOrder.RANDOM
    test: Annotated[float, Field(gt=0, lt=1)] = 0.2
    validation: Annotated[float, Field(ge=0, lt=1)] = 0.0
    seed: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _consistent(self) -> SplitSpec:
        if self.test + self.validation >= 1:
            raise ValueError("test and validation take everything: leave a share to train on")
        return self


class TableSchema(Message):
    """Columns in the order of the features of X. Where ``header`` is false, files have no line of names and exactly
    these columns in this order. ``missing_marks`` stand for a missing value, beside an empty field.

    ``query`` makes the table of a site's own database: one statement that reads.
    """

    KIND: ClassVar[str] = "schema"
    columns: tuple[ColumnSpec, ...]
    header: bool = True
    missing_marks: tuple[str, ...] = ()
    split: SplitSpec = SplitSpec()
    scaling: Scaling = Scaling.STANDARD
    query: Annotated[str, Field(max_length=MAX_QUERY_CHARACTERS)] = omitted("")

    def having(self, role: ColumnRole) -> tuple[ColumnSpec, ...]:
        """The columns of this role, in order."""
        return tuple(column for column in self.columns if column.role is role)

    def only(self, role: ColumnRole) -> ColumnSpec | None:
        """The one column of a role that at most one has."""
        return next(iter(self.having(role)), None)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the columns of X."""
        return tuple(name for column in self.having(ColumnRole.FEATURE) for name in column.outputs)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes of y; empty where the target is none of classes."""
        targets = self.having(ColumnRole.TARGET)
        return targets[0].classes if len(targets) == 1 and targets[0].type.listed else ()

    @property
    def tasks(self) -> tuple[TaskKind, ...]:
        """The tasks that its targets fit, the first where a study names none; task 'own' takes any."""
        targets = self.having(ColumnRole.TARGET)
        if not targets:
            return (TaskKind.SURVIVAL,)
        if targets[0].type.listed:
            return (TaskKind.CLASSES,) if len(targets) == 1 else (TaskKind.MULTI_LABEL,)
        whole = targets[0].type is ColumnType.INTEGER
        return (TaskKind.REGRESSION, TaskKind.COUNTS) if whole else (TaskKind.REGRESSION,)

    @property
    def outputs(self) -> int:
        """The number of outputs of a model for its targets."""
        return len(self.class_names) or len(self.having(ColumnRole.TARGET)) or 1

    def marks_of(self, column: ColumnSpec) -> tuple[str, ...]:
        """Return the marks of a missing value in this column; an empty field always is one."""
        return ("", *(self.missing_marks if column.missing_marks is None else column.missing_marks))

    @model_validator(mode="after")
    def _consistent(self) -> TableSchema:
        if len(self.columns) < 2:
            raise ValueError("a schema needs a feature and a target, so two columns or more")
        counts = Counter(comparable(one.name) for one in self.columns)
        twice = next((name for name, times in counts.items() if times > 1), None)
        if twice is not None:
            raise ValueError(f"column {twice!r} is there more than once")
        if not self.having(ColumnRole.FEATURE):
            raise ValueError("no column is a feature: there is nothing to learn from")
        require_nameable(NamesKind.FEATURES, self.feature_names)
        self._require_targets()
        for role in (ColumnRole.PATIENT, ColumnRole.OBSERVED_AT):
            if len(self.having(role)) > 1:
                raise ValueError(f"{len(self.having(role))} columns have role {role.value!r}, one can")
        if self.split.order is SplitOrder.TIME and self.only(ColumnRole.OBSERVED_AT) is None:
            raise ValueError("split.order = 'time' needs a column of role 'observed_at', or take 'random'")
        self._require_scales()
        if self.query:
            reading_statement(self.query)
        size = len(self.canonical())
        if size > MAX_SCHEMA_BYTES:
            raise ValueError(f"a schema holds {MAX_SCHEMA_BYTES} bytes, found {size}: shorten names and categories")
        return self

    def _require_targets(self) -> None:
        targets = self.having(ColumnRole.TARGET)
        times, events = self.having(ColumnRole.SURVIVAL_TIME), self.having(ColumnRole.EVENT)
        survival = (len(times), len(events)) == (1, 1) and not targets
        if not survival and (times or events or not targets):
            raise ValueError(
                "give one column or more of role 'target', or one of role 'survival_time' and one of role 'event'; "
                f"found {len(targets)}, {len(times)} and {len(events)}"
            )
        if len({column.type for column in targets}) > 1:
            raise ValueError("targets of one study have one type, found more")
        if len(targets) > 1 and targets[0].type is ColumnType.CATEGORY:
            raise ValueError("several targets are booleans or numbers, or there is one of type 'category'")

    def _require_scales(self) -> None:
        for column in self.having(ColumnRole.FEATURE):
            if self.scaling is Scaling.RANGE and column.type.numeric and column.range is None:
                raise ValueError(f"scaling = 'range' needs range of column {column.name!r}")
