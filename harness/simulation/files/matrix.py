"""A matrix: one file for many studies that differ in a few values.

    [matrix]         names, such as "mnist_{letter}_{sites}": what each study is called
    [matrix.axes]    lists of rows: every row of one axis is combined with every row of the others

Everywhere else in the file ``"{sites}"`` stands for the row's value, whatever its type, and ``{sites}`` inside a longer
text for its digits or letters.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from protocol.configuration import validated
from protocol.errors import ConfigurationError

Value = float | int | str
Row = Annotated[dict[Annotated[str, Field(pattern=r"^\w+$")], Value], Field(min_length=1)]
_PLACE: Final = re.compile(r"\{(\w+)\}")


class MatrixTable(BaseModel):
    """``[matrix]``."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
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
        values = _joined(rows, source)
        name = str(_filled(matrix.names, values, source))
        if name in made:
            raise ConfigurationError(
                f"{source}: [matrix]: 'names' makes {name!r} twice: name a key of every axis in it"
            )
        made[name] = {key: _filled(value, values, source) for key, value in rest.items()}
    return made


def _joined(rows: tuple[dict[str, Value], ...], source: str) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for row in rows:
        twice = sorted(values.keys() & row.keys())
        if twice:
            raise ConfigurationError(f"{source}: [matrix.axes]: two axes have a value for {twice[0]!r}: leave one out")
        values |= row
    return values


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
