"""The contents of a site's page: studies, rounds, what left, and models to download."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Final
from zipfile import ZIP_STORED, ZipFile

from markupsafe import Markup

from client_agent.learning.scores import FIRST_SCORES, first_scores
from client_agent.page.charts import over_rounds
from client_agent.page.study_state import of_sites
from client_agent.settings import AgentSettings
from client_agent.site.events import METRICS, RoundRecord, SiteValue, after_each, last_metrics, read_metrics
from client_agent.site.models import Kept, finished_model, kept_model
from client_agent.study.approval import KnownStudy, known_study, note_exported
from client_agent.study.plain_words import in_plain_words
from client_agent.study.privacy_spending import own_examples
from client_agent.study.status import SiteStanding, StudyStanding, own_weight, study_standing
from host.files import is_full
from protocol.errors import StorageFull, UnknownResource
from protocol.messages.control import Roster

LAST: Final = "last"
UNFINISHED: Final = "unfinished"
_PREFIX: Final = "for-a-browser-"
_SHOWN_ROUNDS: Final = 200


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
    from client_agent.model.export import digest_in, export
    from client_agent.model.site_model import held_model

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


def _chart(label: str, points: Iterable[tuple[str, int, float]]) -> Markup:
    return Markup(over_rounds(label, points))  # noqa: S704 - the chart escapes every text


def all_studies(settings: AgentSettings, site: SiteStanding) -> list[tuple[StudyStanding, str]]:
    """Each study with its last model's metrics here; those that wait for a person first, those that are over last."""
    studies = sorted(site.studies, key=lambda one: (one.over, not one.waits, one.study))
    last = [last_metrics(settings.state_dir / "studies" / one.study / METRICS) for one in studies]
    return [
        (one, "" if record is None else first_scores(record.test_scores))
        for one, record in zip(studies, last, strict=True)
    ]


def one_study(settings: AgentSettings, roster: Roster, name: str) -> dict[str, object]:
    """Everything that this site knows of a study, as its page shows it.

    Raises: ConfigurationError, also for a study that this site does not know
    """
    known = known_study(settings, roster, name)
    records = read_metrics(known.journal.folder / METRICS)
    contributes = settings.site != roster.requester
    opens = known.study.rule.needs.value if any(_opened(record) for record in records) else ""
    tested = [(record.round, score) for record in records for score in record.test_scores[:FIRST_SCORES]]
    return {
        "known": known,
        "digest": known.study.digest(),
        "standing": study_standing(settings, known),
        "statements": in_plain_words(known.study, roster, settings.policy, own_examples(settings.data)),
        "rounds": [_round(*pair) for pair in reversed(list(after_each(records[-_SHOWN_ROUNDS:])))],
        "metrics": _chart(
            "the model on this site's own test examples",
            ((score.name, number, score.value) for number, score in tested if score.value is not None),
        ),
        "weights": _chart("each site's weight", of_sites(records, lambda record: record.alphas)),
        "distances": _chart(opens, of_sites(records, _opened)),
        "models": models_at(known),
        "opens": opens,
        "may_say": known.waits and not known.over,
        "may_leave": contributes and not (known.waits or known.over) and known.left is None,
    }


def _round(before: RoundRecord | None, record: RoundRecord) -> dict[str, object]:
    weight = own_weight(record)
    return {
        "number": record.round,
        "state": record.state.value,
        "reason": record.reason_after(before),
        "purpose": record.purpose.value,
        "took_part": ", ".join(record.took_part),
        "missing": record.missing_after(before) or ", ".join((*record.failed_check, *record.declined)),
        "own_weight": "" if weight is None else f"{weight:.3f}",
        "opened": _listed(_opened(record)),
        "weights": _listed(record.alphas),
        "isolation": "" if record.isolation is None else f"{record.isolation:.3f}",
        "scores": first_scores(record.test_scores),
        "kilobytes": f"{(record.bytes_up + record.bytes_down) / 1000:.0f}",
    }


def _listed(values: tuple[SiteValue, ...]) -> str:
    return ", ".join(f"{one.site} {one.value:.3g}" for one in values)


def _opened(record: RoundRecord) -> tuple[SiteValue, ...]:
    """The numbers about single sites that the requester opened; contributors' records have none."""
    return record.distances or record.norms or record.inner_products
