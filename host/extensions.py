"""Extensions by others without a change here: rules, data sets, models and metrics, called ``WHOSE:NAME``.

WHOSE is an installed package with entry points of group ``moiety.rules``, ``moiety.datasets``, ``moiety.models`` or
``moiety.metrics``, or a Python file that was named (``--plugin mine.py``: ``mine``), which has them in dictionaries
``RULES``, ``DATASETS``, ``MODELS`` and ``METRICS``. Their code runs with the rights of whoever starts the simulation.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib.machinery import SourceFileLoader
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from types import CodeType, ModuleType
from typing import Final

from protocol.errors import ConfigurationError
from protocol.rules.registry import SEPARATOR


class FreshSource(SourceFileLoader):
    """Compiles the file whenever it is loaded, and keeps no bytecode beside it."""

    def get_code(self, fullname: str) -> CodeType:
        """Raises: SyntaxError, OSError"""
        return self.source_to_code(self.get_data(self.path), self.path)


FOLDER: Final = "folder:"
"""The beginning of the name of data that lie in folders of their own, one per site."""
_NAME: Final = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?):([a-z0-9_]+)")
_FILE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_]*\.py")


class Kind(StrEnum):
    """The kinds of extensions."""

    RULE = "rule"
    DATASET = "dataset"
    MODEL = "model"
    METRIC = "metric"

    @property
    def group(self) -> str:
        """The entry points' group."""
        return f"moiety.{self.value}s"

    @property
    def table(self) -> str:
        """The name of the dictionary in a Python file."""
        return f"{self.value.upper()}S"


@dataclass(frozen=True)
class Extension:
    """The object behind a name; nothing of a package has been imported yet. ``version`` of a file is its digest."""

    kind: Kind
    name: str
    package: str
    version: str
    where: str
    find: Callable[[], object]

    def load(self) -> object:
        """Import the extension. Raises: ConfigurationError when it cannot be imported"""
        try:
            return self.find()
        except Exception as error:  # whatever a foreign module raises while it is imported
            raise ConfigurationError(
                f"{self.kind} '{self.name}' of {self.package} {self.version} cannot be loaded from "
                f"{self.where}: {type(error).__name__}: {error}"
            ) from error


@dataclass(frozen=True)
class PluginFile:
    """A Python file that was loaded, and the SHA-256 of what it was then."""

    path: Path
    digest: str
    module: ModuleType


_files: Final[dict[str, PluginFile]] = {}
"""The files of this process by their names without ``.py``; processes of their own load them again."""


def is_brought(name: str) -> bool:
    """Return whether a name is an extension's; of ours, only data in folders have a colon."""
    return SEPARATOR in name and not name.startswith(FOLDER)


def extension(kind: Kind, name: str) -> Extension:
    """``WHOSE:NAME``. Raises: ConfigurationError that says what to install, or what there is"""
    parts = _NAME.fullmatch(name)
    if parts is None:
        raise ConfigurationError(
            f"{kind} {name!r}: what others bring is called PACKAGE:{kind.name}, such as 'my-package:mine'"
        )
    whose, short = parts[1], parts[2]
    return _of_file(kind, name, _files[whose], short) if whose in _files else _of_package(kind, name, whose, short)


def load_plugins(paths: Iterable[Path]) -> None:
    """Make the files' rules, data sets, models and metrics known to this process; a file that changed is read again.

    Raises: ConfigurationError for a file that is missing, that does not load, or that is called like another one
    """
    for path in paths:
        _load(Path(os.path.realpath(path)))


@dataclass(frozen=True)
class LoadedPlugin:
    """A file as it was when it was loaded."""

    path: Path
    digest: str


def loaded_plugins() -> tuple[LoadedPlugin, ...]:
    """Return the plug-ins that another process has to load too."""
    return tuple(LoadedPlugin(file.path, file.digest) for file in _files.values())


def load_again(plugins: Iterable[LoadedPlugin]) -> None:
    """In a process of its own. Raises: ConfigurationError for a file that was changed meanwhile"""
    for plugin in plugins:
        load_plugins((plugin.path,))
        if _files[plugin.path.stem].digest != plugin.digest:
            raise ConfigurationError(f"--plugin: {plugin.path} was changed while the simulation ran: start it again")


def _load(path: Path) -> None:
    if not path.exists():
        raise ConfigurationError(f"--plugin: {path} does not exist: give the path of a Python file")
    if not _FILE.fullmatch(path.name) or not path.is_file():
        raise ConfigurationError(
            f"--plugin: {path} is no Python file, or its name is not made of letters, digits and underscores"
        )
    known, digest = _files.get(path.stem), hashlib.sha256(path.read_bytes()).hexdigest()
    if known is not None and known.path != path:
        raise ConfigurationError(f"--plugin: {known.path} and {path} have one name: rename one of them")
    if known is None or known.digest != digest:
        _files[path.stem] = PluginFile(path, digest, _imported(path))


def _imported(path: Path) -> ModuleType:
    name = f"moiety_plugin_{path.stem}"
    specification = importlib.util.spec_from_file_location(name, path, loader=FreshSource(name, str(path)))
    if specification is None or specification.loader is None:
        raise ConfigurationError(f"--plugin: {path} is no Python file")
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module  # dataclasses look their module up there
    try:
        specification.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ConfigurationError(f"--plugin: {path} does not load: {type(error).__name__}: {error}") from error
    return module


def _of_file(kind: Kind, name: str, file: PluginFile, short: str) -> Extension:
    offered = getattr(file.module, kind.table, {})
    if not isinstance(offered, Mapping) or short not in offered:
        names = sorted(map(str, offered)) if isinstance(offered, Mapping) else []
        raise ConfigurationError(
            f"{kind} {name!r}: {file.path} offers no such {kind}; its {kind.table} has {', '.join(names) or 'nothing'}"
        )
    return Extension(kind, name, file.path.stem, file.digest, str(file.path), lambda: offered[short])


def _of_package(kind: Kind, name: str, package: str, short: str) -> Extension:
    try:
        found = distribution(package)
    except PackageNotFoundError:
        raise ConfigurationError(
            f"{kind} {name!r} is not here: if it is in a file, name that with --plugin {package}.py; if it is in a "
            "package, install the package that offers it"
        ) from None
    offered = {entry.name: entry for entry in found.entry_points.select(group=kind.group)}
    if short not in offered:
        raise ConfigurationError(
            f"{kind} {name!r}: {package} {found.version} offers no such {kind}; it offers "
            f"{_listed(offered, found, kind)}"
        )
    entry = offered[short]
    return Extension(kind, f"{package}:{short}", package, found.version, entry.value, entry.load)


def _listed(offered: Iterable[str], found: Distribution, kind: Kind) -> str:
    none = f"none at all: {found.metadata['Name']} has no entry point of group {kind.group!r}"
    return ", ".join(sorted(offered)) or none
