"""What a script counts on to be there."""

from __future__ import annotations

from typing import TypeVar

from protocol.errors import ProtocolViolation

T = TypeVar("T")


def there(value: T | None, what: str) -> T:
    """The value. Raises: ProtocolViolation, when the script is not as far as it thinks"""
    if value is None:
        raise ProtocolViolation(f"there is no {what} here: the script is not as far as it thinks")
    return value
