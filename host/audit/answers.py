"""An auditor's four questions on one study, from a party's folder: who approved what and when; what left; what was
deleted; which release ran."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from host.audit.entry import Action, AuditEntry
from host.audit.log import AUDIT, read_audit
from protocol.errors import ConfigurationError, MoietyError
from protocol.wire.messages import Signed
from protocol.wire.studies.deletion import DeletionReceipt, ServerDeletionReceipt

_WORDS: Final = frozenset(
    {
        Action.STUDY_CREATED,
        Action.STUDY_REGISTERED,
        Action.APPROVED,
        Action.DECLINED,
        Action.PAUSED,
        Action.RESUMED,
        Action.LEFT,
    }
)
_OUTGOING: Final = frozenset({Action.ROUND, Action.STUDY_ENDED, Action.MODEL_EXPORTED})


@dataclass(frozen=True)
class Release:
    """A release that wrote entries while the study was known here, with the first and the last of their times."""

    version: str
    first_s: float
    last_s: float


@dataclass(frozen=True)
class Answers:
    """Answers to a data subject from one party's folder; ``receipt`` is the signed receipt's path, None where nothing
    was deleted.

    ``releases`` are of every entry from the study's first to its last one, whatever it is about.
    """

    party: str
    digests: tuple[str, ...]
    words: tuple[AuditEntry, ...]
    left: tuple[AuditEntry, ...]
    deleted: tuple[AuditEntry, ...]
    receipt: Path | None
    releases: tuple[Release, ...]


def answers_of(folder: Path, study: str) -> Answers:
    """Once the log's chain is whole and a receipt is the one that the log names.

    Raises: ConfigurationError
    """
    entries = read_audit(folder / AUDIT)
    named = [entry for entry in entries if entry.study == study]
    if not named:
        raise ConfigurationError(f"{folder / AUDIT} names no study {study!r}: is this the folder of a party to it?")
    during = entries[named[0].number - 1 : named[-1].number]
    deleted = tuple(entry for entry in named if entry.action is Action.DELETED)
    return Answers(
        party=named[0].party,
        digests=tuple(dict.fromkeys(entry.study_digest for entry in named if entry.study_digest)),
        words=tuple(entry for entry in named if entry.action in _WORDS),
        left=tuple(entry for entry in named if entry.action in _OUTGOING),
        deleted=deleted,
        receipt=_receipt(folder, study, deleted) if deleted else None,
        releases=tuple(_releases(during)),
    )


def _receipt(folder: Path, study: str, deleted: Sequence[AuditEntry]) -> Path:
    at_site, at_server = folder / "studies" / study / "deletion.json", folder / "deletions" / f"{study}.json"
    path = at_site if at_site.exists() else at_server
    try:
        content = path.read_bytes()
        receipt = _message(content)
    except (OSError, ValueError, MoietyError):
        raise ConfigurationError(
            f"{path}: the receipt that entry {deleted[-1].number} names cannot be read: restore it"
        ) from None
    if not all(receipt.digest() in entry.detail for entry in deleted):
        raise ConfigurationError(f"{path} is not the receipt that entry {deleted[-1].number} of the log names")
    return path


def _message(content: bytes) -> DeletionReceipt | ServerDeletionReceipt:
    try:
        return Signed[DeletionReceipt].model_validate_json(content).message
    except ValidationError:
        return Signed[ServerDeletionReceipt].model_validate_json(content).message


def _releases(entries: Iterable[AuditEntry]) -> Iterable[Release]:
    """In the order in which they ran; a release that came back is there again."""
    found: list[Release] = []
    for entry in entries:
        if found and found[-1].version == entry.version:
            found[-1] = Release(entry.version, found[-1].first_s, entry.time_s)
        else:
            found.append(Release(entry.version, entry.time_s, entry.time_s))
    return found
