"""``moiety audit``: a party's actions and who had them done, from its folder or from an export."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Annotated, Final

import typer

from host.audit_log import AUDIT, Action, AuditEntry, digest_of, read_audit, require_continued
from protocol.errors import ConfigurationError, MoietyError
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


app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
FolderArgument = Annotated[
    Path, typer.Argument(help="The state_dir of an agent or the data_dir of a server, or an export of all entries.")
]


@app.callback()
def _audit() -> None:
    """Read the audit log of an agent or of a server: who did what, when."""


@app.command()
def export(
    folder: FolderArgument,
    study: Annotated[str, typer.Option(help="Of this study alone.")] = "",
    actor: Annotated[str, typer.Option(help="By this person alone; 'software' for what nobody said.")] = "",
    action: Annotated[Action | None, typer.Option(help="Of this kind alone.")] = None,
    since: Annotated[str, typer.Option(help="2026-01-31 or 2026-01-31T12:00, UTC.")] = "",
    until: Annotated[str, typer.Option(help="Likewise; entries before it.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="The lines as they are in the log.")] = False,
) -> None:
    """Export the log's entries, oldest first, once its chain is whole.

    Example: moiety audit export state --study heart --json
    """
    since_s, until_s = _time(since, "--since", float("-inf")), _time(until, "--until", float("inf"))
    for entry in read_audit(_log_of(folder)):
        if (
            study in ("", entry.study)
            and actor in ("", entry.actor)
            and action in (None, entry.action)
            and since_s <= entry.time_s < until_s
        ):
            sys.stdout.write((entry.line().decode() if as_json else _in_words(entry)) + "\n")


@app.command()
def answers(
    study: Annotated[str, typer.Argument(help="The study's name.")],
    folders: Annotated[
        list[Path], typer.Argument(help="The state_dir of agents and the data_dir of servers, one or more.")
    ],
) -> None:
    """Answer an auditor's questions on one study.

    Who approved what when, what left, what was deleted, which release ran?

    Example: moiety audit answers heart state
    """
    for folder in folders:
        sys.stdout.writelines(f"{line}\n" for line in _answers(folder, study))


def _answers(folder: Path, study: str) -> list[str]:
    """Once the log's chain is whole and a receipt is the one that the log names. Raises: ConfigurationError"""
    path = _log_of(folder)
    entries = read_audit(path)
    named = [entry for entry in entries if entry.study == study]
    if not named:
        raise ConfigurationError(f"{path} names no study {study!r}: is this the folder of a party to it?")
    digests = dict.fromkeys(entry.study_digest for entry in named if entry.study_digest)
    deleted = [entry for entry in named if entry.action is Action.DELETED]
    lines = [
        f"{named[0].party}: study {study}, digest {', '.join(digests)}",
        *_said("Who approved what, and when", [entry for entry in named if entry.action in _WORDS]),
        *_said("What left, by round", [entry for entry in named if entry.action in _OUTGOING]),
        *_said("What was deleted", deleted),
    ]
    if deleted:
        lines.append(f"    the receipt is {_receipt(folder, study, deleted)}, as the log names it")
    lines.append("  Which release ran")
    for release, ran in groupby(entries[named[0].number - 1 : named[-1].number], key=lambda entry: entry.version):
        times_s = [entry.time_s for entry in ran]  # of every entry between the study's, whatever it is about
        lines.append(f"    {release}, {_moment(times_s[0])} to {_moment(times_s[-1])}")
    return lines


def _said(question: str, entries: Sequence[AuditEntry]) -> list[str]:
    found = [f"    {_in_words(entry)}" for entry in entries]
    return [f"  {question}", *(found or ["    nothing, as the log has it"])]


def _receipt(folder: Path, study: str, deleted: Sequence[AuditEntry]) -> Path:
    from protocol.messages.control import Signed
    from protocol.messages.study import DeletionReceipt, ServerDeletionReceipt

    form: type[Signed[DeletionReceipt] | Signed[ServerDeletionReceipt]] = Signed[DeletionReceipt]
    path = folder / "studies" / study / "deletion.json"
    if not path.exists():
        form, path = Signed[ServerDeletionReceipt], folder / "deletions" / f"{study}.json"
    try:
        digest = form.model_validate_json(path.read_bytes()).message.digest()
    except (OSError, ValueError, MoietyError):
        raise ConfigurationError(
            f"{path}: the receipt that entry {deleted[-1].number} names cannot be read: restore it"
        ) from None
    if not all(digest in entry.detail for entry in deleted):
        raise ConfigurationError(f"{path} is not the receipt that entry {deleted[-1].number} of the log names")
    return path


@app.command()
def verify(
    folder: FolderArgument,
    against: Annotated[Path | None, typer.Option(help="An earlier export with --json, all of it.")] = None,
) -> None:
    """Verify that every line of the log follows the one before it.

    With --against: that the log still holds an earlier export.

    Example: moiety audit verify state --against export.jsonl
    """
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
