"""Numbers in a request's address, bounded where they arrive: a database takes no larger ones."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Path

from protocol.channel.message import MOST_ROUNDS

LARGEST: Final = 2**53
"""Of a count that grows while a server lives; what JSON's readers keep exactly."""
Round = Annotated[int, Path(ge=1, le=MOST_ROUNDS)]
Attempt = Annotated[int, Path(ge=1, le=MOST_ROUNDS)]
