"""Every rule of the protocol, as its own file declares it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from protocol.rules import (
    fedavg,
    fedavg_by_samples,
    fedopt,
    influence,
    local,
    multi_krum,
    weight_erosion,
    wfedavg,
)
from protocol.rules.interface import Declared

KNOWN: Final[Mapping[str, Declared]] = {
    one.name: one
    for one in (
        weight_erosion.DECLARED,
        fedavg.DECLARED,
        fedavg_by_samples.DECLARED,
        wfedavg.DECLARED,
        fedopt.FEDADAGRAD,
        fedopt.FEDADAM,
        fedopt.FEDYOGI,
        multi_krum.DECLARED,
        influence.DECLARED,
        local.DECLARED,
    )
}
