"""Which history of a server can come after which."""

from __future__ import annotations

import pytest

from protocol.messages.peer import History

SIGNED = History(party="operator-a", run="aa" * 32, start=3, began=40, changes=50, restored_at_s=7)


@pytest.mark.parametrize(
    ("changed", "follows"),
    [
        ({}, True),
        ({"changes": 51}, True),
        ({"changes": 49}, False),
        ({"run": "bb" * 32, "start": 4, "began": 50, "changes": 60}, True),
        ({"run": "bb" * 32, "start": 4, "began": 49, "changes": 60}, False),  # grown again since
        ({"run": "bb" * 32, "start": 3, "began": 50, "changes": 50}, True),  # a copy made after the last stop
        ({"run": "bb" * 32, "start": 1, "began": 0, "changes": 0, "restored_at_s": 8}, True),
        ({"run": "bb" * 32, "start": 9, "began": 90, "changes": 90, "restored_at_s": 6}, False),
    ],
)
def test_follows(changed: dict[str, object], follows: bool) -> None:
    assert SIGNED.model_copy(update=changed).follows(SIGNED) is follows


def test_its_place_is_said_for_people() -> None:
    assert SIGNED.place == "start 3, change 50"
