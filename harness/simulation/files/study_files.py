"""From what a person types to the tables of a study: a file, a study of a matrix, or the name of one that comes along.

``harness/studies/mnist_b_10.toml`` is no file: ``mnist.toml`` beside it holds a matrix that makes a study of that name.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from harness.simulation.files.matrix import studies_of
from host.settings import read_text
from protocol.configuration import parse_toml
from protocol.errors import ConfigurationError

STUDIES: Final = Path(__file__).resolve().parents[2] / "studies"
"""The studies that come along."""


@dataclass(frozen=True)
class StudyFile:
    """The tables of one study, not checked yet; ``source`` says where they are from."""

    source: str
    tables: dict[str, Any]

    @property
    def is_case(self) -> bool:
        return "case" in self.tables

    @property
    def is_personal_case(self) -> bool:
        return "personal" in self.tables


def read_study_file(path: Path) -> StudyFile:
    """The study that ``path`` names; a bare name, such as ``mnist_b_10``, is one of those that come along.

    Raises: ConfigurationError that names the studies which there are
    """
    bare = path.parent == Path() and not path.suffix and not path.exists()
    wanted = STUDIES / f"{path}.toml" if bare else path
    if wanted.exists() or not wanted.parent.is_dir():
        tables = parse_toml(read_text(wanted), str(wanted))
        if "matrix" in tables:
            raise ConfigurationError(
                f"{wanted} holds many studies: name one of {', '.join(studies_of(tables, str(wanted)))}"
            )
        return StudyFile(str(wanted), tables)
    files = _toml_files(wanted.parent)
    for file, tables in files.items():
        if "matrix" in tables and wanted.suffix == file.suffix:
            studies = studies_of(tables, str(file))
            if wanted.stem in studies:
                return StudyFile(f"{file} ({wanted.stem})", studies[wanted.stem])
    known = ", ".join(_names(files)) or "none"
    raise ConfigurationError(
        f"{path} cannot be read: no such file, and no such study; in {wanted.parent} there are: {known}"
    )


def study_names(folder: Path = STUDIES) -> tuple[str, ...]:
    """Every study in a folder, those of its matrices too. Raises: ConfigurationError"""
    return _names(_toml_files(folder))


def _names(files: dict[Path, dict[str, Any]]) -> tuple[str, ...]:
    """Other TOML files may lie in a person's folder; a study has a model."""
    names: list[str] = []
    for file, tables in files.items():
        if "matrix" in tables:
            names += studies_of(tables, str(file))
        elif "model" in tables:
            names.append(file.stem)
    return tuple(sorted(names))


def _toml_files(folder: Path) -> dict[Path, dict[str, Any]]:
    """What cannot be read is left out: it is another file than the one that was named."""
    found: dict[Path, dict[str, Any]] = {}
    for file in sorted(folder.glob("*.toml")):
        try:
            found[file] = parse_toml(read_text(file), str(file))
        except ConfigurationError:
            continue
    return found
