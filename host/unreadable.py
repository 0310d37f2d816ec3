"""Why a file cannot be read, and what to do about it, in words for whoever named it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_COMES_FROM: Final = {
    "settings.toml": "is the folder right? 'moiety server init' and 'moiety site join' make one",
    "roster.toml": (
        "in a folder that 'moiety site join' made, 'moiety site status --wait --config SETTINGS.toml' brings it once "
        "the federation is founded"
    ),
    "keys.toml": "is the folder right? Keys that are lost come back from a backup alone",
}


def why_unreadable(path: Path, error: OSError | UnicodeDecodeError) -> str:
    """One sentence with the next step."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not text in UTF-8: is it the right file? If it is, save it as UTF-8"
    if isinstance(error, FileNotFoundError):
        return f"there is no such file: {_COMES_FROM.get(path.name, 'is the path right?')}"
    if isinstance(error, PermissionError):
        user = os.geteuid()
        return f"user {user} may not: give it to that user (chown {user} {path}), with all folders on the way"
    if isinstance(error, IsADirectoryError):
        return "it is a folder: name a file in it (a container engine makes one where a mounted file was missing)"
    return f"{error.strerror or type(error).__name__}: is it the right path, and its disk in order?"
