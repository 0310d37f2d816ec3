"""A study with noise: what it may say, and what beside it would give away more than the noise covers."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from protocol.arithmetic.sum_noise import SumNoise
from protocol.protection.plan import StudyProtection
from protocol.wire.messages import (
    LayerShape,
    ModelSpec,
    PrivacySpec,
    RankingSpec,
    RuleName,
    RuleSpec,
    Study,
    SummarySpec,
    TaskKind,
    TaskSpec,
    TrainingSpec,
)
from protocol.wire.studies.model import Buffers
from protocol.wire.studies.privacy import require_public_preparation
from tests.unit.parties import study
from tests.unit.wire.test_schema import AGE, ILL, schema

PRIVACY = PrivacySpec(record_clip=1.0, noise_multiplier=1.1)
FEDAVG = RuleSpec(name=RuleName.FEDAVG)
HIDDEN = PrivacySpec(unit="site", noise_multiplier=1.5)


def with_noise(**changes: object) -> Study:
    base = study("ab" * 32)
    fields = {name: getattr(base, name) for name in type(base).model_fields}
    model = ModelSpec(kind="linear", inputs=(3,), layers=base.model.layers)
    return Study(**{**fields, "model": model, "privacy": PRIVACY, **changes})


def test_a_study_without_noise_has_the_bytes_that_it_had():
    assert b"privacy" not in study("ab" * 32).canonical()
    assert b'"noise_multiplier":1.1' in with_noise().canonical()
    assert with_noise().digest() != with_noise(privacy=None).digest()


def test_a_study_has_one_unit():
    with pytest.raises(ValidationError, match="a study has one unit"):
        PrivacySpec(unit="site", record_clip=1.0, noise_multiplier=1.0)
    with pytest.raises(ValidationError, match="give record_clip"):
        PrivacySpec(noise_multiplier=1.0)
    assert b"record_clip" not in HIDDEN.canonical()
    with pytest.raises(ValueError, match="clips no record"):
        _ = HIDDEN.clip


def test_whose_noise_a_study_has():
    of_records, of_sites = with_noise(), with_noise(privacy=HIDDEN, rule=FEDAVG)
    assert (of_records.record_noise, of_records.sum_noise) == (PRIVACY, None)
    assert of_sites.record_noise is None
    assert of_sites.sum_noise == SumNoise.of(of_sites.parameters, 1.5)
    assert with_noise(privacy=None).sum_noise is None


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"rule": RuleSpec(name=RuleName.LOCAL)}, "shares nothing"),
        ({"rule": RuleSpec(name=RuleName.WEIGHT_EROSION)}, "does not cover the distances"),
        ({"rule": RuleSpec(name=RuleName.FEDAVG, norm_bound=1.0)}, "does not cover the norms"),
        ({"rule": RuleSpec(name=RuleName.MULTI_KRUM, byzantine=0)}, "does not cover the pairs"),
        ({"rule": RuleSpec(name=RuleName.SHRINKAGE)}, "weighs by examples"),
        ({"ranking": RankingSpec()}, "ranking"),
        ({"tags": True}, "leave tags out"),
        ({"protection": StudyProtection.CKKS}, "server A alone holds the sum"),
        ({"privacy": PrivacySpec(unit="site", noise_multiplier=1000.0)}, "can be drawn exactly"),
    ],
)
def test_what_noise_of_servers_does_not_cover_is_refused(changes, text):
    with pytest.raises(ValidationError, match=text):
        with_noise(**{"privacy": HIDDEN, "rule": FEDAVG, **changes})


def test_a_summary_has_no_noise():
    model = ModelSpec(kind="linear", inputs=(1,), layers=study("ab" * 32).model.layers)
    table = schema({**AGE, "range": [0, 100]}, ILL)
    with pytest.raises(ValidationError, match="leave summary out"):
        with_noise(privacy=HIDDEN, rule=FEDAVG, model=model, data_schema=table, summary=SummarySpec())


def test_sites_that_weigh_themselves_have_no_noise_of_servers():
    base = with_noise()
    layers = (LayerShape(name="weight", shape=(base.parameters.dimension - 1,)),)
    with pytest.raises(ValidationError, match="divided by weights"):
        with_noise(
            privacy=HIDDEN,
            rule=RuleSpec(name=RuleName.FEDAVG_BY_SAMPLES),
            model=base.model.model_copy(update={"layers": layers}),
        )


def test_what_a_site_does_at_home_is_its_own():
    with_noise(privacy=HIDDEN, rule=FEDAVG, training=TrainingSpec(class_weights="inverse_frequency", batches="cycled"))


@pytest.mark.parametrize("noise", [0.0, 0.05, float("inf"), float("nan"), 1001.0, -1.0])
def test_noise_that_hides_nothing_or_is_no_number_is_refused(noise):
    with pytest.raises(ValidationError):
        PrivacySpec(record_clip=1.0, noise_multiplier=noise)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"rule": RuleSpec(name=RuleName.WFEDAVG)}, "class counts"),
        ({"rule": RuleSpec(name=RuleName.MALLOWS)}, "weighs by examples"),
        ({"rule": RuleSpec(name=RuleName.SHRINKAGE)}, "weighs by examples"),
        ({"rule": RuleSpec(name=RuleName.INFLUENCE)}, "weighs by examples"),
        ({"rule": RuleSpec(name=RuleName.LOCAL)}, "shares nothing"),
        ({"ranking": RankingSpec()}, "ranking"),
        ({"training": TrainingSpec(class_weights="inverse_frequency")}, "class_weights"),
        ({"training": TrainingSpec(batches="cycled")}, "shuffled"),
        ({"task": TaskSpec(kind=TaskKind.SURVIVAL)}, "Cox"),
    ],
)
def test_what_noise_does_not_cover_is_refused(changes, text):
    base = with_noise()
    model = base.model.model_copy(update={"classes": 1}) if "task" in changes else base.model
    if changes.get("rule") == RuleSpec(name=RuleName.WFEDAVG):
        layers = (LayerShape(name="weight", shape=(base.parameters.dimension - 1,)),)
        model = model.model_copy(update={"layers": layers})
    with pytest.raises(ValidationError, match=text):
        with_noise(model=model, **changes)


@pytest.mark.parametrize(
    ("kind", "changes", "text"),
    [
        ("plugin", {}, "plug-in"),
        ("linear", {"personal": ("input",)}, "personal layers"),
        ("linear", {"buffers": Buffers.LOCAL}, "batch norm"),
    ],
)
def test_models_that_mix_records_or_learn_beside_the_noise_are_refused(kind, changes, text):
    model = ModelSpec(kind=kind, inputs=(3,), layers=study("ab" * 32).model.layers, **changes)
    with pytest.raises(ValidationError, match=text):
        with_noise(model=model)


def test_a_table_scaled_by_its_own_records_is_refused():
    ranged = {**AGE, "range": [0, 100], "missing": "drop_row"}
    require_public_preparation(schema(ranged, ILL, scaling="range"))
    with pytest.raises(ValueError, match="scaling 'standard'"):
        require_public_preparation(schema(ranged, ILL, scaling="standard"))
    with pytest.raises(ValueError, match="own median"):
        require_public_preparation(schema({**ranged, "missing": "median"}, ILL, scaling="range"))


def test_a_study_says_so_about_its_own_table():
    table = schema({**AGE, "missing": "drop_row"}, ILL)
    model = ModelSpec(kind="linear", inputs=(1,), layers=study("ab" * 32).model.layers)
    with pytest.raises(ValidationError, match="scaling 'standard'"):
        with_noise(model=model, data_schema=table)
