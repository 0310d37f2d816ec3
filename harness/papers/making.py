"""How the runs behind the pages are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.datasets.downloads import fetch_missing
from harness.datasets.public_data import data_folder
from harness.datasets.registry import source_of
from harness.engine.training import Computing
from harness.simulate.workers import RayCluster, computing_of

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Making:
    """How missing runs are made: into one folder per case below ``runs``, by ``jobs`` processes on ``device``,
    or by a ``cluster``.

    ``download``: missing public data are fetched into the data folder first.
    """

    runs: Path
    data: Path | None
    jobs: int
    device: str
    tell: Tell
    download: bool = False
    cluster: RayCluster | None = None

    def get_data(self, name: str) -> None:
        """Fetch what a case's data set lacks, if that is wanted. Raises: ConfigurationError"""
        files = source_of(name).files
        if self.download and files:
            fetch_missing(files, data_folder(self.data), self.tell)

    @property
    def computing(self) -> Computing:
        """Raises: ConfigurationError for a device that is not there"""
        return computing_of(self.cluster, self.device, None)
