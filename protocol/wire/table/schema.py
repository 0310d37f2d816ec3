"""The table that a study's data come from: its columns, what makes them numbers, and what is set apart for tests.

Every site checks its own table against this and makes its examples by it, so that a column means the same everywhere
(docs/preparing_data.md). Nothing about any patient stands here; ``centre`` and ``spread`` of a column, where they come
from the sites' summary, are made of sums over sites.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import Annotated, ClassVar, Final

from pydantic import Field, model_validator

from protocol.text_forms import comparable
from protocol.wire.message import Message
from protocol.wire.names import NamesKind, require_nameable
from protocol.wire.table.column import ColumnRole, ColumnSpec, ColumnType
from protocol.wire.table.statement import reading_statement
from protocol.wire.task import TaskKind

MAX_SCHEMA_BYTES: Final = 2**17
"""Of a schema's canonical bytes; both operators keep it with the study."""
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
    query: Annotated[str, Field(max_length=MAX_QUERY_CHARACTERS)] = Field(default="", exclude_if=lambda text: not text)

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
