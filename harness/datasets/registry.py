"""The data sets by name, as a case names them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from harness.datasets import bundled, har, heart_disease, mnist, titanic
from harness.datasets.public_data import PublicFile, data_folder
from harness.datasets.site_data import Federation, split_random
from harness.datasets.site_folders import load_site_folders, site_names
from harness.datasets.transforms import dealt_anew, thinned, whitened, with_validation
from host.extensions import FOLDER, Kind, extension, is_brought
from protocol.errors import ConfigurationError
from protocol.messages.control import TableSchema, TaskKind, TaskSpec
from protocol.messages.model import CLASSES


@dataclass(frozen=True)
class DataRequest:
    """A run's choices about a data set; None or "" leaves a choice to the data set.

    ``dirichlet``: training examples are dealt anew, by label. ``validation_share`` is the part of the requester's
    training examples that is kept to choose settings on. ``whitened``: by the moments of all training parts.
    ``training_share``: the part of every site's training examples that is there at all. ``inputs``, ``outputs``,
    ``task`` and ``schema`` are those of the case's study: what its model takes and gives, what it predicts, and from
    which columns.
    """

    data: str
    seed: int
    split: str = ""
    sites: int | None = None
    requester: str | None = None
    validation_share: float = 0.0
    folder: Path | None = None
    dirichlet: float | None = None
    whitened: bool = False
    training_share: float = 1.0
    inputs: tuple[int, ...] = ()
    outputs: int = 0
    task: TaskSpec = CLASSES
    schema: TableSchema | None = None


@dataclass(frozen=True)
class DataSource:
    """A data set's loader, the public files that it needs, and what can be chosen about it."""

    load: Callable[[DataRequest], Federation]
    files: tuple[PublicFile, ...] = ()
    has_splits: bool = False
    any_number_of_sites: bool = False


def load_data(request: DataRequest) -> Federation:
    """The federation that ``request`` describes.

    Raises: ConfigurationError, also for a choice that the data set does not offer
    """
    source = source_of(request.data)
    if request.split and not source.has_splits:
        raise ConfigurationError(f"{request.data}: has one split only, found split {request.split!r}: leave it out")
    if request.sites is not None and not source.any_number_of_sites:
        raise ConfigurationError(f"{request.data}: its sites are given, found sites {request.sites}: leave it out")
    federation = source.load(request)
    if request.dirichlet is not None:
        federation = dealt_anew(federation, request.dirichlet, request.seed)
    if request.training_share < 1:
        federation = thinned(federation, request.training_share, request.seed)
    return whitened(federation) if request.whitened else federation


def source_of(data: str) -> DataSource:
    """One of ours, ``folder:PATH``, or of others by ``WHOSE:NAME``.

    Raises: ConfigurationError for a name that is no data set's
    """
    if data.startswith(FOLDER):
        return DataSource(_in_folders)
    if is_brought(data):
        return _brought(data)
    if data not in SOURCES:
        raise ConfigurationError(
            f"data set {data!r} is none of {', '.join(SOURCES)}, no {FOLDER}PATH of one folder per site, and no "
            "WHOSE:NAME"
        )
    return SOURCES[data]


def _brought(data: str) -> DataSource:
    """A ``DataSource``, or a function from a ``DataRequest`` that is offered every choice."""
    found = extension(Kind.DATASET, data).load()
    if isinstance(found, DataSource):
        return replace(found, load=lambda request: _checked(data, found.load(request), request))
    if not callable(found):
        raise ConfigurationError(
            f"data set {data!r}: found {type(found).__name__}, expected a function from a DataRequest to a Federation"
        )

    def load(request: DataRequest) -> Federation:
        return with_requester(_checked(data, found(request), request), request)

    return DataSource(load, has_splits=True, any_number_of_sites=True)


def _checked(data: str, made: object, request: DataRequest) -> Federation:
    """Others' federation with the task of the case's study, and named outputs. Raises: ConfigurationError"""
    if not isinstance(made, Federation):
        raise ConfigurationError(f"data set {data!r}: gave {type(made).__name__}, expected a Federation")
    kinds = ", ".join(TaskKind)
    if made.task not in list(TaskKind):
        raise ConfigurationError(f"data set {data!r}: Federation(task={made.task!r}) is none of {kinds}")
    wanted = request.task.kind
    if request.outputs and made.task != wanted:
        raise ConfigurationError(
            f"data set {data!r}: its task is {TaskKind(made.task).value}, the study's is {wanted.value}: return "
            f"Federation(..., task=TaskKind.{wanted.name}), or say [task] kind in the study"
        )
    if not made.class_names:
        raise ConfigurationError(f"data set {data!r}: Federation.class_names is empty: give a name for every output")
    return replace(made, task=TaskKind(made.task))


