"""A model that a study begins with instead of a derived one: the file that the requester gives (docs/joining.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ConfigurationError

PRETRAINED: Final = "pretrained.npy"


def load_pretrained(path: Path, dimension: int) -> NDArray[np.float32]:
    """The shared layers' values, one after the other, from a file of numpy's own format.

    Shapes: -> float32[dimension]
    Raises: ConfigurationError when the file holds anything else
    """
    try:
        model = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"pretrained model {path} cannot be read: {error}") from None
    whole = isinstance(model, np.ndarray) and model.dtype == np.float32 and model.shape == (dimension,)
    if not whole or not np.isfinite(model).all():
        found = f"{model.dtype}{list(model.shape)}" if isinstance(model, np.ndarray) else type(model).__name__
        raise ConfigurationError(f"pretrained model {path}: found {found}, expected float32[{dimension}], all finite")
    return np.asarray(model)
