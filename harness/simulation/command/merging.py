"""Folders of one case's runs, such as the shards of several machines, joined into one."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path

from harness.simulation.files.json_lines import append_line, read_lines
from harness.simulation.runs import RunLine
from harness.simulation.store import Results
from harness.simulation.tuning import TUNING, TuningLine
from protocol.errors import ConfigurationError


def merge_results(folders: Sequence[Path], out: Path) -> tuple[RunLine, ...]:
    """Every run of ``folders`` into ``out``, which may hold none yet; returns them by seed, requester and variant.

    What was tried to choose settings is joined too, so that ``moiety simulate`` goes on in ``out``.

    Raises: ConfigurationError for runs of two cases, two versions of a study or of the code, two protections, the same
            run twice, or a folder without a run; nothing is written then
    """
    lines = [(folder, line) for folder in folders for line in _lines_of(folder)]
    _require_alike(lines)
    tried = _tuning_of(folders)
    results = Results(out)
    with results.held():
        if results.lines():
            raise ConfigurationError(f"{out} holds runs already: merge into a new folder")
        for one in tried:
            append_line(out / TUNING, one)
        ordered = sorted((line for _, line in lines), key=lambda line: line.seed)
        for line in ordered:
            results.append(line)
    return tuple(ordered)


def _lines_of(folder: Path) -> tuple[RunLine, ...]:
    lines = Results(folder).lines()
    if not lines:
        raise ConfigurationError(f"{folder} holds no finished run: leave it out, or finish its simulation first")
    return lines


def _require_alike(lines: Sequence[tuple[Path, RunLine]]) -> None:
    """The case, the code and the protection of all; the study of a variant, and its settings at a requester."""
    seen: dict[Hashable, tuple[Path, str]] = {}
    runs: dict[Hashable, Path] = {}
    for folder, line in lines:
        for what, key, value in (
            ("case", "", line.case),
            ("code", "", line.code_digest),
            ("protection", "", line.protection),
            ("study", line.variant, line.study_digest),
            ("rule's settings", (line.variant, line.requester), str(sorted(line.settings.items()))),
        ):
            first, known = seen.setdefault((what, key), (folder, value))
            if known != value:
                raise ConfigurationError(
                    f"{first} and {folder} hold runs of two different {what}s"
                    f"{f' for {line.variant!r}' if key else ''} ({known[:40]} and {value[:40]}), and those are not "
                    "mixed in one table"
                )
        if line.key in runs:
            raise ConfigurationError(f"run {line.key} is in {runs[line.key]} and in {folder}: leave one of them out")
        runs[line.key] = folder


def _tuning_of(folders: Sequence[Path]) -> tuple[TuningLine, ...]:
    """Every combination once. Raises: ConfigurationError where two folders found different accuracies for one"""
    found: dict[Hashable, TuningLine] = {}
    for folder in folders:
        for line in read_lines(folder / TUNING, TuningLine):
            key = (line.variant, line.requester, line.seed, str(line.settings))
            if found.setdefault(key, line) != line:
                raise ConfigurationError(f"{folder} chose settings of {line.variant!r} on other results than the rest")
    return tuple(found.values())
