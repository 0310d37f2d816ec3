"""Energy and CO2 of a run, estimated by codecarbon without any network (extra ``energy``)."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pydantic import Field

from host.frozen import Frozen
from host.output_files import rewrite
from protocol.errors import ConfigurationError

FILE: Final = "energy.json"
_COUNTRY_LETTERS: Final = 3


class Energy(Frozen, populate_by_name=True):
    """Estimates: codecarbon takes the processor's power from its model and load where no counter can be read.

    Fields are read by codecarbon's own names. ``co2_kg`` is CO2 equivalent by the mean electricity of ``country``
    (ISO 3166-1, three letters).
    """

    seconds: float = Field(validation_alias="duration")
    energy_kwh: float = Field(validation_alias="energy_consumed")
    cpu_kwh: float = Field(validation_alias="cpu_energy")
    gpu_kwh: float = Field(validation_alias="gpu_energy")
    memory_kwh: float = Field(validation_alias="ram_energy")
    co2_kg: float = Field(validation_alias="emissions")
    country: str = Field(validation_alias="country_iso_code")
    processor: str = Field(validation_alias="cpu_model")
    codecarbon: str = Field(validation_alias="codecarbon_version")


@contextmanager
def measured(country: str | None, folder: Path | None) -> Iterator[None]:
    """Measure what runs inside, unless there is no country; ``energy.json`` goes into the folder, after an error too.

    Raises: ConfigurationError without a folder, when codecarbon is not installed, or for no three-letter code
    """
    if country is None:
        yield
        return
    if folder is None:
        raise ConfigurationError("--energy needs --out: the folder that energy.json goes to")
    if len(country) != _COUNTRY_LETTERS or not (country.isascii() and country.isalpha() and country.isupper()):
        raise ConfigurationError(f"--energy: found {country!r}; give the country's three-letter code, such as CHE")
    tracker = _tracker(country)
    tracker.start()
    try:
        yield
    finally:
        tracker.stop()
        found = Energy.model_validate(tracker.final_emissions_data, from_attributes=True)
        rewrite(folder / FILE, found.model_dump_json(indent=2) + "\n")


def _tracker(country: str) -> Any:  # noqa: ANN401  # codecarbon has no types
    try:
        codecarbon = importlib.import_module("codecarbon")
    except ModuleNotFoundError:
        raise ConfigurationError(
            "--energy needs codecarbon, which is not installed; install it with: pip install 'moiety[energy]'"
        ) from None
    logging.getLogger("codecarbon").setLevel(logging.ERROR)  # it speaks before it reads its own log level
    return codecarbon.OfflineEmissionsTracker(
        country_iso_code=country, output_methods=[], log_level="error", allow_multiple_runs=True
    )
