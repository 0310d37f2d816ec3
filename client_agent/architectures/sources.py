"""The sources of a study's networks that a site allows: its settings ``architectures`` and ``weights``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True)
class ModelSources:
    """A site's allowed sources of models: architectures by name (None: all, on a researcher's own machine), and the
    folder with the values of frozen layers.
    """

    architectures: tuple[str, ...] | None = ()
    weights: Path | None = None


NO_SOURCES: Final = ModelSources()
