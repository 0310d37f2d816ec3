"""A site's names against the study's: equal and in the same order, or an error that shows what differs."""

from __future__ import annotations

import pytest

from client_agent.learning.names import (
    NO_NAMES,
    DataNames,
    Named,
    difference,
    require_names_of_study,
    require_same_names,
)
from protocol.errors import ConfigurationError
from protocol.text import NamesKind

STUDY = DataNames(("age", "sex", "fare"), ("died", "survived"))


def refusal(found: DataNames) -> str:
    with pytest.raises(ConfigurationError) as refused:
        require_names_of_study(STUDY, found, "heart", "/data")
    return refused.value.detail


def test_what_the_study_does_not_name_is_not_compared() -> None:
    """None of these is refused; the same names in another order are, below."""
    require_names_of_study(STUDY, STUDY, "heart", "/data")
    require_names_of_study(NO_NAMES, STUDY, "heart", "/data")
    require_names_of_study(DataNames(classes=STUDY.classes), DataNames(("x",), STUDY.classes), "heart", "/data")


def test_another_order_is_shown_and_called_so() -> None:
    said = refusal(DataNames(("age", "fare", "sex"), STUDY.classes))
    assert said.startswith(
        "study 'heart': its feature_names are not those of /data, the same names in another order:\n"
        "--- study heart\n+++ /data\n"
    )
    changed = [line for line in said.splitlines() if line[0] in "+-" and line[1] not in "+-"]
    assert sorted(changed) == ["+fare", "-fare"]
    assert "bring X and feature_names into the study's order" in said


def test_a_column_too_many_and_a_missing_one_are_named() -> None:
    assert "\n+weight\n" in refusal(DataNames(("age", "sex", "fare", "weight"), STUDY.classes))
    said = refusal(DataNames(("age", "fare"), STUDY.classes))
    assert "\n-sex\n" in said
    assert "another order" not in said


def test_swapped_classes_are_refused() -> None:
    said = refusal(DataNames(STUDY.features, ("survived", "died")))
    assert "its class_names are not those of /data, the same names in another order" in said
    assert "number y and class_names as the study does" in said


@pytest.mark.parametrize(
    ("found", "kind"), [(DataNames(classes=STUDY.classes), "feature_names"), (DataNames(STUDY.features), "class_names")]
)
def test_data_that_do_not_say_are_refused_where_the_study_says(found: DataNames, kind: str) -> None:
    assert f"/data does not: give {kind} beside X and y" in refusal(found)


def test_a_long_difference_is_cut() -> None:
    mine, yours = (Named(who, tuple(f"{who}-{n}" for n in range(561))) for who in ("mine", "yours"))
    lines = difference(mine, yours).splitlines()
    # two lines of heads, one of the place, 561 names that go and 561 that come; 60 are shown
    assert len(lines) == 61
    assert lines[-1] == f"... and {3 + 2 * 561 - 60} lines more"


def test_several_givers_agree_or_the_silent_one_is_named() -> None:
    a, b, silent = Named("a", ("x", "y")), Named("b", ("x", "z")), Named("c", ())
    require_same_names([a, a], NamesKind.FEATURES, "sites", "here")
    require_same_names([silent, silent], NamesKind.FEATURES, "sites", "here")
    with pytest.raises(ConfigurationError, match="here: c give no feature_names and the others do: all sites give"):
        require_same_names([a, silent], NamesKind.FEATURES, "sites", "here")
    with pytest.raises(ConfigurationError, match=r"class_names differ between sites 'a' and 'b':\n(.|\n)*-y\n\+z"):
        require_same_names([a, b], NamesKind.CLASSES, "sites", "here")


def test_names_of_a_mac_and_of_a_pc_are_the_same() -> None:
    """Letters composed or not; what only looks the same is shown by number."""
    composed, parts = (
        DataNames(("gr\u00f6\u00dfe", "b"), ("ja", "n\u00e9")),
        DataNames(("gro\u0308\u00dfe", "b"), ("ja", "ne\u0301")),
    )
    require_names_of_study(composed, parts, "heart", "/data")
    for kind in NamesKind:
        require_same_names([Named("a", composed.of(kind)), Named("b", parts.of(kind))], kind, "sites", "/data")
        swapped = Named("b", parts.of(kind)[::-1])
        with pytest.raises(ConfigurationError, match="the same names in another order"):
            require_same_names([Named("a", composed.of(kind)), swapped], kind, "sites", "/data")
    said = difference(Named("a", ("\u00b5g",)), Named("b", ("\u03bcg",)))
    assert said.endswith("-\\xb5g\n+\\u03bcg")
    assert difference(Named("a", ("gr\u00f6\u00dfe",)), Named("b", ("b",))).endswith("-gr\u00f6\u00dfe\n+b")
