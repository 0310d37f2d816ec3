"""Settings of a site's learning: the sources of models that it allows, and its own trainer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


@dataclass(frozen=True)
class ModelSources:
    """A site's allowed sources of models: architectures by name (None: all, on a researcher's own machine), and the
    folder with the values of frozen layers.
    """

    architectures: tuple[str, ...] | None = ()
    weights: Path | None = None


NO_SOURCES: Final = ModelSources()


ConfigValue = str | int | float | bool


class TrainerSettings(BaseModel):
    """``kind``: what the program is written for; None: Moiety trains itself.

    ``python`` is the interpreter of the environment in which the framework is installed, ``program`` the site's file,
    ``name`` what in it is the ClientApp or client (Flower) or the function (python). ``tensors``: whether an NVFlare
    script gets numpy arrays or torch tensors. ``timeout_s`` is for one round. ``config`` is handed to the program.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    kind: Literal["flower", "nvflare", "python"] | None = None
    python: Path | None = None
    program: Path | None = None
    name: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] = "app"
    tensors: Literal["numpy", "torch"] = "numpy"
    timeout_s: Annotated[float, Field(gt=0, le=7 * 86400, strict=True)] = 3600.0
    config: dict[str, ConfigValue] = {}

    @model_validator(mode="after")
    def _complete(self) -> TrainerSettings:
        if self.kind is not None and (self.python is None or self.program is None):
            raise ValueError("a trainer needs python, the interpreter of its environment, and program, the file to run")
        if self.kind is None and self.program is not None:
            raise ValueError("a trainer needs kind: flower, nvflare or python")
        return self
