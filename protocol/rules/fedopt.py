"""FedAdagrad, FedAdam, FedYogi: a uniform average, applied by an adaptive optimiser that every site runs alike.

Paper:  Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan, "Adaptive Federated Optimization", ICLR 2021,
        Algorithm 2; the step itself is in ``rules/server_optimiser.py``.
Needs:  nothing but the range check; the norms where updates beyond a bound are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.rules.fedavg import FedAvg


@dataclass(frozen=True)
class FedOpt(FedAvg):
    """What the requester does is FedAvg's part: weight 1 for everybody, always."""
