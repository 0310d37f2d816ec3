"""A study's task, names, noise and ranking; a study without them keeps its bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from protocol.errors import ErrorCode, MalformedMessage
from protocol.messages.control import (
    MOST_COUNTS_ROUNDS,
    MOST_RANKING_ROUNDS,
    LayerShape,
    LossName,
    ModelSpec,
    OutcomeCause,
    PrivacySpec,
    Purpose,
    RankingSpec,
    RoundOutcome,
    RoundState,
    RuleName,
    RuleSpec,
    ShareKind,
    Study,
    StudyProtection,
    SummarySpec,
    TaskKind,
    TaskSpec,
    TrainingSpec,
)
from protocol.messages.model import Buffers
from protocol.messages.specifications import require_public_preparation
from protocol.parameters import Needs, StudyParameters
from protocol.text import MAX_NAME_CHARACTERS, MAX_NAMES_BYTES
from tests.kit.present import present
from tests.kit.round_messages import outcome
from tests.unit.parties import announcement, parties, study
from tests.unit.wire.test_schema import AGE, ILL, schema

# --- task -------------------------------------------------------------------------------------------------------------

ROSTER = "0" * 64


def test_a_study_of_classes_has_the_bytes_of_one_without_a_task() -> None:
    plain = study(ROSTER)
    said = plain.model_copy(update={"task": TaskSpec(kind=TaskKind.CLASSES)})
    assert said.canonical() == plain.canonical()
    assert b'"task"' not in plain.canonical()
    assert Study.parse(plain.canonical()).task.kind is TaskKind.CLASSES


def test_a_task_is_part_of_the_bytes_and_its_defaults_are_not() -> None:
    assert TaskSpec(kind=TaskKind.SURVIVAL).canonical() == b'{"kind":"survival"}'
    assert TaskSpec(kind=TaskKind.REGRESSION).chosen_loss is LossName.SQUARED
    one = study(ROSTER).model_copy(update={"task": TaskSpec(kind=TaskKind.COUNTS)})
    assert Study.parse(one.canonical()) == one
    assert one.digest() != study(ROSTER).digest()


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ({"kind": TaskKind.COUNTS, "loss": LossName.COX}, "task 'counts' has no loss 'cox': take 'poisson'"),
        ({"kind": TaskKind.REGRESSION, "huber_delta": 2.0}, "huber_delta belongs to loss 'huber'"),
        ({"ties": "breslow"}, "ties belong to loss 'cox'"),
    ],
)
def test_what_does_not_belong_to_the_task_is_refused(task: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        TaskSpec(**task)


@pytest.mark.parametrize(
    ("kind", "classes", "changed", "said"),
    [
        (TaskKind.CLASSES, 1, {}, "task 'classes' takes a model with one output per class"),
        (TaskKind.SURVIVAL, 2, {}, "a model with one output, the log hazard, found 2: set model.outputs to 1"),
        (TaskKind.OWN, 2, {}, "set model.kind to 'plugin'"),
        (TaskKind.REGRESSION, 2, {"training": {"class_weights": "inverse_frequency"}}, "class_weights weigh classes"),
        (TaskKind.REGRESSION, 2, {"rule": {"name": RuleName.WFEDAVG}}, "rule 'wfedavg' counts classes"),
        (TaskKind.REGRESSION, 2, {"ranking": RankingSpec()}, "ranking fits a model to classes"),
    ],
)
def test_a_study_of_another_task_asks_nothing_of_classes(
    kind: TaskKind, classes: int, changed: dict[str, Any], said: str
) -> None:
    plain = study(ROSTER)
    parts: dict[str, Any] = {
        "task": TaskSpec(kind=kind),
        "model": plain.model.model_copy(update={"classes": classes, "inputs": (2,)}),
        "training": plain.training.model_copy(update=changed.get("training", {})),
        "rule": plain.rule.model_copy(update=changed.get("rule", {})),
        "ranking": changed.get("ranking"),
    }
    if parts["rule"].name.self_weighted:
        dimension = plain.parameters.dimension + 1
        parts["parameters"] = plain.parameters.model_copy(update={"dimension": dimension})
    with pytest.raises(ValidationError, match=said):
        Study(**{**dict(plain), **parts})


def test_a_model_without_outputs_learns_nothing() -> None:
    with pytest.raises(ValueError, match="at least one output, found 0"):
        TaskSpec(kind=TaskKind.REGRESSION).require_outputs(0)


@pytest.mark.parametrize(
    ("changed", "said"),
    [({"kind": "library"}, "kind 'library' belong together"), ({"buffers": Buffers.SHARED}, "buffers = 'local'")],
)
def test_a_model_that_a_study_cannot_have(changed: dict[str, Any], said: str) -> None:
    plain = study(ROSTER)
    rule = plain.rule.model_copy(update={"name": RuleName.FEDADAM, "server_learning_rate": 0.1})
    with pytest.raises(ValidationError, match=said):
        Study(**{**dict(plain), "rule": rule, "model": ModelSpec(**{**dict(plain.model), **changed})})


# --- names ------------------------------------------------------------------------------------------------------------

MODEL = ModelSpec(kind="linear", inputs=(2,), layers=(LayerShape(name="w", shape=(2,)),))
NAMED = MODEL.named(("age", "sex"), ("benign", "malignant"))


def test_a_model_without_names_has_no_trace_of_them() -> None:
    assert MODEL.canonical() == (
        b'{"activation":"relu","classes":2,"dropout":0.0,"hidden":[],"inputs":[2],"kind":"linear",'
        b'"layers":[{"name":"w","shape":[2]}],"personal":[]}'
    )
    spelled_out = ModelSpec.parse(MODEL.canonical()[:-1] + b',"class_names":[],"feature_names":[]}')
    assert spelled_out == MODEL
    assert spelled_out.digest() == MODEL.digest()


def test_names_survive_the_bytes_and_change_the_digest() -> None:
    plain = study(parties().roster.message.digest())
    named = plain.model_copy(update={"model": plain.model.named((), ("no", "yes"))})
    assert Study.parse(named.canonical()) == named
    assert named.digest() != plain.digest()
    assert NAMED.digest() != MODEL.named(("sex", "age"), ("benign", "malignant")).digest()


def test_the_columns_of_har_fit() -> None:
    names = tuple(f"fBodyBodyGyroJerkMag-bandsEnergy()-{number}" for number in range(561))
    wide = MODEL.model_copy(update={"inputs": (561,)}).named(names, ())
    assert ModelSpec.parse(wide.canonical()).feature_names == names


@pytest.mark.parametrize(
    ("features", "classes", "said"),
    [
        (("age", "age"), (), "feature_names: 'age' is there more than once"),
        ((), ("a", "a"), "class_names: 'a' is there more than once"),
        (("age", ""), (), "feature_names: '' is no name"),
        (("age", "\x1b[2Jsex"), (), r"'\\x1b\[2Jsex' is no name; take 1 to 200 printable characters"),
        (("age", "line\nbreak"), (), "is no name"),
        (("age", "x" * (MAX_NAME_CHARACTERS + 1)), (), "is no name"),
        (("age",), (), r"feature_names holds 1 names and one example has shape \[2\]"),
        ((), ("a",), r"class_names holds 1 names \['a'\], the model has 2"),
    ],
)
def test_what_is_no_name_or_not_one_each_is_refused(
    features: tuple[str, ...], classes: tuple[str, ...], said: str
) -> None:
    with pytest.raises(ValidationError, match=said):
        MODEL.named(features, classes)


def test_only_flat_inputs_have_columns() -> None:
    image = MODEL.model_copy(update={"inputs": (1, 2)})
    with pytest.raises(ValidationError, match=r"shape \[1, 2\]: name every column of a flat input"):
        image.named(("a", "b"), ())
    assert image.named((), ("a", "b")).class_names == ("a", "b")


def test_more_names_than_a_study_holds_are_refused_with_a_way_out() -> None:
    names = tuple(f"gene-{number:05}" for number in range(MAX_NAMES_BYTES // 14 + 1))  # 14 bytes each in JSON
    with pytest.raises(ValidationError, match=r"a study holds 65536: shorten them, or say feature_names = \[\]"):
        MODEL.model_copy(update={"inputs": (len(names),)}).named(names, ())
    fewer = names[: MAX_NAMES_BYTES // 14]
    assert MODEL.model_copy(update={"inputs": (len(fewer),)}).named(fewer, ()).feature_names == fewer


def test_a_server_refuses_them_too() -> None:
    with pytest.raises(MalformedMessage, match="more than once"):
        ModelSpec.parse(NAMED.canonical().replace(b'"sex"', b'"age"'))


@pytest.mark.parametrize("name", ["", "x" * (MAX_NAME_CHARACTERS + 1), "a\x1b[2J", "a\u202e", "two\nlines"])
def test_a_layers_name_is_short_and_printable(name: str) -> None:
    with pytest.raises(ValidationError, match="1 to 200 printable characters"):
        LayerShape(name=name, shape=(1,))
    assert LayerShape(name="x" * MAX_NAME_CHARACTERS, shape=(1,)).name == "x" * MAX_NAME_CHARACTERS


# --- privacy ----------------------------------------------------------------------------------------------------------

PRIVACY = PrivacySpec(record_clip=1.0, noise_multiplier=1.1)
FEDAVG = RuleSpec(name=RuleName.FEDAVG)
HIDDEN = PrivacySpec(unit="site", noise_multiplier=1.5)


def with_noise(**changes: Any) -> Study:
    model = ModelSpec(kind="linear", inputs=(3,), layers=study("ab" * 32).model.layers)
    fields: dict[str, Any] = {"model": model, "privacy": PRIVACY, **changes}
    return study("ab" * 32, **fields)


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
    assert "take unit = 'record'" in present(old.unsupported)
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


# --- ranking ----------------------------------------------------------------------------------------------------------

PLAIN = study(parties().roster.message.digest())


def changed(**changes: Any) -> Study:
    fields = PLAIN.model_dump(mode="json") | {"ranking": {"clip_norm": 8.0}} | changes
    return Study.parse(json.dumps(fields).encode())


def test_a_rankings_vectors_have_their_own_length_and_clip_norm() -> None:
    """Three features and the constant: 10 of the triangle, 4 per class."""
    of = changed().parameters_in(Purpose.RANKING)
    assert (of.dimension, of.clip_norm, of.exact_distances) == (10 + 8, 8.0, True)
    assert of.least_contributors == PLAIN.parameters.least_contributors
    for purpose in (Purpose.UPDATE, Purpose.COUNTS):
        assert changed().parameters_in(purpose) == PLAIN.parameters
    assert PLAIN.parameters_in(Purpose.RANKING) == PLAIN.parameters


def test_rankings_come_first_then_counts_then_updates() -> None:
    assert [PLAIN.last_round(purpose) for purpose in (Purpose.RANKING, Purpose.COUNTS, Purpose.UPDATE)] == [0, 0, 5]
    with_counts = changed(
        rule={"name": "wfedavg"}, parameters=PLAIN.parameters.model_dump(mode="json") | {"dimension": 7}
    )
    counts = MOST_RANKING_ROUNDS + MOST_COUNTS_ROUNDS
    assert with_counts.last_round(Purpose.RANKING) == MOST_RANKING_ROUNDS
    assert with_counts.last_round(Purpose.COUNTS) == counts
    assert with_counts.last_round(Purpose.UPDATE) == counts + PLAIN.rounds


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"protection": "ckks", "rule": {"name": "fedavg"}}, "'ckks' opens nothing about single sites: leave ranking"),
        ({"rule": {"name": RuleName.LOCAL.value}}, "no contributor to rank: leave ranking out"),
        ({"model": {**PLAIN.model.model_dump(mode="json"), "inputs": []}}, "fill in model.inputs"),
        (
            {"model": {**PLAIN.model.model_dump(mode="json"), "inputs": [28, 28]}},
            r"784 features and 2 classes takes vectors of 310075 coordinates, at most 131072 can be opened exactly",
        ),
        ({"ranking": {"clip_norm": 3.0}}, "power of two, found 3.0; use 2.0 or 4.0"),
        ({"ranking": {"clip_norm": 0.5}}, "greater than or equal to 1"),
        ({"ranking": {"clip_norm": 2048.0}}, "less than or equal to 1024"),
        ({"ranking": {"penalty": 9e-3}}, "greater than or equal to 0.01"),
        ({"ranking": {"penalty": 1.5}}, "less than or equal to 1"),
    ],
)
def test_what_cannot_be_ranked_is_refused_with_what_to_do(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(MalformedMessage, match=text):
        changed(**changes)


def test_a_ranking_opens_inner_products_and_nothing_else() -> None:
    told = announcement("a" * 64, opens=Needs.INNER_PRODUCTS, purpose=Purpose.RANKING)
    assert told.measured
    for opens in Needs:
        if opens is not Needs.INNER_PRODUCTS:
            with pytest.raises(ValidationError, match="a ranking opens inner products"):
                announcement("a" * 64, opens=opens, purpose=Purpose.RANKING)
    with pytest.raises(ValidationError, match="only updates about which nothing is opened"):
        announcement("a" * 64, opens=Needs.INNER_PRODUCTS, purpose=Purpose.RANKING, ckks_key_id="5c" * 16)


def test_both_servers_can_say_that_a_round_ranked() -> None:
    ranked = outcome("a" * 64, outcome=RoundState.RANKED, cause=OutcomeCause.RANKED)
    assert RoundOutcome.parse(ranked.canonical()) == ranked
    with pytest.raises(ValidationError, match="queries_missing is no cause of a round that is ranked"):
        outcome("a" * 64, outcome=RoundState.RANKED, cause=OutcomeCause.QUERIES_MISSING)


def test_a_burnt_attempt_says_by_which_error() -> None:
    why: dict[str, Any] = {"cause": OutcomeCause.PRODUCTS_REFUSED, "code": ErrorCode.CORRELATION_REUSED}
    burnt = outcome("a" * 64, outcome=RoundState.BURNT, **why)
    assert burnt.reason == "the products were refused: correlation_reused"


# --- the small ring ---------------------------------------------------------------------------------------------------


def test_the_ring_is_in_a_studys_bytes_only_where_it_is_small() -> None:
    wide = StudyParameters(dimension=12, clip_norm=4.0, least_contributors=3)
    assert "ring_bits" not in wide.model_dump(mode="json")
    narrow = StudyParameters(dimension=12, clip_norm=4.0, least_contributors=3, ring_bits=48)
    assert narrow.model_dump(mode="json")["ring_bits"] == 48
    with pytest.raises(ValidationError, match="48"):
        StudyParameters(dimension=12, clip_norm=4.0, least_contributors=3, ring_bits=32)  # type: ignore[arg-type]
    assert [ShareKind.vector_of(48).ring_bits, ShareKind.vector_of(64).ring_bits] == [48, 64]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tags": True}, "leave tags out"),
        ({"protection": StudyProtection.CKKS, "rule": RuleSpec(name=RuleName.FEDAVG)}, "'ckks' shares no updates"),
    ],
)
def test_what_a_small_ring_does_not_go_with(changes: dict[str, Any], said: str) -> None:
    parameters = PLAIN.parameters.model_copy(update={"ring_bits": 48})
    assert Study(**{**dict(PLAIN), "parameters": parameters}).parameters.ring_bits == 48
    with pytest.raises(ValidationError, match=said):
        Study(**{**dict(PLAIN), "parameters": parameters, **changes})
