"""kill -9 in the round of the summary: opened once, with the figures of an undisturbed one (docs/protocol.md 17)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from client_agent.site.events import RoundEnd
from client_agent.site.remembered_cohorts import Remembered
from client_agent.study.summarising import SUMMARY_FILE, Summary
from protocol.wire.messages import Purpose
from tests.integration.crashes import REQUESTER, SITES, Kill, audit, crash_federation, run_killing
from tests.integration.test_summary import POLICY, put_tables, summary_study
from tests.kit.disk import folder_on_disk
from tests.kit.processes import Federation

KILLS = (
    Kill("c2", "after_decision_journalled"),
    Kill("c2", "after_update_encoded"),
    Kill("c2", "after_output_opened"),
    Kill(REQUESTER, "before_settled"),
)


@pytest.fixture(scope="module")
def federation() -> Iterator[Federation]:
    with folder_on_disk() as folder, crash_federation(folder, policy=POLICY) as running:
        put_tables(running, SITES)
        yield running


def summaries(federation: Federation, name: str) -> list[Summary | None]:
    journals = [federation.journal(site, name) for site in SITES]
    return [own.read(own.folder / SUMMARY_FILE, Summary) for own in journals]


@pytest.mark.soak
@pytest.mark.parametrize("kill", [pytest.param(kill, id=f"{kill.party}-{kill.point}") for kill in KILLS])
def test_a_summary_is_opened_once_wherever_a_party_dies(federation: Federation, kill: Kill) -> None:
    """The same question in every study, so the same table; each site remembers the round once, with its end."""
    study = summary_study(federation, f"summary-{kill.party}-{kill.point}".replace("_", "-"), rounds=1)
    outcome = run_killing(federation, study, [kill])
    audit(federation, study)
    assert [(r.purpose, r.state) for r in outcome.records] == [
        (Purpose.SUMMARY, RoundEnd.RELEASED),
        (Purpose.UPDATE, RoundEnd.RELEASED),
    ]
    found = summaries(federation, study.name)
    tables = {None if one is None or one.table is None else one.table.model_dump_json() for one in found}
    assert len(tables) == 1
    assert None not in tables
    for site in SITES:
        (path,) = federation.state(site).glob("cohorts/*/rounds.json")
        remembered = Remembered.model_validate_json(path.read_bytes()).cohorts
        (own,) = [one for one in remembered if one.study_digest == study.digest()]
        assert own.released is not None
        assert [question.column for question in own.questions] == ["x0", "x1", "x2", "x3", "x4", "stage"]
