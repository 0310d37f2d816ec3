"""``moiety audit``: a party's actions and who had them done, from its folder or from an export.

An auditor's four questions on one study, from a party's folder: who approved what and when; what left; what was
deleted; which release ran.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import typer
from pydantic import ValidationError

from host.audit_log import AUDIT, Action, AuditEntry, digest_of, read_audit, require_continued
from host.command_line import command
from protocol.errors import ConfigurationError, MoietyError
from protocol.messages.control import Signed
from protocol.messages.study import DeletionReceipt, ServerDeletionReceipt
from protocol.text import printable

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


app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
FolderArgument = Annotated[
    Path, typer.Argument(help="The state_dir of an agent or the data_dir of a server, or an export of all entries.")
]


@app.callback()
def _audit() -> None:
    """Read the audit log of an agent or of a server: who did what, when."""


@dataclass(frozen=True)
class _Export:
    """Entries of the log, oldest first, once its chain is whole: all, or those that the options name."""

    folder: FolderArgument
    study: Annotated[str, typer.Option(help="Of this study alone.")] = ""
    actor: Annotated[str, typer.Option(help="By this person alone; 'software' for what nobody said.")] = ""
    action: Annotated[Action | None, typer.Option(help="Of this kind alone.")] = None
    since: Annotated[str, typer.Option(help="2026-01-31 or 2026-01-31T12:00, UTC.")] = ""
    until: Annotated[str, typer.Option(help="Likewise; entries before it.")] = ""
    as_json: Annotated[bool, typer.Option("--json", help="The lines as they are in the log.")] = False


def _export(asked: _Export) -> None:
    since, until = _time(asked.since, "--since", float("-inf")), _time(asked.until, "--until", float("inf"))
    for entry in read_audit(_log_of(asked.folder)):
        wanted = (
            asked.study in ("", entry.study)
            and asked.actor in ("", entry.actor)
            and asked.action in (None, entry.action)
            and since <= entry.time_s < until
        )
        if wanted:
            sys.stdout.write((entry.line().decode() if asked.as_json else _in_words(entry)) + "\n")


app.command("export")(command(_Export, _export))


@app.command()
def answers(
    study: Annotated[str, typer.Argument(help="The study's name.")],
    folders: Annotated[
        list[Path], typer.Argument(help="The state_dir of agents and the data_dir of servers, one or more.")
    ],
) -> None:
    """An auditor's questions on one study: who approved what when, what left, what was deleted, which release ran."""
    for folder in folders:
        _log_of(folder)
        found = answers_of(folder, study)
        sys.stdout.write(f"{found.party}: study {study}, digest {', '.join(found.digests)}\n")
        _said("Who approved what, and when", found.words)
        _said("What left, by round", found.left)
        _said("What was deleted", found.deleted)
        if found.receipt is not None:
            sys.stdout.write(f"    the receipt is {found.receipt}, as the log names it\n")
        sys.stdout.write("  Which release ran\n")
        for one in found.releases:
            sys.stdout.write(f"    {one.version}, {_moment(one.first_s)} to {_moment(one.last_s)}\n")


def _said(question: str, entries: Sequence[AuditEntry]) -> None:
    sys.stdout.write(f"  {question}\n")
    for entry in entries:
        sys.stdout.write(f"    {_in_words(entry)}\n")
    if not entries:
        sys.stdout.write("    nothing, as the log has it\n")


@app.command()
def verify(
    folder: FolderArgument,
    against: Annotated[Path | None, typer.Option(help="An earlier export with --json, all of it.")] = None,
) -> None:
    """Verify that every line follows the one before it; with --against, that the log still holds that export."""
    entries = read_audit(_log_of(folder))
    if against is not None:
        require_continued(entries, _exported(against), str(against))
    head = digest_of(entries[-1].line()) if entries else "-"
    sys.stdout.write(f"{len(entries)} entries, each follows the one before; the last one's digest is {head}\n")


def _exported(path: Path) -> list[AuditEntry]:
    """Raises: ConfigurationError"""
    try:
        return [AuditEntry.model_validate_json(line) for line in path.read_bytes().splitlines()]
    except (OSError, ValueError):
        raise ConfigurationError(f"option --against: {path} is no export of 'moiety audit export --json'") from None


def _log_of(folder: Path) -> Path:
    path = folder / AUDIT if folder.is_dir() else folder
    if not path.is_file():
        raise ConfigurationError(
            f"{path} does not exist: name the state_dir of an agent or the data_dir of a server, as its settings do"
        )
    return path


def _time(text: str, option: str, otherwise: float) -> float:
    if not text:
        return otherwise
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(f"option {option}: found {text!r}; give 2026-01-31 or 2026-01-31T12:00") from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _in_words(entry: AuditEntry) -> str:
    when = _moment(entry.time_s)
    where = f" {entry.study}" if entry.study else ""
    rounds = "" if entry.round is None else f" round {entry.round}"
    detail = f": {printable(entry.detail)}" if entry.detail else ""
    by = f"{printable(entry.actor)} at {entry.party} ({entry.version})"
    return f"{entry.number} {when} {by}{where}{rounds} {entry.action.value}{detail}"


def _moment(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M:%S")
