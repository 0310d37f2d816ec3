"""Where a simulation trains its sites: one after the other on a CPU, or all of a round in one call on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import torch

from client_agent.learning.flat_vector import pick_device


@dataclass(frozen=True)
class Computing:
    """``batched``: all sites' local steps as one call, where training allows it (:mod:`harness.training.batched`)."""

    device: torch.device
    batched: bool

    @classmethod
    def chosen(cls, device: str, batched: bool | None) -> Computing:
        """From the command line's words; None: batched on a GPU only. Raises: ConfigurationError"""
        picked = pick_device(device)
        return cls(picked, picked.type == "cuda" if batched is None else batched)

    def __str__(self) -> str:
        """For a result line: runs that were computed in different ways differ in their last bits."""
        return f"{self.device.type}, batched" if self.batched else self.device.type


ON_CPU: Final = Computing(torch.device("cpu"), batched=False)


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch computes with one thread meanwhile: small models gain nothing by more, and sums have one order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
