"""Federated averaging by sample count: a site counts as much as it has training samples.

Paper:  McMahan, Moore, Ramage, Hampson, Agüera y Arcas, "Communication-Efficient Learning of Deep Networks
        from Decentralized Data", AISTATS 2017: sum n_i g_i / sum n_i.
Needs:  nothing but the range check; with a norm bound the weighted norms. Each site scales its update by its own weight
        (``rules/self_weights.py``) and shares that weight as one more coordinate, so that nobody else sees it (a norm
        bound shows it to the requester); the list says 1 for every site.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from pydantic import Field

from protocol.parameters import Needs
from protocol.rules.fedavg import FedAvg
from protocol.rules.interface import Declared, Options


class SampleOptions(Options):
    """``largest_count``: the number of samples whose weight is 1; None: the largest in the roster."""

    largest_count: Annotated[int, Field(ge=1)] | None = None


@dataclass(frozen=True)
class FedAvgBySamples(FedAvg):
    """The requester's part: list everybody. A norm bound shows it the weights, so sites must allow that."""

    BOUNDED_BY: ClassVar[Needs] = Needs.WEIGHTED_NORMS


FEDAVG_BY_SAMPLES: Final = Declared(
    "fedavg_by_samples",
    FedAvgBySamples.made,
    options=("norm_bound", "largest_count"),
    bounded_by=FedAvgBySamples.BOUNDED_BY,
    self_weighted=True,
    only_averages=True,
)
