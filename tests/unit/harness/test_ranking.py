"""Ranking by transfer loss: secure equals plain within the derived bound."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import moiety
from harness.datasets.registry import DataRequest
from harness.simulate.ranking import open_losses, parameters_for, rank
from protocol.arithmetic import fixed_point
from protocol.arithmetic.ring import derive
from protocol.errors import ConfigurationError, UnusableUpdate
from protocol.ranking import predictor, quadratic_form
from tests.kit.present import present

SEED = derive(bytes(32), "ranking test")
BREAST_CANCER = DataRequest(data="breast_cancer", seed=0)


def form_and_models(sites: int, features: int, outputs: int):
    random = np.random.default_rng(3)
    form = quadratic_form(random.normal(size=(50, features)), random.normal(size=(50, outputs)))
    models = {f"site-{i}": predictor(random.normal(size=(features, outputs)) / features) for i in range(sites)}
    return form, models


def test_opened_losses_equal_the_plain_ones_within_the_bound():
    form, models = form_and_models(4, 9, 2)
    opened = open_losses(form, models, clip_norm=4.0, seed=SEED)
    assert [one.site for one in opened.losses] == list(models)
    assert opened.failed_check == ()
    assert 0 < opened.error_bound < 1e-2
    for one in opened.losses:
        assert abs(one.loss - form.loss(models[one.site])) <= opened.error_bound


def test_an_own_model_longer_than_the_clip_norm_is_refused_and_named():
    form, models = form_and_models(2, 5, 1)
    models["site-1"] = models["site-1"] * 1e3
    with pytest.raises(UnusableUpdate, match=r"'site-1'.*--clip-norm"):
        open_losses(form, models, clip_norm=4.0, seed=SEED)


def test_a_site_that_puts_half_the_ring_into_its_model_fails_its_range_check(monkeypatch: pytest.MonkeyPatch):
    form, models = form_and_models(3, 5, 1)
    honest = fixed_point.encode

    def encode(values, parameters, rand):
        encoded = honest(values, parameters, rand)
        if np.array_equal(values, models["site-1"]):
            encoded = encoded.copy()
            encoded[0] += np.uint64(1 << 63)
        return encoded

    monkeypatch.setattr(fixed_point, "encode", encode)
    opened = open_losses(form, models, clip_norm=4.0, seed=SEED)
    assert opened.failed_check == ("site-1",)
    assert {one.site for one in opened.losses} == {"site-0", "site-2"}


def test_too_many_features_are_refused():
    with pytest.raises(ConfigurationError, match="at most 131072"):
        parameters_for(2**17 + 1, 4.0)
    assert parameters_for(2**17, 4.0).exact_distances


def test_secure_and_plain_rank_alike():
    protected, plain = (rank(BREAST_CANCER, secure=secure) for secure in (True, False))
    assert protected.judged_on == "validation"
    assert {one.site for one in protected.sites} == {one.site for one in plain.sites}
    by_site = {one.site: one.loss for one in plain.sites}
    for one in protected.sites:
        assert present(one.loss) == pytest.approx(by_site[one.site], abs=present(protected.error_bound), rel=0)
    assert protected.own_loss == plain.own_loss


def run(*arguments: str):
    return CliRunner().invoke(moiety.build("simulate"), ["simulate", "rank", *arguments])


def test_plain_ranks_by_loss_as_json():
    done = run("breast_cancer", "--protection", "plain", "--json")
    assert done.exit_code == 0
    losses = [one["loss"] for one in json.loads(done.stdout)["sites"]]
    assert losses == sorted(losses)
    assert len(losses) == 4


def test_the_secure_table_names_every_contributor():
    shown = run("breast_cancer")
    assert shown.exit_code == 0
    for name in ("county-hospital", "university-clinic", "oncology-centre", "screening-centre"):
        assert name in shown.output
