"""The ring of 48 bits, measured: every stage in both rings, and lifting errs as often as derived."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from harness.bench import ring as lifting
from harness.bench.cli import app
from harness.bench.ring import RingBenchmark, benchmark_ring, ring_text
from harness.bench.synthetic import parameters_for, update_of

SIZE = 4096


def test_lifting_errs_as_often_as_the_entries_sizes_say_and_never_more_than_the_bound() -> None:
    parameters, rng = parameters_for(SIZE, 11), np.random.default_rng(7)
    entries = lifting.sketched(
        lifting.encoded(update_of(1, SIZE), parameters, bytes(32)), hashlib.sha256(b"y").digest(), parameters
    )
    found = lifting.lift_errors(entries, 30, 1500, rng)
    assert found.expected > 100
    assert abs(found.erred - found.expected) < 5 * np.sqrt(found.expected)
    assert found.expected / 1500 <= 1.2 * lifting.most_often(30, parameters)
    assert 2**-21 < lifting.most_often(48, parameters) < 2**-20
    assert lifting.lift_errors(entries, 60, 20, rng).erred == 0


def test_a_vector_that_is_not_sketched_errs_less() -> None:
    assert lifting.most_often(48, parameters_for(1000, 11)) < lifting.most_often(48, parameters_for(SIZE, 11)) / 2


def test_every_stage_is_timed_in_both_rings() -> None:
    found = benchmark_ring(65_536, 1)
    assert isinstance(found, RingBenchmark)
    assert len(found.stages) == 8
    assert min(one.ring_48.median for one in found.stages) > 0
    assert "from 48 bits" in ring_text(found)
    assert "ring" in {command.name for command in app.registered_commands}


@pytest.mark.parametrize("odd", [65_537, 70_000])
def test_parameters_are_rounded_down_to_whole_pieces(odd: int) -> None:
    assert benchmark_ring(odd, 1).parameters == 65_536
