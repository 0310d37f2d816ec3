"""Where a benchmark keeps what it measures with: ``--folder``, made where it is not there."""

from __future__ import annotations

import os
from pathlib import Path

import typer


def made(folder: Path | None) -> Path | None:
    """Raises: typer.BadParameter, where it cannot be made or written to"""
    if folder is None:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(f"{folder} cannot be made: {error.strerror}; name a folder of yours") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise typer.BadParameter(f"{folder} cannot be written to; name a folder of yours")
    return folder
