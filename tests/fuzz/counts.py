"""The counts of ``make soak``, as JSON in ``results-out/soak`` or in the folder that MOIETY_SOAK_OUT names."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any


def keep_counts(name: str, counts: Any) -> None:
    """Write a dataclass; a run that fails leaves its counts too."""
    folder = Path(os.environ.get("MOIETY_SOAK_OUT", "results-out/soak"))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(asdict(counts), indent=1) + "\n", encoding="utf-8")
