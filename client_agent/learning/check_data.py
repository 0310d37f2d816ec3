"""Check that a site's data fit a study, before the site says that it is ready: refusals and remarks.

Columns and classes are compared by name first: a column too many is then named, and not only counted.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from client_agent.learning.data import LocalData, folder_names, load_folder
from client_agent.learning.names import DataNames, require_names_of_study
from client_agent.tasks.targets import EVENT
from protocol.messages.control import ModelSpec, Study, TaskKind
from protocol.text import NamesKind

if TYPE_CHECKING:
    from client_agent.learning.plugin import Plugin


def fitting_data(study: Study, path: Path, plugin: Plugin | None) -> LocalData:
    """The site's examples, which the study's model takes and whose names are the study's. Raises: ConfigurationError"""
    spec = study.model
    require_names_of_study(names_of(spec), own_names(path, plugin), study.name, str(path))
    if plugin is None:
        return load_folder(path, spec.inputs, spec.classes, study.task)
    return plugin.data(path, spec, study.task)


def own_names(path: Path, plugin: Plugin | None) -> DataNames:
    """Return the names of columns and classes in the site's files or plug-in. Raises: ConfigurationError"""
    return folder_names(path) if plugin is None else plugin.names(path)


def names_of(spec: ModelSpec) -> DataNames:
    """Return the study's names of columns and classes."""
    return DataNames(spec.feature_names, spec.class_names)


def remarks(study: Study, data: LocalData) -> tuple[str, ...]:
    """Return remarks that do not stop this site, and that a person should know before round 1.

    Whether another site has examples of a class is nobody's to know before class counts are summed.
    """
    found: list[str] = []
    spec = study.model
    silent = [kind.value for kind in NamesKind if not names_of(spec).of(kind) and _can_name(spec, kind)]
    if silent:
        found.append(
            f"the study gives no {' and no '.join(silent)}: nothing checks that this site's data mean the same as the "
            "others'; compare with the requester"
        )
    if study.task.kind is TaskKind.SURVIVAL and not data.train.y[:, EVENT].any():
        found.append(
            "no training example here has an event: the site's updates are zero, and only its test part says something"
        )
    return (*found, *_missing_classes(study, data))


def _missing_classes(study: Study, data: LocalData) -> tuple[str, ...]:
    if study.task.kind is not TaskKind.CLASSES:
        return ()
    spec = study.model
    counts = np.bincount(data.train.y, minlength=spec.classes)
    called = spec.class_names or data.names.classes or range(spec.classes)
    missing = [name for name, count in zip(called, counts, strict=True) if count == 0]
    if not missing:
        return ()
    return (
        f"no training example here of classes {missing}, of {spec.classes}: right if this site sees none, wrong if "
        "its labels are numbered otherwise",
    )


def _can_name(spec: ModelSpec, kind: NamesKind) -> bool:
    """A single output, a log hazard for example, cannot be taken for another one."""
    return spec.classes > 1 if kind is NamesKind.CLASSES else len(spec.inputs) == 1
