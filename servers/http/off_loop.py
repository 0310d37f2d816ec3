"""Split work between the event loop and threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")
SHORT_BYTES: Final = 2**16
"""Up to this length sealing, opening and hashing take about a tenth of a millisecond, less than a thread to wake up."""


async def off_loop(length_bytes: int, work: Callable[[], T]) -> T:
    """The work, in a thread where it is on more bytes than the event loop should wait for."""
    return work() if length_bytes < SHORT_BYTES else await asyncio.to_thread(work)
