"""Seeded draws of one thread are not disturbed by another's."""

from __future__ import annotations

import threading

import torch

from client_agent.learning.flat_vector import model_vector
from client_agent.learning.models import build_model, model_spec, private_state

SPEC = model_spec("linear", (5,), (), 2)


def test_a_model_is_drawn_while_nobody_else_draws() -> None:
    """Another thread is in the middle of its own draws: the model waits for it, and is the same as ever."""
    expected = model_vector(build_model(SPEC, 3))
    drawn: list[torch.nn.Module] = []
    made = threading.Thread(target=lambda: drawn.append(build_model(SPEC, 3)))
    with private_state():
        torch.manual_seed(99)
        made.start()
        made.join(0.2)
        assert made.is_alive()
        first = torch.rand(3)
    made.join(10)
    assert not made.is_alive()
    assert (model_vector(drawn[0]) == expected).all()
    assert torch.equal(first, torch.rand(3, generator=torch.Generator().manual_seed(99)))


def test_the_state_is_as_it_was_and_blocks_may_nest() -> None:
    before = torch.get_rng_state()
    with private_state(), private_state():
        torch.rand(7)
    assert torch.equal(torch.get_rng_state(), before)
