"""The requester's probe: clipped, encoded once, and measured against its own update."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from client_agent.requester.measuring.probe import make_probe, probe_file
from client_agent.requester.plan import new_plan
from protocol.arithmetic.fixed_point import decode
from protocol.errors import ConfigurationError
from protocol.messages.control import RuleName
from protocol.sharing import Side
from tests.unit.client_agent.benches import requester_bench
from tests.unit.client_agent.test_decisions import MODEL, SIZE, study_with

STUDY = study_with(RuleName.INFLUENCE, grid=4)


def test_a_probe_is_made_once_and_knows_its_length_and_the_own_influence(tmp_path: Path) -> None:
    """The bench's update is .01 everywhere and its probe the opposite: <g, v> = -20 * .0001."""
    with requester_bench(tmp_path, STUDY, MODEL) as bench:
        owner = bench.requester
        announced = new_plan(owner).announcement.message
        owner.encode(announced, STUDY.parameters.weight_grid)
        probe = make_probe(owner, announced)
        parameters = STUDY.parameters
        # each factor is rounded by less than one ring unit, against .01 everywhere
        assert abs(probe.inner_product + SIZE * 0.01**2) <= SIZE * (2 * 0.01 + 1 / parameters.scale) / parameters.scale
        # .01 is off by 2^-24 of itself as a float32; the rest is float64
        assert probe.norm == pytest.approx(0.01 * np.sqrt(SIZE), rel=2.0**-23)
        encoded = probe_file(owner, 1)(0, SIZE)
        assert np.max(np.abs(decode(encoded, parameters) + 0.01)) <= 1 / parameters.scale + 0.01 * 2.0**-24
        owner.learner._update = np.ones(SIZE, dtype=np.float32)  # type: ignore[attr-defined]
        assert make_probe(owner, announced) == probe
        np.testing.assert_array_equal(probe_file(owner, 1)(0, SIZE), encoded)


def test_a_record_that_a_power_cut_left_alone_is_no_encoding(tmp_path: Path) -> None:
    """Records and what they speak of become durable together: either may be missing then, and nothing was sent."""
    with requester_bench(tmp_path, STUDY, MODEL) as bench:
        owner = bench.requester
        announced = new_plan(owner).announcement.message
        update = owner.encode(announced, STUDY.parameters.weight_grid)
        probe = make_probe(owner, announced)
        for file in (owner.encoded_file(announced), probe_file(owner, 1)):
            file.path.unlink()
        assert owner.encode(announced, STUDY.parameters.weight_grid).norm == pytest.approx(update.norm)
        assert make_probe(owner, announced).norm == pytest.approx(probe.norm)
        for file in (owner.encoded_file(announced), probe_file(owner, 1)):
            assert file(0, SIZE).size == SIZE


def test_without_validation_data_no_study_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with requester_bench(tmp_path, STUDY, MODEL) as bench:

        def lacking(model: np.ndarray) -> np.ndarray:
            raise ConfigurationError("put examples into validation.npz")

        monkeypatch.setattr(bench.requester.learner, "probe", lacking)
        with pytest.raises(ConfigurationError, match=r"validation\.npz"):
            bench.requester.run()
        assert bench.servers[Side.A].sent == {}
        assert bench.requester.state.finished is None
