"""A study's noise in its sites' updates (docs/protocol.md 19)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field, model_validator

from protocol.wire.message import Message
from protocol.wire.table.column import MissingRule
from protocol.wire.table.schema import Scaling, TableSchema

LEAST_NOISE: Final = 0.1
MOST_NOISE: Final = 1000.0
NO_SERVERS_NOISE: Final = (
    "privacy.unit 'site', noise that the servers add to sums, no longer exists: take unit = 'record', whose noise "
    "every site adds to its own updates, or leave [privacy] out (docs/privacy_budget.md)"
)
_FITTED: Final = (MissingRule.MEDIAN, MissingRule.INDICATOR)


class PrivacySpec(Message):
    """Noise that hides each single record.

    Every site clips each record's gradient to ``record_clip`` and adds discrete Gaussian noise to their sum, of
    ``noise_multiplier`` times ``record_clip`` as its standard deviation; batches are drawn, each record by itself with
    probability batch_size / examples (docs/protocol.md 19). ``unit`` "site" is read in studies of older versions that
    have ended; no party runs one (``Study.unsupported``).
    """

    KIND: ClassVar[str] = "privacy"
    unit: Literal["record", "site"] = "record"
    record_clip: Annotated[float, Field(gt=0, le=2**20, allow_inf_nan=False)] | None = Field(
        default=None, exclude_if=lambda clip: clip is None
    )
    noise_multiplier: Annotated[float, Field(ge=LEAST_NOISE, le=MOST_NOISE, allow_inf_nan=False)]

    @model_validator(mode="after")
    def _clips(self) -> PrivacySpec:
        if self.unit == "record" and self.record_clip is None:
            raise ValueError("privacy.unit 'record' clips every record's gradient: give record_clip (1.0 is usual)")
        return self

    @property
    def clip(self) -> float:
        """The record clip of a study that can run. Raises: ValueError, where the unit is 'site'"""
        if self.record_clip is None:
            raise ValueError("a study whose unit is 'site' clips no record")
        return self.record_clip


def require_public_preparation(schema: TableSchema) -> None:
    """Features are made from the schema alone, not from what a site's other records are.

    Raises: ValueError
    """
    if schema.scaling is Scaling.STANDARD:
        raise ValueError(
            "privacy: scaling 'standard' divides by the spread of each site's own records, so one record changes all "
            "others: take scaling 'range' or 'none', or 'common' with numbers that are known beforehand"
        )
    for column in schema.columns:
        if column.missing in _FITTED:
            raise ValueError(
                f"privacy: column {column.name!r} has missing values filled by the site's own median, so one record "
                "changes others: take 'drop_row', 'category' or 'refuse'"
            )
