"""Versions of the protocol: the one spoken here, and the releases of the package that speak others (docs/protocol.md
3).

A party of another version is not spoken with: what it sends is refused before it is read, both sides say which release
to install, and whoever waited goes on where it was once the versions agree.
"""

from __future__ import annotations

import re
from typing import Final

from protocol.errors import OtherVersion
from protocol.parameters import PROTOCOL_VERSION

RELEASES: Final = {"moiety/1": "0.1.0", "moiety/2": "0.2.0"}
"""The first release of the package that speaks a version; moiety/N begins with release 0.N.0, for those to come too."""
_VERSION: Final = re.compile(r"moiety/([1-9][0-9]{0,5})")


def is_version(text: object) -> bool:
    """Return whether this names a version of the protocol, known here or not."""
    return isinstance(text, str) and _VERSION.fullmatch(text) is not None


def first_release(version: str) -> str:
    """The first release of the package that speaks ``version``."""
    number = _VERSION.fullmatch(version)
    return RELEASES.get(version, f"0.{number[1]}.0" if number else "")


def other_version(what: str, found: str) -> OtherVersion:
    """The error for something that was made under another version; ``found`` is a version."""
    newer, older = first_release(found), first_release(PROTOCOL_VERSION)
    return OtherVersion(
        f"{what} is of protocol version {found}, this party speaks {PROTOCOL_VERSION}: all parties need the same one. "
        f"{found} begins with release {newer} of the moiety package, {PROTOCOL_VERSION} with {older}; install that "
        "release on the side that lacks it. Nothing was changed, and waiting parties go on from there"
    )


def require_version(what: str, found: object) -> None:
    """Raises: OtherVersion, when ``found`` names another version; nothing for what is no version at all"""
    if isinstance(found, str) and is_version(found) and found != PROTOCOL_VERSION:
        raise other_version(what, found)
