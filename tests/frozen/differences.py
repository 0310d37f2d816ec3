"""The differences of two JSON values, place by place."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any


def differences(before: Any, now: Any, where: str = "", within: float = 0.0) -> Iterator[str]:
    """Every place at which they differ; numbers by more than ``within``."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted({*before, *now}):
            place = f"{where}.{key}" if where else key
            if key not in now:
                yield f"{place} is gone"
            elif key not in before:
                yield f"{place} is new"
            else:
                yield from differences(before[key], now[key], place, within)
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now) and within:
        for place, (one, other) in enumerate(zip(before, now, strict=True)):
            yield from differences(one, other, f"{where}[{place}]", within)
    elif before != now and not _near(before, now, within):
        yield f"{where}: {_short(before)} became {_short(now)}"


def _near(before: Any, now: Any, within: float) -> bool:
    return isinstance(before, float) and isinstance(now, float) and math.isclose(before, now, rel_tol=0, abs_tol=within)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
