"""A study's models as zip files for a browser on this machine: what ``moiety model export`` writes, card included."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Final
from zipfile import ZIP_STORED, ZipFile

from client_agent.settings import AgentSettings
from client_agent.site.models.finished_model import finished_model
from client_agent.site.models.kept_model import Kept, kept_model
from client_agent.study.asked.at_hand import KnownStudy, note_exported
from host.files import is_full
from protocol.errors import StorageFull, UnknownResource

LAST: Final = "last"
UNFINISHED: Final = "unfinished"
_PREFIX: Final = "for-a-browser-"


def models_at(known: KnownStudy) -> tuple[str, ...]:
    """Return the models of a study that this site holds."""
    state = known.journal.site_state()
    if state is None or not state.model_version:
        return ()
    kept = [which.value for which in Kept if kept_model(known.journal, which) is not None]
    return (LAST, *([UNFINISHED] if finished_model(known.journal) is not None else []), *kept)


def zipped_model(settings: AgentSettings, known: KnownStudy, which: str, *, is_requester: bool) -> BinaryIO:
    """An open file, at its begin, that has no name: it is gone once it is closed, however this process ends.

    What it is made from lies in the study's folder meanwhile, so that deleting the study deletes it too.
    Raises: UnknownResource, ConfigurationError, StorageFull
    """
    if which not in models_at(known):
        raise UnknownResource(f"study {known.study.name!r} has no such model here")
    from client_agent.product.export import digest_in, export
    from client_agent.product.held import held_model

    kept = None if which in (LAST, UNFINISHED) else Kept(which)
    held = held_model(settings, known.study.name, unfinished=which == UNFINISHED, which=kept)
    try:
        with tempfile.TemporaryDirectory(dir=known.journal.folder, prefix=_PREFIX) as made:
            folder = Path(made) / f"{known.study.name}-{which}"
            card = export(held, settings.data, folder, is_requester=is_requester)
            file = _zipped(folder, known.journal.folder)
    except OSError as error:
        if is_full(error):
            raise StorageFull("no space left for this model's files: free space on this machine's disk") from None
        raise
    note_exported(settings, held.study, folder.name, digest_in(card))
    return file


def remove_leftovers(settings: AgentSettings) -> None:
    """Remove models that a killed page left; called before one begins. Also zip files of earlier versions."""
    for folder in settings.state_dir.glob(f"studies/*/{_PREFIX}*"):
        shutil.rmtree(folder, ignore_errors=True)
    for path in settings.state_dir.glob("tmp*.zip"):
        path.unlink(missing_ok=True)


def _zipped(folder: Path, within: Path) -> BinaryIO:
    with ExitStack() as failed:
        file = failed.enter_context(tempfile.TemporaryFile(dir=within))
        with ZipFile(file, "w", ZIP_STORED) as into:
            for path in sorted(folder.iterdir()):
                into.write(path, f"{folder.name}/{path.name}")
        file.seek(0)
        failed.pop_all()
        return file
