"""FedAdagrad, FedAdam, FedYogi: a uniform average, applied by an adaptive optimiser that every site runs alike.

Paper:  Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan, "Adaptive Federated Optimization", ICLR 2021,
        Algorithm 2; the step itself is in ``rules/server_optimiser.py``.
Needs:  nothing but the range check; the norms where updates beyond a bound are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Final

from pydantic import Field

from protocol.errors import ConfigurationError
from protocol.rules.fedavg import FedAvg
from protocol.rules.interface import Declared, Options

_ADAPTIVITIES: Final = (1e-12, 1e12)
_OPTIONS: Final = ("norm_bound", "server_momentum", "adaptivity")


class OptimiserOptions(Options):
    """``server_momentum`` beta_1 (None: 0.9, FedAdagrad 0), ``second_moment_decay`` beta_2, ``adaptivity`` tau."""

    server_momentum: Annotated[float, Field(ge=0, lt=1)] | None = None
    second_moment_decay: Annotated[float, Field(ge=0, lt=1)] = 0.99
    adaptivity: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-3


@dataclass(frozen=True)
class FedOpt(FedAvg):
    """The requester's part, which is FedAvg's: weight 1 for everybody, always."""


def require_adaptivity(options: OptimiserOptions) -> None:
    """ConfigurationError when tau^2 is too large or small for float32."""
    lowest, highest = _ADAPTIVITIES
    if not lowest <= options.adaptivity <= highest:
        raise ConfigurationError(f"adaptivity lies between {lowest} and {highest}, found {options.adaptivity}")


FEDADAGRAD: Final = Declared("fedadagrad", FedOpt.made, options=_OPTIONS, check=require_adaptivity)
FEDADAM: Final = replace(FEDADAGRAD, name="fedadam", options=(*_OPTIONS, "second_moment_decay"))
FEDYOGI: Final = replace(FEDADAM, name="fedyogi")
