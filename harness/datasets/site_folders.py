"""A federation from a folder that holds one folder a site, each as a site's agent reads it.

A site's ``train.npz`` may hold ``feature_names`` and ``class_names`` (arrays of text) beside X and y. Where one site
has them all must, and they must be the same everywhere: a model that is trained on columns in another order, or on
labels that mean something else, learns nonsense without any error.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from client_agent.data import Examples, load_folder
from harness.datasets.checks import check_classes
from harness.datasets.site_data import Federation, SiteData
from protocol.errors import ConfigurationError

_KINDS: Final = ("feature_names", "class_names")


@dataclass(frozen=True)
class SiteNames:
    """What a site calls its columns or labels; None where its files do not say."""

    site: str
    names: tuple[str, ...] | None


def load_site_folders(folder: Path, requester: str | None, inputs: tuple[int, ...], classes: int) -> Federation:
    """The federation, the requester first.

    Raises: ConfigurationError for a missing file, wrong examples, or names that differ between sites
    """
    names = sorted(path.name for path in folder.iterdir() if path.is_dir())
    if requester not in names:
        raise ConfigurationError(f"--requester: found {requester!r}; give one of the sites in {folder}: {names}")
    ordered = (requester, *(name for name in names if name != requester))
    sites = tuple(_site(folder / name, inputs, classes) for name in ordered)
    found = {kind: [_names(folder / name, kind) for name in ordered] for kind in _KINDS}
    for kind, of_sites in found.items():
        check_same_names(of_sites, kind, str(folder))
    classes_named = found["class_names"][0].names or tuple(str(number) for number in range(classes))
    if len(classes_named) != classes:
        raise ConfigurationError(
            f"{folder}: class_names holds {len(classes_named)} names {list(classes_named)}, the model has {classes}"
        )
    federation = Federation(str(folder), inputs, classes_named, sites)
    check_classes(federation)
    return federation


def check_same_names(found: Sequence[SiteNames], kind: str, where: str) -> None:
    """All sites have the same names in the same order. Raises: ConfigurationError with the difference"""
    first = found[0]
    silent = [one.site for one in found if one.names is None]
    if silent and len(silent) < len(found):
        raise ConfigurationError(
            f"{where}: {', '.join(silent)} give no {kind} and the others do: give them at every site, or at none"
        )
    for other in found[1:]:
        if other.names != first.names:
            raise ConfigurationError(
                f"{where}: {kind} differ between sites {first.site!r} and {other.site!r}:\n{_difference(first, other)}"
            )


def _difference(one: SiteNames, other: SiteNames) -> str:
    lines = difflib.unified_diff(one.names or (), other.names or (), one.site, other.site, lineterm="", n=1)
    return "\n".join(lines)


def _names(folder: Path, kind: str) -> SiteNames:
    with np.load(folder / "train.npz", allow_pickle=False) as archive:
        if kind not in archive.files:
            return SiteNames(folder.name, None)
        names = archive[kind]
    if names.ndim != 1 or names.dtype.kind != "U":
        raise ConfigurationError(
            f"{folder / 'train.npz'}: array {kind!r} has type {names.dtype} and shape {list(names.shape)}, expected a "
            "list of texts"
        )
    return SiteNames(folder.name, tuple(str(name) for name in names))


def _site(folder: Path, inputs: tuple[int, ...], classes: int) -> SiteData:
    data = load_folder(folder, inputs, classes)
    if len(data.test) == 0:
        raise ConfigurationError(f"{folder / 'test.npz'}: no example; a simulation tests at every site")
    validation = data.validation or Examples(data.test.X[:0], data.test.y[:0])
    return SiteData(folder.name, data.train, validation, data.test)
