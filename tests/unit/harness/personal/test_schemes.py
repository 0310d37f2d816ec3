"""A round of each scheme, against the formulas done by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from client_agent.learning.data import Examples
from client_agent.learning.flat_vector import load_vector, model_vector
from client_agent.learning.losses import training_loss
from client_agent.learning.sampling import site_seed
from client_agent.learning.trainer import compute_update
from harness.engine.algorithms import Apfl, Kept, LocalProblem
from harness.engine.all_sites import Alone, Averaged, Mixed, SchemeName, scheme_of, used_model
from protocol.errors import ConfigurationError, UnusableUpdate
from protocol.messages.control import TrainingSpec
from tests.unit.harness.personal.sites import CPU, PERSONAL, SPEC, TRAINING, setting


def updates_from(setup, vector: np.ndarray, round_number: int) -> list[np.ndarray]:
    found = []
    for site in setup.sites:
        load_vector(setup.model, vector)
        seed = site_seed(setup.seed, site.name)
        found.append(compute_update(setup.model, site.train, TRAINING, round=round_number, seed=seed, device=CPU))
    return found


def test_averaged_applies_the_mean_of_all_sites_updates() -> None:
    setup = setting()
    scheme = scheme_of(SchemeName.AVERAGED, setup, setup.one_by_one())
    state = scheme.start()
    after, clipped = scheme.round(state, 1)
    mean = np.mean([update.astype(np.float64) for update in updates_from(setup, state.models[0], 1)], axis=0)
    np.testing.assert_array_equal(after.models[0], state.models[0] - np.float32(0.5) * mean.astype(np.float32))
    assert clipped.clipped_share == 0.0
    assert after.personal.shape == (5, 0)


def test_averaged_clips_and_says_how_often() -> None:
    setup = setting(clip_norm=2.0**-4)
    state = Averaged(setup, setup.one_by_one()).start()
    after, clipped = Averaged(setup, setup.one_by_one()).round(state, 1)
    assert clipped.clipped_share == 1.0
    # the mean of five vectors of norm C is no longer than C, and the step is half of it; 1e-6 for float32
    assert np.linalg.norm(after.models[0] - state.models[0]) <= 0.5 * 2.0**-4 * (1 + 1e-6)


def test_personal_layers_go_on_from_where_the_site_left_them() -> None:
    setup = setting(PERSONAL)
    scheme = Averaged(setup, setup.one_by_one())
    first, _ = scheme.round(scheme.start(), 1)
    second, _ = scheme.round(first, 2)
    assert first.models.shape == (1, 9)
    assert first.personal.shape == (5, 4)
    assert len(np.unique(first.personal, axis=0)) == 5
    restarted, _ = scheme.round(replace(first, personal=scheme.start().personal), 2)
    assert not np.array_equal(restarted.personal, second.personal)
    again, _ = scheme.round(first, 2)
    np.testing.assert_array_equal(again.personal, second.personal)


def test_alone_every_site_follows_its_own_updates() -> None:
    setup = setting()
    scheme = Alone(setup, setup.one_by_one())
    state = scheme.start()
    after, _ = scheme.round(state, 1)
    for row, update in enumerate(updates_from(setup, state.models[0], 1)):
        np.testing.assert_array_equal(after.models[row], state.models[row] - np.float32(0.5) * update)
    assert len(np.unique(after.models, axis=0)) == 5


def test_centralised_trains_one_model_on_all_rows() -> None:
    setup = setting(training=TRAINING.model_copy(update={"batch_size": 1000}))
    scheme = scheme_of(SchemeName.CENTRALISED, setup, setup.one_by_one())
    state = scheme.start()
    after, _ = scheme.round(state, 1)
    pooled = Examples(
        np.concatenate([site.train.X for site in setup.sites]), np.concatenate([site.train.y for site in setup.sites])
    )
    load_vector(setup.model, state.models[0])
    full = compute_update(setup.model, pooled, TrainingSpec(batch_size=1000), round=1, seed=1, device=CPU)
    # one full batch in another order of 50 rows: fewer than 64 additions of terms below 8
    np.testing.assert_allclose(after.models[0], state.models[0] - 0.5 * full, rtol=0, atol=64 * 8 * 2.0**-24)


def test_apfl_shares_what_fedavg_shares_and_keeps_a_model_of_its_own() -> None:
    setup = setting()
    scheme = scheme_of(SchemeName.MIXED, setup, setup.one_by_one())
    assert isinstance(scheme, Mixed)
    state = scheme.start()
    after, _ = scheme.round(state, 1)
    averaged, _ = Averaged(setup, setup.one_by_one()).round(state, 1)
    np.testing.assert_array_equal(after.models, averaged.models)
    assert after.own.shape == (5, 9)
    np.testing.assert_array_equal(after.mixing, [0.5] * 5)  # both models were the same when it adapted
    later, _ = scheme.round(after, 2)
    assert len(np.unique(later.mixing)) == 5
    assert np.all((later.mixing >= 0) & (later.mixing <= 1))


def test_apfl_steps_by_hand() -> None:
    setup = setting()
    data = setup.sites[0].train
    training = TRAINING.model_copy(update={"batch_size": 100})
    shared, own = model_vector(setup.model), np.linspace(-0.4, 0.4, 9, dtype=np.float32)

    def gradient(at: np.ndarray) -> np.ndarray:
        load_vector(setup.model, at.astype(np.float32))
        return compute_update(setup.model, data, TrainingSpec(batch_size=100), round=1, seed=1, device=CPU)

    problem = LocalProblem(setup.model, data, training, training_loss(training, data.y), 1, 1, CPU)
    update, kept = Apfl().train(problem, shared, Kept(own, 0.25), np.zeros_like(shared))
    mixed = gradient(0.25 * own + 0.75 * shared)
    mixing = min(1.0, max(0.0, 0.25 - 0.5 * float(np.dot(own - shared, mixed))))
    # gradients of 8 rows in another order and a mixture rounded once: fewer than 64 additions of terms below 8
    tolerance = 64 * 8 * 2.0**-24
    np.testing.assert_allclose(update, gradient(shared), rtol=0, atol=tolerance)
    assert 0 < mixing < 1
    # the slope adds nine products of terms below 4 with that error
    assert kept.mixing == pytest.approx(mixing, abs=9 * 4 * tolerance)
    np.testing.assert_allclose(kept.own, own - 0.5 * mixing * mixed, rtol=0, atol=10 * 4 * tolerance)
    _, fixed = Apfl(adaptive=False).train(problem, shared, Kept(own, 0.25), np.zeros_like(shared))
    assert fixed.mixing == 0.25


def test_apfl_at_the_ends_of_the_mixture() -> None:
    setup = setting()
    scheme = Mixed(setup, Apfl(start=0.0, adaptive=False))
    after, _ = scheme.round(scheme.start(), 1)
    np.testing.assert_array_equal(model_vector(used_model(scheme, after, 2)), after.models[0])
    np.testing.assert_array_equal(after.own, scheme.start().own)


def test_apfl_refuses_what_it_does_not_define() -> None:
    """As the baselines do, whose tests have every case."""
    setup = setting(training=TRAINING.model_copy(update={"momentum": 0.5}))
    with pytest.raises(ConfigurationError, match="APFL takes local SGD without momentum and l2"):
        Mixed(setup, Apfl()).round(Mixed(setup, Apfl()).start(), 1)


def test_an_update_that_is_not_finite_is_refused() -> None:
    setup = setting(training=TRAINING.model_copy(update={"local_learning_rate": 1e30, "l2": 1e30}))
    scheme = Averaged(setup, setup.one_by_one())
    with pytest.raises(UnusableUpdate):
        scheme.round(scheme.start(), 1)


def test_every_site_uses_its_own_model() -> None:
    setup = setting(PERSONAL)
    scheme = Averaged(setup, setup.one_by_one())
    state, _ = scheme.round(scheme.start(), 1)
    models = []
    for row in range(5):
        model = used_model(scheme, state, row)
        models.append([p.detach().clone() for p in model.parameters()])
    assert all(np.array_equal(models[0][2], model[2]) for model in models)  # shared
    assert not np.array_equal(models[0][0], models[1][0])  # the input layer's b
    assert SPEC.layers[0].shape == PERSONAL.layers[0].shape
