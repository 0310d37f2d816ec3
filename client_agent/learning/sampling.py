"""Random choices of training: its seeds, and the records that a step with noise draws (docs/protocol.md 19)."""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocol.arithmetic.ring import Usage, expand
from protocol.messages.control import TrainingSpec

_WORD: Final = 2**64


def drawn_rows(examples: int, batch_size: int, seed: bytes) -> NDArray[np.int64]:
    """Rows drawn with probability at most batch_size / examples each, exactly and independently; all where it is 1.

    Shapes: -> int64[about batch_size]; empty at times
    """
    if batch_size >= examples:
        return np.arange(examples)
    threshold = np.uint64(batch_size * _WORD // examples)
    return np.flatnonzero(expand(seed, Usage.NOISE, examples) < threshold)


def drawing_probability(examples: int, batch_size: int) -> float:
    """With which a record is in a step."""
    return min(1.0, batch_size / examples)


def steps_of(examples: int, training: TrainingSpec) -> int:
    """Steps of one round: as many as its passes over the records take, or the one gradient."""
    if training.update == "gradient":
        return 1
    return training.epochs * -(-examples // training.batch_size)


def derived(seed: int, label: str) -> int:
    """A seed for one purpose, 63 bits."""
    return int.from_bytes(hashlib.sha256(f"{seed} {label}".encode()).digest()[:8], "big") >> 1


def site_seed(study_seed: int, site: str) -> int:
    """The seed of one site's training order, from the study's seed; 63 bits."""
    return derived(study_seed, f"site {site}")


def training_seed(local_seed: int | None, site: str, drawn: bytes) -> int:
    """Draw from this site's own random bytes; in a seeded federation on loopback from the seed in its settings.

    Never from the study: a requester that knew the order of the batches would know which examples an update is of.
    """
    return site_seed(int.from_bytes(drawn[:8], "big") if local_seed is None else local_seed, site)
