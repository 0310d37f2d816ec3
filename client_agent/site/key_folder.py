"""A site's memory on disk by the signing key that it came with, whichever study asks: its folder, its one secret, its
files.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from pydantic import BaseModel, ValidationError

from host.files import write_durably
from protocol.errors import ConfigurationError

R = TypeVar("R", bound=BaseModel)
SECRET_BYTES: Final = 32
_KEY_CHARACTERS: Final = 32


def folder_of_key(state_dir: Path, memory: str, came_with: str) -> Path:
    """Return the folder of a memory, whatever the site is called and however often its keys were renewed since.

    ``came_with``: the signing key that it first had in the roster's chain, in hexadecimal digits.
    """
    return state_dir / memory / came_with[:_KEY_CHARACTERS]


def drawn_once(path: Path, draw: Callable[[], bytes], used: Callable[[], bool], otherwise: str) -> bytes:
    """The 32 bytes at ``path``, drawn and written the first time they are asked for.

    ``used``: whether something that is kept was made with them, so that others must not take their place;
    ``otherwise`` says what would happen. Call it under the memory's lock.

    Raises: ConfigurationError when they are gone although used, or were cut short
    """
    if not path.exists():
        if used():
            raise ConfigurationError(f"{path} is missing, and {otherwise}; restore it from a backup of the same folder")
        write_durably(path, draw())
    secret = path.read_bytes()
    if len(secret) != SECRET_BYTES:
        raise ConfigurationError(f"{path} holds {len(secret)} bytes, {SECRET_BYTES} were written; restore it")
    return secret


def read_remembered(path: Path, kind: type[R], memory: str) -> R:
    """A file of the ``memory``. Raises: ConfigurationError when it is not what was written"""
    try:
        return kind.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise ConfigurationError(
            f"{path}: not a file of this site's memory of {memory} ({error.error_count()} fields are wrong); restore "
            "it from a backup of the same folder"
        ) from None
