"""Energy and CO2 of a run, estimated by codecarbon without any network (extra ``energy``)."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Final, Protocol

from pydantic import BaseModel, ConfigDict

from host.output_files import rewrite
from protocol.errors import ConfigurationError

FILE: Final = "energy.json"
_COUNTRY_LETTERS: Final = 3


class Energy(BaseModel):
    """Estimates: codecarbon takes the processor's power from its model and load where no counter can be read.

    ``co2_kg`` is CO2 equivalent by the mean electricity of ``country`` (ISO 3166-1, three letters).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    seconds: float
    energy_kwh: float
    cpu_kwh: float
    gpu_kwh: float
    memory_kwh: float
    co2_kg: float
    country: str
    processor: str
    codecarbon: str


class _Emissions(Protocol):
    """The findings of codecarbon; energies in kWh, emissions in kg."""

    duration: float
    energy_consumed: float
    cpu_energy: float
    gpu_energy: float
    ram_energy: float
    emissions: float
    country_iso_code: str
    cpu_model: str
    codecarbon_version: str


class _Tracker(Protocol):
    """The part of codecarbon's tracker that is used here."""

    final_emissions_data: _Emissions

    def start(self) -> None: ...

    def stop(self) -> float | None: ...


def measured_into(folder: Path | None, country: str | None) -> AbstractContextManager[None]:
    """See :func:`measured`; nothing is measured without a country. Raises: ConfigurationError without a folder"""
    if country is None:
        return nullcontext()
    if folder is None:
        raise ConfigurationError("--energy needs --out: the folder that energy.json goes to")
    return measured(country, folder)


@contextmanager
def measured(country: str, folder: Path) -> Iterator[None]:
    """Measure what runs inside; ``energy.json`` goes into the folder, after an error too.

    Raises: ConfigurationError when codecarbon is not installed, or the country is no three-letter code
    """
    if len(country) != _COUNTRY_LETTERS or not (country.isascii() and country.isalpha() and country.isupper()):
        raise ConfigurationError(f"--energy: found {country!r}; give the country's three-letter code, such as CHE")
    tracker = _tracker(country)
    tracker.start()
    try:
        yield
    finally:
        tracker.stop()
        folder.mkdir(parents=True, exist_ok=True)
        text = _energy(tracker.final_emissions_data).model_dump_json(indent=2)
        rewrite(folder / FILE, text + "\n")


def _tracker(country: str) -> _Tracker:
    try:
        codecarbon = importlib.import_module("codecarbon")
    except ModuleNotFoundError:
        raise ConfigurationError(
            "--energy needs codecarbon, which is not installed; install it with: pip install 'moiety[energy]'"
        ) from None
    logging.getLogger("codecarbon").setLevel(logging.ERROR)  # it speaks before it reads its own log level
    made: _Tracker = codecarbon.OfflineEmissionsTracker(
        country_iso_code=country, output_methods=[], log_level="error", allow_multiple_runs=True
    )
    return made


def _energy(data: _Emissions) -> Energy:
    return Energy(
        seconds=data.duration,
        energy_kwh=data.energy_consumed,
        cpu_kwh=data.cpu_energy,
        gpu_kwh=data.gpu_energy,
        memory_kwh=data.ram_energy,
        co2_kg=data.emissions,
        country=data.country_iso_code,
        processor=data.cpu_model,
        codecarbon=data.codecarbon_version,
    )
