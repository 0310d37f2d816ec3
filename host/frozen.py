"""Records that nobody changes and that have no other fields than those they name."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """A record; whatever reads one refuses unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")
