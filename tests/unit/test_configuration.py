"""A wrong configuration names the key, what was found, and what is allowed."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, ConfigDict, Field

from protocol.configuration import parse_toml, validated
from protocol.errors import ConfigurationError


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    timeout_s: float = Field(default=1.0, gt=0)


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str
    inner: Inner = Inner()
    numbers: tuple[Inner, ...] = ()


def refuse(table: dict[str, object]) -> str:
    with pytest.raises(ConfigurationError) as caught:
        validated(Outer, table, "site.toml")
    return caught.value.detail


def test_a_good_table_is_returned() -> None:
    assert validated(Outer, parse_toml('name = "x"\n[inner]\ntimeout_s = 2\n', "s"), "s").inner.timeout_s == 2


def test_an_unknown_key_is_named_with_the_nearest_and_all_allowed_ones() -> None:
    detail = refuse({"nam": "x", "name": "y"})
    assert "site.toml: unknown key 'nam'; did you mean 'name'? (allowed: inner, name, numbers)" in detail


def test_an_unknown_key_in_a_nested_table() -> None:
    assert "unknown key 'inner.zzz' (allowed: timeout_s)" in refuse({"name": "x", "inner": {"zzz": 1}})


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


def test_text_that_is_not_toml_gives_line_and_column() -> None:
    with pytest.raises(ConfigurationError, match=r"site.toml: not valid TOML: .*line 2"):
        parse_toml('name = "x"\nage = = 3', "site.toml")
