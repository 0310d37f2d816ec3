"""Federated averaging by sample count: a site counts as much as it has training samples.

Paper:  McMahan, Moore, Ramage, Hampson, Agüera y Arcas, "Communication-Efficient Learning of Deep Networks
        from Decentralized Data", AISTATS 2017: sum n_i g_i / sum n_i.
Needs:  nothing but the range check. Each site scales its update by its own weight (``rules/self_weights.py``) and
        shares that weight as one more coordinate, so that nobody else sees it; the list says 1 for every site.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.rules.fedavg import FedAvg


@dataclass(frozen=True)
class FedAvgBySamples(FedAvg):
    """What the requester does: list everybody. A norm bound does not exist: opened norms would show the weights."""
