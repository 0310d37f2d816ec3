"""Lists on the command line."""

from __future__ import annotations

from protocol.errors import ConfigurationError


def parse_seeds(text: str) -> tuple[int, ...]:
    """``0,1,2`` as numbers. Raises: ConfigurationError"""
    try:
        seeds = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigurationError(f"--seeds: found {text!r}; give whole numbers separated by commas: 0,1,2") from None
    if len(set(seeds)) != len(seeds) or min(seeds) < 0:
        raise ConfigurationError(f"--seeds: found {text!r}; every seed once, none below 0")
    return seeds


def parse_names(text: str, option: str) -> tuple[str, ...]:
    """``weight_erosion,local`` as names. Raises: ConfigurationError"""
    names = tuple(part.strip() for part in text.split(","))
    if not all(names) or len(set(names)) != len(names):
        raise ConfigurationError(f"{option}: found {text!r}; give names separated by commas, every one once")
    return names
