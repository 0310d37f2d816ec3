"""What a study fixes about the noise in its sites' updates (docs/protocol.md 19)."""

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
    """Every site clips each record's gradient to ``record_clip`` and adds discrete Gaussian noise to their sum.

    The noise's standard deviation is ``noise_multiplier`` times ``record_clip``. Batches are drawn, each record by
    itself with probability batch_size / examples. ``unit`` is what a neighbouring data set lacks: a record.
    """

    KIND: ClassVar[str] = "privacy"
    unit: PrivacyUnit = "record"
    record_clip: Annotated[float, Field(gt=0, le=2**20, allow_inf_nan=False)]
    noise_multiplier: Annotated[float, Field(ge=LEAST_NOISE, le=MOST_NOISE, allow_inf_nan=False)]

    @model_validator(mode="after")
    def _built(self) -> PrivacySpec:
        if self.unit != "record":
            raise ValueError(
                "privacy.unit 'site' is noise that the two servers add to sums; it is not built: take unit = 'record', "
                "whose noise every site adds itself"
            )
        return self


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
