"""Lists and parts of lists on the command line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from protocol.errors import ConfigurationError

T = TypeVar("T")
MOST_SEEDS: Final = 10_000
_SEEDS: Final = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")
_SHARD: Final = re.compile(r"(\d{1,6})/(\d{1,6})")


@dataclass(frozen=True)
class Shard:
    """The ``part``-th of ``parts`` of all runs, counted from 1; every run is in exactly one part."""

    part: int = 1
    parts: int = 1

    def of(self, runs: Sequence[T]) -> tuple[T, ...]:
        return tuple(runs[self.part - 1 :: self.parts])


ALL_RUNS: Final = Shard()


def parse_seeds(text: str) -> tuple[int, ...]:
    """``0-9,12`` as numbers, in this order. Raises: ConfigurationError"""
    seeds: list[int] = []
    for part in text.split(","):
        found = _SEEDS.fullmatch(part.strip())
        if found is None:
            raise ConfigurationError(
                f"--seeds: found {text!r}; give whole numbers and ranges of them, separated by commas: 0-9,12"
            )
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first or last - first >= MOST_SEEDS:
            raise ConfigurationError(f"--seeds: found {part.strip()!r}; give the smaller number first: 0-9")
        seeds += range(first, last + 1)
    if len(set(seeds)) != len(seeds):
        raise ConfigurationError(f"--seeds: found {text!r}; every seed once")
    return tuple(seeds)


def parse_shard(text: str) -> Shard:
    """``2/5``. Raises: ConfigurationError"""
    found = _SHARD.fullmatch(text.strip())
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise ConfigurationError(f"--shard: found {text!r}; give i/n, such as 2/5 for the second of five parts")
    return Shard(int(found[1]), int(found[2]))


def parse_names(text: str, option: str) -> tuple[str, ...]:
    """``weight_erosion,local`` as names. Raises: ConfigurationError"""
    names = tuple(part.strip() for part in text.split(","))
    if not all(names) or len(set(names)) != len(names):
        raise ConfigurationError(f"{option}: found {text!r}; give names separated by commas, every one once")
    return names
