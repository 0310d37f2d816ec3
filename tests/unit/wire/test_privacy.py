"""A study with noise: what it may say, and what beside it would give away more than the noise covers."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from protocol.messages.control import (
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
from protocol.messages.model import Buffers
from protocol.messages.specifications import require_public_preparation
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


def test_noise_per_record_needs_a_clip():
    with pytest.raises(ValidationError, match="give record_clip"):
        PrivacySpec(noise_multiplier=1.0)


def test_a_study_with_noise_of_the_servers_is_read_and_runs_nowhere():
    """Older versions ran it: what it has left behind stays readable."""
    old = with_noise(privacy=HIDDEN, tags=True, training=TrainingSpec(batches="cycled"))
    assert Study.parse(old.canonical()) == old
    assert b"record_clip" not in old.canonical()
    assert old.record_noise is None
    assert old.unsupported is not None
    assert "take unit = 'record'" in old.unsupported
    with pytest.raises(ValueError, match="clips no record"):
        _ = HIDDEN.clip
    for going in (with_noise(), with_noise(privacy=None)):
        assert going.unsupported is None


def test_a_summary_has_no_noise():
    model = ModelSpec(kind="linear", inputs=(1,), layers=study("ab" * 32).model.layers)
    table = schema({**AGE, "range": [0, 100]}, ILL)
    with pytest.raises(ValidationError, match="leave summary out"):
        with_noise(rule=FEDAVG, model=model, data_schema=table, summary=SummarySpec())


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
