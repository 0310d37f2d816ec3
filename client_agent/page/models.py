"""A study's models as zip files for a browser on this machine: what ``moiety model export`` writes, card included."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final
from zipfile import ZIP_STORED, ZipFile

from client_agent.settings import AgentSettings
from client_agent.site.models.finished_model import finished_model
from client_agent.site.models.kept_model import Kept, kept_model
from client_agent.study.asked.at_hand import KnownStudy, note_exported
from protocol.errors import UnknownResource

LAST: Final = "last"
UNFINISHED: Final = "unfinished"


def models_at(known: KnownStudy) -> tuple[str, ...]:
    """Which models of a study this site holds."""
    state = known.journal.site_state()
    if state is None or not state.model_version:
        return ()
    kept = [which.value for which in Kept if kept_model(known.journal, which) is not None]
    return (LAST, *([UNFINISHED] if finished_model(known.journal) is not None else []), *kept)


def zipped_model(settings: AgentSettings, known: KnownStudy, which: str, *, is_requester: bool) -> Path:
    """A new file, which the caller deletes. Raises: UnknownResource, ConfigurationError"""
    if which not in models_at(known):
        raise UnknownResource(f"study {known.study.name!r} has no such model here")
    from client_agent.product.export import digest_in, export
    from client_agent.product.held import held_model

    kept = None if which in (LAST, UNFINISHED) else Kept(which)
    held = held_model(settings, known.study.name, unfinished=which == UNFINISHED, which=kept)
    with tempfile.TemporaryDirectory(dir=settings.state_dir) as made:
        folder = Path(made) / f"{known.study.name}-{which}"
        card = export(held, settings.data, folder, is_requester=is_requester)
        note_exported(settings, held.study, folder.name, digest_in(card))
        with tempfile.NamedTemporaryFile(dir=settings.state_dir, suffix=".zip", delete=False) as file:
            with ZipFile(file, "w", ZIP_STORED) as into:
                for path in sorted(folder.iterdir()):
                    into.write(path, f"{folder.name}/{path.name}")
            return Path(file.name)
