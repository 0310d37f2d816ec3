"""A federation from a folder that holds one folder per site, each as a site's agent reads it.

Names of columns and classes (client_agent.learning.data) are compared between all sites: where one site gives them all
must, the same ones in the same order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path

from client_agent.data.kept import require_folder_of_schema
from client_agent.learning.data import Examples, LocalData, folder_files, folder_names, load_folder
from client_agent.learning.names import Named, require_same_names
from client_agent.learning.plugin import Plugin
from client_agent.learning.study_file import StudyTable
from harness.datasets.site_data import Federation, SiteData, check_targets
from protocol.errors import ConfigurationError
from protocol.messages.control import ModelSpec, TableSchema, TaskSpec
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
    names = site_names(folder)
    requester = _requester(requester, names, folder)
    for name in names:
        require_folder_of_schema(schema, folder / name, "the study")
    ordered = (requester, *(name for name in names if name != requester))
    called = {name: folder_names(folder / name) for name in ordered}
    for kind in NamesKind:
        require_same_names([Named(name, names.of(kind)) for name, names in called.items()], kind, "sites", str(folder))
    sites = tuple(_site(folder / name, inputs, outputs, task) for name in ordered)
    names_of_all = called[requester]
    class_names = names_of_all.classes or tuple(str(number) for number in range(outputs))
    federation = Federation(str(folder), inputs, class_names, sites, names_of_all.features, task.kind)
    check_targets(federation)
    return federation


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
    requester = _requester(requester, places, folder)
    for place in places.values():
        require_folder_of_schema(table.data_schema, place, "the study")
    spec = ModelSpec(kind="plugin", inputs=table.model.inputs, classes=table.model.width, layers=())
    ordered = (requester, *(name for name in places if name != requester))
    read = {name: plugin.data(places[name], spec, table.task) for name in ordered}
    for kind in NamesKind:
        require_same_names([Named(name, one.names.of(kind)) for name, one in read.items()], kind, "sites", str(folder))
    sites = tuple(_of_local(name, one, str(places[name])) for name, one in read.items())
    names = read[requester].names
    outputs = names.classes or tuple(str(number) for number in range(table.model.width))
    federation = Federation(str(folder), table.model.inputs, outputs, sites, names.features, table.task.kind)
    check_targets(federation)
    return federation


def _requester(requester: str | None, names: Collection[str], folder: Path) -> str:
    if requester is None or requester not in names:
        found = "no name" if requester is None else repr(requester)
        raise ConfigurationError(f"--requester: found {found}; give one of the sites in {folder}: {', '.join(names)}")
    return requester


def _site(folder: Path, inputs: tuple[int, ...], outputs: int, task: TaskSpec) -> SiteData:
    return _of_local(folder.name, load_folder(folder, inputs, outputs, task), str(folder / "test.npz"))


def _of_local(name: str, data: LocalData, where: str) -> SiteData:
    if len(data.test) == 0:
        raise ConfigurationError(f"{where}: no example; a simulation tests at every site")
    validation = data.validation or Examples(data.test.X[:0], data.test.y[:0])
    return SiteData(name, data.train, validation, data.test)
