"""``[variant.baseline]``: which algorithm takes FedAvg's place, and its numbers."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class FedProxTable(_Table):
    """``mu``: how strongly a site's model is drawn to the one it received."""

    name: Literal["fedprox"]
    mu: Annotated[float, Field(ge=0)] = 0.01


class ScaffoldTable(_Table):
    """No numbers of its own."""

    name: Literal["scaffold"]


class DittoTable(_Table):
    """``pull``: the paper's lambda, how strongly the personal model is drawn to the shared one."""

    name: Literal["ditto"]
    pull: Annotated[float, Field(ge=0)] = 0.1


class PFedMeTable(_Table):
    """``pull``: the paper's lambda; ``steps`` of length ``personal_rate`` towards the personal model, a mini-batch."""

    name: Literal["pfedme"]
    pull: Annotated[float, Field(gt=0)] = 15.0
    steps: Annotated[int, Field(ge=1)] = 5
    personal_rate: Annotated[float, Field(gt=0)] = 0.01


BaselineTable: TypeAlias = Annotated[
    FedProxTable | ScaffoldTable | DittoTable | PFedMeTable, Field(discriminator="name")
]
