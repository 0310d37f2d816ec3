"""A study's noise: in its sites' updates, or in their sums (docs/protocol.md 19, 21)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field, model_validator

from protocol.wire.message import Message
from protocol.wire.table.column import MissingRule
from protocol.wire.table.schema import Scaling, TableSchema

LEAST_NOISE: Final = 0.1
MOST_NOISE: Final = 1000.0
PrivacyUnit = Literal["record", "site"]
_FITTED: Final = (MissingRule.MEDIAN, MissingRule.INDICATOR)


class PrivacySpec(Message):
    """The difference between neighbouring data sets (``unit``), and the noise that hides it.

    ``record``: every site clips each record's gradient to ``record_clip`` and adds discrete Gaussian noise to their
    sum, of ``noise_multiplier`` times ``record_clip`` as its standard deviation; batches are drawn, each record by
    itself with probability batch_size / examples (docs/protocol.md 19). ``site``: each of the two servers adds noise to
    its half of every sum, of ``noise_multiplier`` times the longest update, the study's clip norm and its rounding
    (docs/protocol.md 21); no record is clipped.
    """

    KIND: ClassVar[str] = "privacy"
    unit: PrivacyUnit = "record"
    record_clip: Annotated[float, Field(gt=0, le=2**20, allow_inf_nan=False)] | None = Field(
        default=None, exclude_if=lambda clip: clip is None
    )
    noise_multiplier: Annotated[float, Field(ge=LEAST_NOISE, le=MOST_NOISE, allow_inf_nan=False)]

    @model_validator(mode="after")
    def _one_unit(self) -> PrivacySpec:
        if self.unit == "record" and self.record_clip is None:
            raise ValueError("privacy.unit 'record' clips every record's gradient: give record_clip (1.0 is usual)")
        if self.unit == "site" and self.record_clip is not None:
            raise ValueError(
                "privacy.unit 'site' hides a whole site by noise of the servers, and a study has one unit: leave "
                "record_clip out, or take unit = 'record', whose noise every site adds itself"
            )
        return self

    @property
    def clip(self) -> float:
        """The record clip of a study of that unit. Raises: ValueError in any other"""
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
