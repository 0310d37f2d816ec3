"""The folder for the counts of ``make soak``, for the page of results."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from pydantic import BaseModel

_FOLDER: Final = "MOIETY_SOAK_OUT"


def soak_file(name: str) -> Path:
    """A file of that name in ``results-out/soak``, or in the folder that MOIETY_SOAK_OUT names."""
    folder = Path(os.environ.get(_FOLDER, "results-out/soak"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name


def keep_counts(name: str, counts: BaseModel) -> None:
    """As JSON; a run that fails leaves its counts too."""
    soak_file(name).write_text(counts.model_dump_json(indent=1) + "\n", encoding="utf-8")
