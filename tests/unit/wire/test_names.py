"""Names of columns and classes in a study: what is accepted, and that a study without names has the bytes it had."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from protocol.errors import MalformedMessage
from protocol.messages.control import LayerShape, ModelSpec, Study
from protocol.text import MAX_NAME_CHARACTERS, MAX_NAMES_BYTES
from tests.unit.parties import parties, study

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