def path_of(data: str) -> Path:
    """The PATH of ``folder:PATH``, below the current folder where it is not absolute."""
    return Path(data.removeprefix(FOLDER))


def _in_folders(request: DataRequest) -> Federation:
    if not request.outputs:
        raise ConfigurationError(f"{request.data}: only a case reads folders, since its study says what is in them")
    if request.folder is not None:
        raise ConfigurationError(
            f"--data: the case reads {request.data}, so that {request.folder} would not be read: leave --data out, or "
            "name the folder in [case] data"
        )
    folder = path_of(request.data)
    about = request.inputs, request.outputs, request.task, request.schema
    return with_requester(load_site_folders(folder, site_names(folder)[0], *about), request)


def with_requester(federation: Federation, request: DataRequest) -> Federation:
    """The same sites with the one asked for first, part of its training examples kept for validation if asked for.

    Raises: ConfigurationError for a site that there is not
    """
    _require_one_of(federation.names_of_sites, request)
    first, *others = federation.asked_by(request.requester or federation.requester.name).sites
    if request.validation_share and not len(first.validation):
        first = with_validation(first, request.validation_share, split_random(request.data, request.seed))
    return replace(federation, sites=(first, *others))


def _require_one_of(sites: Iterable[str], request: DataRequest) -> None:
    if request.requester not in (None, *sites):
        raise ConfigurationError(
            f"{request.data}: {request.requester!r} cannot be the requester; the sites are {', '.join(sites)}"
        )


def _bundled(load: Callable[[int, str | None], Federation], sites: Iterable[str]) -> DataSource:
    def loaded(request: DataRequest) -> Federation:
        _require_one_of(sites, request)
        return load(request.seed, request.requester)

    return DataSource(loaded)


def _with_fixed_requester(federation: Federation, request: DataRequest) -> Federation:
    """These data sets give one site a requester's parts, and it alone can be the requester."""
    if request.requester not in (None, federation.requester.name):
        raise ConfigurationError(
            f"{request.data}: {request.requester!r} cannot be the requester, only {federation.requester.name!r}"
        )
    return federation


def _digits(request: DataRequest) -> Federation:
    return _with_fixed_requester(bundled.digits_sites(request.seed, request.sites or 5), request)


def _mnist(request: DataRequest) -> Federation:
    folder, sites = data_folder(request.folder), request.sites or 10
    federation = mnist.mnist(folder, request.split, sites, request.seed, request.validation_share)
    return _with_fixed_requester(federation, request)


def _titanic(request: DataRequest) -> Federation:
    folder, share = data_folder(request.folder), request.validation_share
    return titanic.titanic(folder, request.split, request.seed, request.requester, share)


def _har_subjects(request: DataRequest) -> Federation:
    folder, share = data_folder(request.folder), request.validation_share
    return har.har_subjects(folder, request.seed, validation_share=share, requester=request.requester)


def _har_strategies(request: DataRequest) -> Federation:
    if request.split not in list(har.StrategySplit):
        raise ConfigurationError(f"har_strategies: split {request.split!r} is none of {', '.join(har.StrategySplit)}")
    split, share = har.StrategySplit(request.split), request.validation_share
    federation = har.har_strategies(data_folder(request.folder), request.seed, split, validation_share=share)
    return _with_fixed_requester(federation, request)


def _heart_disease(request: DataRequest) -> Federation:
    folder, share = data_folder(request.folder), request.validation_share
    return heart_disease.four_hospitals(folder, request.seed, request.requester, share)


SOURCES: Final[dict[str, DataSource]] = {
    "breast_cancer": _bundled(bundled.breast_cancer_five_hospitals, bundled.HOSPITALS),
    "breast_cancer_survival": _bundled(bundled.breast_cancer_survival, bundled.SURVIVAL_HOSPITALS),
    "diabetes": _bundled(bundled.diabetes_five_practices, bundled.PRACTICES),
    "digits": DataSource(_digits, any_number_of_sites=True),
    "har_strategies": DataSource(_har_strategies, (har.HAR_FILE,), has_splits=True),
    "har_subjects": DataSource(_har_subjects, (har.HAR_FILE,)),
    "heart_disease": DataSource(_heart_disease, heart_disease.PUBLIC_FILES),
    "mnist": DataSource(_mnist, mnist.FILES, has_splits=True, any_number_of_sites=True),
    "titanic": DataSource(_titanic, titanic.FILES, has_splits=True),
}
