"""torch's global random state, one thread at a time.

An agent runs a thread for each of its studies, and torch has one random state for all of them, as it has one set of
cuDNN flags. Whoever draws from a seed holds both alone until it is done, so that the same seed gives the same numbers
whatever else the process trains. So the studies of one agent train one after the other.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import torch

_ONE_AT_A_TIME: Final = threading.RLock()


@contextmanager
def private_state(devices: Sequence[torch.device] = ()) -> Iterator[None]:
    """The random state of the CPU and of ``devices`` (CUDA) is this thread's alone, and afterwards what it was."""
    with _ONE_AT_A_TIME, torch.random.fork_rng(devices=list(devices)):
        yield
