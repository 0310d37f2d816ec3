"""How the runs behind the pages are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.datasets.downloads import fetch_missing
from harness.datasets.public_data import data_folder
from harness.datasets.registry import source_of
from harness.training.device import Computing

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Making:
    """How missing runs are made: into one folder per case below ``runs``, by ``jobs`` processes on ``device``.

    ``download``: missing public data are fetched into the data folder first.
    """

    runs: Path
    data: Path | None
    jobs: int
    device: str
    tell: Tell
    download: bool = False

    def get_data(self, name: str) -> None:
        """Fetch what a case's data set lacks, if that is wanted. Raises: ConfigurationError"""
        files = source_of(name).files
        if self.download and files:
            fetch_missing(files, data_folder(self.data), self.tell)

    @property
    def computing(self) -> Computing:
        """Raises: ConfigurationError for a device that is not there"""
        return Computing.chosen(self.device, None)
