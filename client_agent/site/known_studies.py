"""Studies that this site has heard of, each fetched once from server A and kept: an agent without work asks for none.

known/DIGEST.json      the study as the requester and server A signed it
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from host.files import new_folder, write_durably
from protocol.errors import AnnouncementMismatch, MoietyError
from protocol.messages.control import ListedStudy, Signed, Study, StudyIndex

_FOLDER: Final = "known"


class KnownStudies:
    """Whoever reads the folder reads studies; nothing of this site."""

    def __init__(self, state_dir: Path) -> None:
        self._folder = state_dir / _FOLDER

    def study(self, listed: ListedStudy, fetch: Callable[[str], Signed[Study]]) -> Signed[Study]:
        """The study that an index names, of that digest; ``fetch`` gets one by its name that is not here yet.

        Raises: AnnouncementMismatch, when another one comes; what ``fetch`` raises
        """
        path = self._path(listed.study_digest)
        known = _read(path)
        if known is not None and _is(known, listed):
            return known
        signed = fetch(listed.name)
        if not _is(signed, listed):
            raise AnnouncementMismatch(f"study {listed.name!r}: the server lists another one than it shows")
        new_folder(self._folder)
        write_durably(path, signed.canonical())
        return signed

    def keep_only(self, index: StudyIndex) -> None:
        """Those that a server lists no more are forgotten."""
        listed = {self._path(one.study_digest).name for one in index.studies}
        for path in self._folder.glob("*.json"):
            if path.name not in listed:
                path.unlink()

    def _path(self, digest: str) -> Path:
        return self._folder / f"{digest}.json"


def _is(signed: Signed[Study], listed: ListedStudy) -> bool:
    return signed.message.name == listed.name and signed.message.digest() == listed.study_digest


def _read(path: Path) -> Signed[Study] | None:
    """None where there is none, or a crash or another version left what cannot be read: it is fetched again."""
    try:
        return Signed[Study].parse(path.read_bytes())
    except (OSError, MoietyError):
        return None
