"""A study file's table on the local finish, and what comes of it; without torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from client_agent.learning.data import Examples
from protocol.errors import ConfigurationError


class FinishTable(BaseModel):
    """``[finish]``. ``choose`` the pull by examples ``held_out`` of the shared rounds (that share of the requester's
    training part), or by all of them, each left out once (small models whose loss is a mean over examples).

    The requester's own: it is no part of the signed study, and no other party learns of it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    choose: Literal["held_out", "leave_one_out"] = "held_out"
    held_out: Annotated[float, Field(gt=0, lt=1)] = 0.2

    def parts(self, train: Examples, seed: int) -> tuple[Examples, Examples]:
        """Return the examples of the shared rounds, and those held out of them. Raises: ConfigurationError"""
        held = round(len(train) * self.held_out) if self.choose == "held_out" else 0
        if self.choose == "held_out" and not 0 < held < len(train):
            raise ConfigurationError(
                f"key 'finish.held_out': {self.held_out} of {len(train)} training examples leaves one part empty"
            )
        order = np.random.default_rng([seed, held]).permutation(len(train))
        rest, out = np.sort(order[held:]), np.sort(order[:held])
        return Examples(train.X[rest], train.y[rest]), Examples(train.X[out], train.y[out])


@dataclass(frozen=True, eq=False)
class Finished:
    """The model, float32[D], and the pull; None where the shared model stayed as it is.

    ``seen`` and ``held`` count the training examples that the shared rounds had and had not.
    """

    vector: NDArray[np.float32] = field(repr=False)
    pull: float | None
    seen: int
    held: int
