"""Seeds of a site's training: the order of its batches, and what else is drawn."""

from __future__ import annotations

import hashlib


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
