"""A common scaling from a summary, as a file that data are prepared with: one mean and SD per column for all sites.

    {"scaling": {"study": "...", "round": 1, "columns": [{"name": "age", "mean": 61.2, "sd": 11.4}]}, "digest": "..."}

The digest is the SHA-256 of the canonical content, so that two sites can tell that they scaled alike.
"""

from __future__ import annotations

import codecs
import hashlib
import json
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from protocol.arithmetic.constant import safe_spread
from protocol.errors import ConfigurationError
from protocol.summary.opened import NumericSummary, TableOne


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ColumnScaling(_Frozen):
    """A value x becomes (x - mean) / sd."""

    name: str
    mean: Annotated[float, Field(allow_inf_nan=False)]
    sd: Annotated[float, Field(gt=0, allow_inf_nan=False)]


class CommonScaling(_Frozen):
    """Every numeric column of which the mean is known, in the schema's order; the others stay as they are."""

    study: str
    round: int
    columns: tuple[ColumnScaling, ...]

    @property
    def digest(self) -> str:
        """SHA-256, hexadecimal, of keys in order and numbers in their shortest form."""
        content = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(content.encode()).hexdigest()


class ScalingFile(_Frozen):
    """The contents of the file."""

    scaling: CommonScaling
    digest: str


def scaling_of(table: TableOne, study: str, round_number: int) -> CommonScaling:
    """The pooled mean and SD of every numeric column.

    An SD that the sites' rounding hides is replaced by its upper bound; a column without any spread has SD 1.
    """
    columns = tuple(
        ColumnScaling(name=one.name, mean=one.mean, sd=safe_spread(one.mean, _spread(one) or 1.0))
        for one in table.numeric
        if one.mean is not None
    )
    return CommonScaling(study=study, round=round_number, columns=columns)


def _spread(column: NumericSummary) -> float | None:
    if column.sd is None or column.sd_within is None or not spread_unknown(column):
        return column.sd
    return column.sd + column.sd_within


def spread_unknown(column: NumericSummary) -> bool:
    """Tell whether the sites' rounding may have made half of the SD, or all of it: few values, or too wide a range."""
    return column.sd is not None and column.sd_within is not None and column.sd_within > column.sd


def scaling_text(scaling: CommonScaling) -> str:
    """The file's content."""
    return ScalingFile(scaling=scaling, digest=scaling.digest).model_dump_json(indent=2) + "\n"


def parse_scaling(content: bytes, source: str) -> CommonScaling:
    """A scaling file's content, checked against its digest; ``source`` begins every error.

    Raises: ConfigurationError
    """
    try:
        found = ScalingFile.model_validate_json(content.removeprefix(codecs.BOM_UTF8))
    except ValidationError as error:
        raise ConfigurationError(
            f"{source} is no scaling file ({error.error_count()} fields are wrong): take the one that "
            "'moiety study summary --scaling' writes"
        ) from None
    if found.scaling.digest != found.digest:
        raise ConfigurationError(f"{source}: its content does not have the digest that it names; fetch it again")
    return found.scaling
