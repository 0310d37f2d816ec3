"""kill -9 at the requester in its local finish: done again, to the same bits, and recorded once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from client_agent.learning.at_requester.finish_table import FinishTable
from client_agent.site.events import RoundEnd
from client_agent.site.models.finished_model import finished_model, load_finished
from tests.integration.crashes import REQUESTER, ROUNDS, Kill, audit, crash_federation, light_study_of, run_killing
from tests.kit.processes import Federation

KILLS: Final = (
    Kill(REQUESTER, "before_finished_written"),
    Kill(REQUESTER, "after_finished_written"),
    Kill(REQUESTER, "before_round_recorded", ROUNDS + 1),
    Kill(REQUESTER, "after_round_recorded", ROUNDS + 1),
)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with crash_federation(tmp_path_factory.mktemp("finish")) as running:
        yield running


@pytest.fixture(scope="module")
def undisturbed(federation: Federation) -> bytes:
    study = light_study_of(federation, "finish-undisturbed")
    run_killing(federation, study, finish=FinishTable())
    return load_finished(federation.journal(REQUESTER, study.name)).tobytes()


@pytest.mark.parametrize(
    "kill",
    [pytest.param(KILLS[1], id=KILLS[1].point)]
    + [pytest.param(kill, id=kill.point, marks=pytest.mark.soak) for kill in (KILLS[0], *KILLS[2:])],
)
def test_a_finish_is_done_again(federation: Federation, undisturbed: bytes, kill: Kill) -> None:
    study = light_study_of(federation, f"finish-{kill.point}".replace("_", "-"))
    outcome = run_killing(federation, study, [kill], finish=FinishTable())
    audit(federation, study)
    assert [record.state for record in outcome.records] == [RoundEnd.RELEASED] * ROUNDS + [RoundEnd.FINISHED]
    own = federation.journal(REQUESTER, study.name)
    facts = finished_model(own)
    assert facts is not None
    assert facts.shared_version == ROUNDS
    assert load_finished(own).tobytes() == undisturbed
    assert len(set(outcome.models)) == 1
