"""The recorded facts hold: what other machines, people's files and people's habits rest on is as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic_core import to_json

from tests.frozen.differences import differences
from tests.frozen.examples import EXAMPLES
from tests.frozen.facts import all_facts
from tests.frozen.product import messages
from tests.frozen.record import RECORDED

pytestmark = pytest.mark.uncounted  # seeded rounds and every message, which unit tests run and count
NAMES = sorted(path.stem for path in RECORDED.glob("*.json"))
ONE_VALUE = {
    ("announcement", "purpose"),
    ("announcement", "tag_seed_hash"),
    ("privacy", "unit"),
    ("rule", "erosion_applies"),
    ("study", "privacy"),
    ("study", "protection"),
    ("study", "task"),
    ("task", "huber_delta"),
    *(("column", of_another_type) for of_another_type in ("categories", "labels", "other", "format")),
}
"""Fields that nothing but their default fits beside the others that the example sets; and every ``version``."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return all_facts(tmp_path_factory.mktemp("frozen"))


@pytest.mark.parametrize("name", NAMES)
def test_the_fact_is_as_it_was_recorded(found: dict[str, Any], name: str) -> None:
    before = json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))
    changes = list(differences(before, json.loads(json.dumps(found[name]))))
    assert not changes, "\n".join(
        [f"{len(changes)} changes; where one is meant: python -m tests.frozen.record", *changes[:20]]
    )


def test_every_fact_is_recorded(found: dict[str, Any]) -> None:
    assert sorted(found) == NAMES


def test_every_message_has_an_example_that_sets_every_field() -> None:
    kinds = {kind.KIND: kind for kind in messages()}
    assert len(kinds) == len(messages()), "two messages have the same kind"
    assert set(EXAMPLES) == set(kinds), "tests/frozen/examples.py: one example for each message"
    for kind, form in kinds.items():
        assert set(EXAMPLES[kind]) == set(form.model_fields), kind
        for name, field in form.model_fields.items():
            if not field.is_required() and name != "version" and (kind, name) not in ONE_VALUE:
                assert EXAMPLES[kind][name] != json.loads(to_json(field.get_default())), (kind, name)


def test_a_difference_is_named_by_its_place() -> None:
    before = {"a": {"b": [1, 2], "c": 3}, "d": 4}
    assert list(differences(before, before)) == []
    assert list(differences(before, {"a": {"b": [2, 1], "e": 3}, "d": 4})) == [
        "a.b: [1, 2] became [2, 1]",
        "a.c is gone",
        "a.e is new",
    ]
    assert list(differences({"a": [1.0, 2.0]}, {"a": [1.0, 2.1]}, within=0.01)) == ["a[1]: 2.0 became 2.1"]
    assert list(differences({"a": [1.0, 2.0]}, {"a": [1.0, 2.1]}, within=0.2)) == []


def test_the_recorded_files_are_small() -> None:
    assert sum(path.stat().st_size for path in Path(RECORDED).iterdir()) < 8 * 2**16
