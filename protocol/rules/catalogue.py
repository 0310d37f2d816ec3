"""Every rule of the protocol, as its own file declares it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from protocol.rules.fedavg import FEDADAGRAD, FEDADAM, FEDAVG, FEDAVG_BY_SAMPLES, FEDYOGI, WFEDAVG
from protocol.rules.influence import INFLUENCE
from protocol.rules.interface import Declared
from protocol.rules.local import LOCAL
from protocol.rules.mallows import MALLOWS
from protocol.rules.multi_krum import MULTI_KRUM
from protocol.rules.shrinkage import SHRINKAGE
from protocol.rules.weight_erosion import WEIGHT_EROSION

_ALL: Final = (
    WEIGHT_EROSION,
    FEDAVG,
    FEDAVG_BY_SAMPLES,
    WFEDAVG,
    MULTI_KRUM,
    INFLUENCE,
    MALLOWS,
    SHRINKAGE,
    LOCAL,
    FEDADAGRAD,
    FEDADAM,
    FEDYOGI,
)
KNOWN: Final[Mapping[str, Declared]] = {one.name: one for one in _ALL}
