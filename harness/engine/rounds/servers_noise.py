"""The noise of both servers in a run in one process, from the study's seed, so that runs can be repeated (21).

A plain run and a secure one add the same whole numbers, drawn as a server draws them; servers draw from their system.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TypeAlias

from protocol.arithmetic.discrete_gaussian import discrete_gaussian
from protocol.arithmetic.prg import derive
from protocol.arithmetic.ring import Signed
from protocol.sharing import Side
from protocol.wire.messages import Study

ServersNoise: TypeAlias = Mapping[Side, Signed]
"""What each server adds to its half of a sum, int64[D] in ring units."""


def servers_noise(study: Study, round_number: int) -> ServersNoise | None:
    """That of one round of updates; None where servers add nothing."""
    noise = study.sum_noise
    if noise is None:
        return None
    seed = hashlib.sha256(f"moiety/2 noise of servers {study.seed} {study.digest()}".encode()).digest()
    return {
        side: discrete_gaussian(noise.dimension, noise.deviation, derive(seed, f"round {round_number} {side}"))
        for side in Side
    }
