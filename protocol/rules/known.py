"""Every rule of the protocol, as its own file declares it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from protocol.rules import fedavg, fedavg_by_samples, fedopt, influence, local, multi_krum, weight_erosion, wfedavg
from protocol.rules.interface import Declared
from protocol.rules.risk import mallows, shrinkage

_WITH_A_FILE_EACH: Final = (
    weight_erosion,
    fedavg,
    fedavg_by_samples,
    wfedavg,
    multi_krum,
    influence,
    mallows,
    shrinkage,
    local,
)
_ALL: Final = (*(rule.DECLARED for rule in _WITH_A_FILE_EACH), fedopt.FEDADAGRAD, fedopt.FEDADAM, fedopt.FEDYOGI)
KNOWN: Final[Mapping[str, Declared]] = {one.name: one for one in _ALL}
