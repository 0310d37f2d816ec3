"""The table of problems is complete, and both sides of it agree."""

from __future__ import annotations

import json

import pytest

from protocol import errors
from protocol.errors import ErrorCode, MoietyError
from servers.problems import PROBLEMS, error_from, internal_problem, problem_body, status_of


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_code_has_a_problem_and_comes_back_as_its_error(code: ErrorCode) -> None:
    assert 400 <= status_of(code) < 600
    body = problem_body(code, "what was found")
    assert json.loads(body)["title"] == PROBLEMS[code].title
    error = error_from(body, status_of(code))
    policy = code is ErrorCode.POLICY_REFUSAL  # no server has one: a site's clause cannot come from there
    assert (error.code, error.detail) == (ErrorCode.MALFORMED_MESSAGE if policy else code, "what was found")


def test_the_table_has_no_other_code() -> None:
    assert set(PROBLEMS) == set(ErrorCode)


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"{}", b'{"code": "unheard_of", "detail": "x"}'])
def test_an_unreadable_problem_means_try_again(body: bytes) -> None:
    error = error_from(body, 502)
    assert isinstance(error, errors.Unavailable)
    assert "502" in error.detail


def test_an_unexpected_error_shows_nothing() -> None:
    assert json.loads(internal_problem())["code"] == "internal"
    assert issubclass(type(error_from(b"", 500)), MoietyError)
