"""A federation from a folder that holds one folder per site, each as a site's agent reads it.

Names of columns and classes (client_agent.learning.data) are compared between all sites: where one site gives them all
must, the same ones in the same order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from functools import cache
from pathlib import Path

from client_agent.learning.data import (
    DataNames,
    Examples,
    LocalData,
    Named,
    folder_files,
    folder_names,
    load_folder,
    require_folder_of_schema,
    require_same_names,
)
from client_agent.learning.plugin import Plugin
from client_agent.learning.study_file import StudyTable
from harness.datasets.site_data import Federation, SiteData, check_targets
from protocol.errors import ConfigurationError
from protocol.messages.control import ModelSpec, TableSchema, TaskKind, TaskSpec
from protocol.messages.model import CLASSES
from protocol.text import NamesKind


def load_site_folders(
    folder: Path,
    requester: str | None,
    inputs: tuple[int, ...],
    outputs: int,
    task: TaskSpec = CLASSES,
    schema: TableSchema | None = None,
) -> Federation:
    """The federation, the requester first.

    Raises: ConfigurationError for a missing file, a site of another schema, wrong examples, or names that differ
    """
    places = {name: folder / name for name in site_names(folder)}

    def read(place: Path) -> LocalData:
        return load_folder(place, inputs, outputs, task)

    about = inputs, outputs, task.kind
    return _federation(folder, requester, places, schema, folder_names, read, about, "test.npz")


def site_names(folder: Path) -> tuple[str, ...]:
    """The folder's sites by name. Raises: ConfigurationError where there is none"""
    found = folder.iterdir() if folder.is_dir() else ()
    names = tuple(sorted(path.name for path in found if path.is_dir() and not path.name.startswith(".")))
    if not names:
        raise ConfigurationError(
            f"{folder.absolute()} is no folder with one folder per site: name that into which 'moiety data prepare' "
            "wrote each site's, as --out FOLDER/SITE"
        )
    return names


def folder_digest(folder: Path) -> str:
    """SHA-256 over the sites' names and files. Raises: ConfigurationError for no such folder or a missing file"""
    found = hashlib.sha256()
    for name in site_names(folder):
        for path in folder_files(folder / name):
            with path.open("rb") as file:
                found.update(f"{name}/{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return found.hexdigest()


def load_by_plugin(folder: Path, requester: str | None, table: StudyTable, plugin: Plugin) -> Federation:
    """The federation as the sites' plug-in reads it: whatever is in ``folder``, a file or a folder per site.

    Raises: ConfigurationError for data that the study does not take, or names that differ between sites
    """
    places = {path.stem: path for path in sorted(folder.iterdir()) if not path.name.startswith(".")}
    spec = ModelSpec(kind="plugin", inputs=table.model.inputs, classes=table.model.width, layers=())

    @cache
    def read(place: Path) -> LocalData:
        return plugin.data(place, spec, table.task)

    about = table.model.inputs, table.model.width, table.task.kind
    return _federation(folder, requester, places, table.data_schema, lambda place: read(place).names, read, about, "")


def _federation(
    folder: Path,
    requester: str | None,
    places: Mapping[str, Path],
    schema: TableSchema | None,
    names_of: Callable[[Path], DataNames],
    read: Callable[[Path], LocalData],
    about: tuple[tuple[int, ...], int, TaskKind],
    test_file: str,
) -> Federation:
    """Every site's data, the requester's first; ``about`` are the inputs, the number of outputs and the task.

    Names are compared first: where columns differ, that says more than what an array looks like.
    """
    requester = _requester(requester, places, folder)
    for place in places.values():
        require_folder_of_schema(schema, place, "the study")
    ordered = (requester, *(name for name in places if name != requester))
    called = {name: names_of(places[name]) for name in ordered}
    for kind in NamesKind:
        require_same_names([Named(name, names.of(kind)) for name, names in called.items()], kind, "sites", str(folder))
    sites = tuple(_of_local(name, read(places[name]), str(places[name] / test_file)) for name in ordered)
    names, (inputs, outputs, task) = called[requester], about
    classes = names.classes or tuple(str(number) for number in range(outputs))
    federation = Federation(str(folder), inputs, classes, sites, names.features, task)
    check_targets(federation)
    return federation


def _requester(requester: str | None, names: Collection[str], folder: Path) -> str:
    if requester is None or requester not in names:
        found = "no name" if requester is None else repr(requester)
        raise ConfigurationError(f"--requester: found {found}; give one of the sites in {folder}: {', '.join(names)}")
    return requester


def _of_local(name: str, data: LocalData, where: str) -> SiteData:
    if len(data.test) == 0:
        raise ConfigurationError(f"{where}: no example; a simulation tests at every site")
    validation = data.validation or Examples(data.test.X[:0], data.test.y[:0])
    return SiteData(name, data.train, validation, data.test)
