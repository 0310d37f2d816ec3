"""Every rule of the protocol, as its own file declares it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from protocol.rules.fedavg import FEDAVG
from protocol.rules.fedavg_by_samples import FEDAVG_BY_SAMPLES
from protocol.rules.fedopt import FEDADAGRAD, FEDADAM, FEDYOGI
from protocol.rules.influence import INFLUENCE
from protocol.rules.interface import Declared
from protocol.rules.local import LOCAL
from protocol.rules.multi_krum import MULTI_KRUM
from protocol.rules.risk.mallows import MALLOWS
from protocol.rules.risk.shrinkage import SHRINKAGE
from protocol.rules.weight_erosion import WEIGHT_EROSION
from protocol.rules.wfedavg import WFEDAVG

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
