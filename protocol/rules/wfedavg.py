"""WFedAvg: a site counts the more, the more evenly its samples cover the classes.

Paper:  Cerasti et al. 2023: w_i proportional to 1 / sum_j P_j p_ij^2, P_j the share of class j in all samples and
        p_ij its share at site i.
Needs:  nothing but the range check; with a norm bound the weighted norms. The class totals are summed once, before the
        first update; each site computes its own weight from them (``rules/self_weights.py``), scales its update by it
        and shares it as one more coordinate. Nobody learns another site's class counts or weight (a norm bound shows
        the requester the weight); the list says 1 for every site.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from protocol.parameters import Needs
from protocol.rules.fedavg import FedAvg
from protocol.rules.interface import Declared


@dataclass(frozen=True)
class WFedAvg(FedAvg):
    """The requester's part: list everybody. A norm bound shows it the weights, so sites must allow that."""

    BOUNDED_BY: ClassVar[Needs] = Needs.WEIGHTED_NORMS


WFEDAVG: Final = Declared(
    "wfedavg",
    WFedAvg.made,
    options=("norm_bound",),
    bounded_by=WFedAvg.BOUNDED_BY,
    self_weighted=True,
    counts_classes=True,
    only_averages=True,
)
