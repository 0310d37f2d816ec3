"""A wrong configuration names the key, what was found, and what is allowed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from protocol.configuration import parse_toml, validated
from protocol.errors import ConfigurationError

Name = Annotated[str, Field(pattern="^[a-z]+$")]


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    timeout_s: float = Field(default=1.0, gt=0)


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str
    inner: Inner = Inner()
    numbers: tuple[Inner, ...] = ()
    others: Literal["all"] | tuple[Name, ...] = "all"
    count: Literal["all"] | Annotated[int, Field(ge=1)] = "all"
    maybe: Inner | None = None
    named: Mapping[str, Inner] = {}

    @field_validator("name")
    @classmethod
    def _no_x(cls, name: str) -> str:
        if name == "xx":
            raise ValueError("two x are too many")
        return name

    @model_validator(mode="after")
    def _y_stands_alone(self) -> Outer:
        if self.name == "y" and self.numbers:
            raise ValueError("numbers: none beside the name y")
        return self


def refuse(table: dict[str, object]) -> str:
    with pytest.raises(ConfigurationError) as caught:
        validated(Outer, table, "site.toml")
    return caught.value.detail


def test_a_good_table_is_returned() -> None:
    assert validated(Outer, parse_toml('name = "x"\n[inner]\ntimeout_s = 2\n', "s"), "s").inner.timeout_s == 2


def test_an_unknown_key_is_named_with_the_nearest_and_all_allowed_ones() -> None:
    detail = refuse({"nam": "x", "name": "y"})
    assert (
        "site.toml: unknown key 'nam'; did you mean 'name'? (allowed: count, inner, maybe, name, named, "
        "numbers, others)" in detail
    )


@pytest.mark.parametrize("table", [{"numbers": [{}, {"timeout": 2}]}, {"named": {"x": {"timeout": 2}}}])
def test_an_unknown_key_of_an_entry_is_named_with_all_allowed_ones(table: dict[str, object]) -> None:
    assert "timeout'; did you mean 'timeout_s'? (allowed: timeout_s)" in refuse({"name": "x", **table})


def test_an_unknown_key_in_a_nested_table() -> None:
    assert "unknown key 'inner.zzz' (allowed: timeout_s)" in refuse({"name": "x", "inner": {"zzz": 1}})


def test_a_file_of_another_kind_is_refused_in_a_few_lines() -> None:
    """The keys that there are stand there once for each table, and the file is asked about."""
    detail = refuse({"name": "x", "inner": {"zz": 1}} | {f"z{n}": n for n in range(20)})
    assert detail.count("(allowed: ") == 2
    assert "unknown key 'z6'; and 13 more: is it the right file?" in detail


def test_an_unknown_key_in_a_list_of_tables_is_still_named() -> None:
    assert "unknown key 'numbers.0.zzz'" in refuse({"name": "x", "numbers": [{"zzz": 1}]})


def test_a_missing_key_and_a_wrong_value_are_both_reported() -> None:
    detail = refuse({"inner": {"timeout_s": -1}})
    assert "key 'name' is missing" in detail
    assert "key 'inner.timeout_s': Input should be greater than 0, found -1" in detail


def test_a_value_where_a_table_belongs_and_a_table_where_a_value_belongs() -> None:
    assert "key 'inner'" in refuse({"name": "x", "inner": 3})
    assert "key 'name'" in refuse({"name": {"secret": "not shown"}})
    assert "not shown" not in refuse({"name": {"secret": "not shown"}})


def test_a_rule_of_the_project_is_told_in_its_own_words() -> None:
    assert refuse({"name": "xx"}) == "site.toml: key 'name': two x are too many, found 'xx'"
    assert refuse({"name": "y", "numbers": [{}]}) == "site.toml: numbers: none beside the name y"


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ({"count": 0}, "key 'count': Input should be 'all' or greater than or equal to 1, found 0"),
        ({"others": 3}, "key 'others': Input should be 'all' or a valid tuple, found 3"),
        (
            {"others": ["a", "B"]},
            "key 'others': Input should be 'all' or entry 1: String should match pattern '^[a-z]+$', found 'B'",
        ),
    ],
)
def test_a_value_that_fits_no_branch_is_told_once(table: dict[str, object], text: str) -> None:
    assert refuse({"name": "a", **table}) == f"site.toml: {text}"


def test_an_optional_table_is_no_union() -> None:
    assert "unknown key 'maybe.zzz' (allowed: timeout_s)" in refuse({"name": "a", "maybe": {"zzz": 1}})


def test_text_that_is_not_toml_gives_line_and_column() -> None:
    with pytest.raises(ConfigurationError, match=r"site.toml: not valid TOML: .*line 2"):
        parse_toml('name = "x"\nage = = 3', "site.toml")


@pytest.mark.parametrize("text", ["a = " + "1" * 5000, "a = " + "[" * 5000])
def test_toml_that_no_reader_takes_is_one_line(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^study.toml: not valid TOML: "):
        parse_toml(text, "study.toml")


@pytest.mark.parametrize("mark", ["", "\ufeff", "\ufeff\ufeff"])
def test_a_byte_order_mark_is_no_part_of_a_table(mark: str) -> None:
    assert parse_toml(f"{mark}name = 'a'", "file") == {"name": "a"}
