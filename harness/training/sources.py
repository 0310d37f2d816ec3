"""What a researcher's own runs make networks of: every architecture that is installed, and MOIETY_WEIGHTS' files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from client_agent.architectures.sources import ModelSources

WEIGHTS_VARIABLE: Final = "MOIETY_WEIGHTS"


def own_sources() -> ModelSources:
    """Frozen layers come from the folder that MOIETY_WEIGHTS names."""
    folder = os.environ.get(WEIGHTS_VARIABLE)
    return ModelSources(architectures=None, weights=None if folder is None else Path(folder))
