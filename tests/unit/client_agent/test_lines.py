"""A round in one line: every purpose and every end has its words."""

from __future__ import annotations

import pytest

from client_agent.cli.lines import round_line
from client_agent.site.events import RoundEnd, RoundRecord
from protocol.wire.messages import Purpose


@pytest.mark.parametrize("purpose", list(Purpose))
def test_a_round_of_every_purpose_has_a_line(purpose: Purpose) -> None:
    record = RoundRecord(
        time_s=0.0, study="heart", site="c1", round=7, state=RoundEnd.CLOSED, purpose=purpose, model_version=1
    )
    line = round_line(record)
    assert line.startswith("round 7 closed")
    assert (" (" in line) is (purpose is not Purpose.UPDATE)


def test_a_measurement_is_told_from_a_sum() -> None:
    record = RoundRecord(
        time_s=0.0, study="heart", site="c1", round=7, state=RoundEnd.CLOSED, purpose=Purpose.MEASURE, model_version=1
    )
    assert round_line(record) == "round 7 closed (measured, nothing summed): 0.00 s, 0 kB "
