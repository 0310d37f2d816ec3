"""Settings of a site's learning: the sources of models that it allows, and its own trainer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pydantic import Field, model_validator

from host.frozen import Frozen


@dataclass(frozen=True)
class ModelSources:
    """A site's allowed sources of models: architectures by name (None: all, on a researcher's own machine), and the
    folder with the values of frozen layers.
    """

    architectures: tuple[str, ...] | None = ()
    weights: Path | None = None


NO_SOURCES: Final = ModelSources()


ConfigValue = str | int | float | bool


class TrainerSettings(Frozen):
    """A site's own training code: ``program`` calls its function, ClientApp or client ``app``.

    Each description says why the default is what it is.
    """

    kind: Literal["flower", "nvflare", "python"] | None = Field(default=None, description="Moiety trains itself")
    python: Path | None = Field(default=None, description="only a trainer has an environment of its own")
    program: Path | None = Field(default=None, description="as python")
    tensors: Literal["numpy", "torch"] = Field(default="numpy", description="as NVFlare's own default")
    config: dict[str, ConfigValue] = Field(default={}, description="handed on as it is")

    @model_validator(mode="after")
    def _complete(self) -> TrainerSettings:
        if self.kind is not None and (self.python is None or self.program is None):
            raise ValueError("a trainer needs python, the interpreter of its environment, and program, the file to run")
        if self.kind is None and self.program is not None:
            raise ValueError("a trainer needs kind: flower, nvflare or python")
        return self
