"""The targets of a table's rows, in the form that the study's task takes (client_agent.tasks.targets)."""

from __future__ import annotations

import numpy as np

from client_agent.data.rows import Rows
from client_agent.data.values import Values
from protocol.errors import ConfigurationError
from protocol.messages.control import ColumnRole, TableSchema


def targets(schema: TableSchema, rows: Rows) -> Values:
    """int64[n], classes; float32[n, k] of 0 and 1; float32[n] or [n, k]; of survival float32[n, 2], time and event.

    Raises: ConfigurationError beyond float32
    """
    by_column = dict(zip((column.name for column in schema.columns), rows.columns, strict=True))
    survival = [*schema.having(ColumnRole.SURVIVAL_TIME), *schema.having(ColumnRole.EVENT)]
    named = [column.name for column in survival or schema.having(ColumnRole.TARGET)]
    chosen = [by_column[name] for name in named]
    if schema.class_names:
        return chosen[0]
    with np.errstate(over="ignore"):
        y = np.column_stack(chosen).astype(np.float32)
    wrong = ~np.isfinite(y).all(axis=0)
    if wrong.any():
        name = named[int(np.flatnonzero(wrong)[0])]
        raise ConfigurationError(f"target {name!r} holds numbers beyond float32: bring it to another unit")
    return y[:, 0] if y.shape[1] == 1 else y
