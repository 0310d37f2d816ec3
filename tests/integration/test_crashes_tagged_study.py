"""kill -9 of agents in a study with tags: one seed, one word about an attempt, one sum (docs/protocol.md 15).

Two cases run in every test run, all of them in ``make soak``. Servers die in ``test_crashes_tags.py``.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from client_agent.site.events import RoundEnd
from client_agent.transcripts.reading import read_transcripts
from harness.federation.memory.learners import light_sites
from harness.federation.processes import FederationSpec
from protocol.transcript.deviations import findings
from tests.integration.agents import journal
from tests.integration.crashes import (
    REQUESTER,
    ROUNDS,
    SITES,
    Kill,
    audit,
    crash_federation,
    light_study_of,
    run_killing,
)
from tests.integration.wrong_tags import SITE, learner_with_wrong_tags
from tests.kit.processes import Federation
from tests.ports import free_ports

QUICK = (Kill(REQUESTER, "before_tags_judged"), Kill(REQUESTER, "after_tags_judged", 2))
SLOW = (
    Kill(REQUESTER, "before_tag_seed_sent"),
    Kill(REQUESTER, "before_tag_seed_sent", 2),
    Kill(REQUESTER, "after_tag_seed_sent"),
    Kill(REQUESTER, "after_tag_seed_sent", 2),
    Kill(REQUESTER, "after_tag_seed_sent", 3),
    Kill(REQUESTER, "before_tags_judged", 2),
    Kill(REQUESTER, "after_tags_judged"),
    Kill(REQUESTER, "after_go_sent"),
    Kill(REQUESTER, "after_go_sent", 2),
    Kill(REQUESTER, "after_release_sent"),
    Kill(REQUESTER, "after_output_opened"),
    Kill("c1", "after_shares_sealed"),
    Kill("c1", "after_output_opened"),
    Kill("c1", "after_output_opened", 2),
    Kill("c1", "before_round_recorded"),
)
WRONG = (
    Kill(REQUESTER, "before_tag_shares_journalled"),
    Kill(REQUESTER, "after_tag_shares_journalled"),
    Kill(REQUESTER, "after_tag_shares_journalled", 2),
    Kill(REQUESTER, "after_tags_judged"),
)
CASES = [pytest.param(kill, id=f"{kill.party}-{kill.point}-{kill.turn}") for kill in QUICK]
CASES += [pytest.param(kill, id=f"{kill.party}-{kill.point}-{kill.turn}", marks=pytest.mark.soak) for kill in SLOW]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with crash_federation(tmp_path_factory.mktemp("tagged")) as running:
        yield running


@pytest.fixture(scope="module")
def undisturbed(federation: Federation) -> bytes:
    """The same study without tags and without a crash: every site's last model."""
    outcome = run_killing(federation, light_study_of(federation, "undisturbed"))
    (model,) = set(outcome.models)
    return model


@pytest.mark.parametrize("kill", CASES)
def test_a_sum_is_opened_once_wherever_an_agent_dies(federation: Federation, undisturbed: bytes, kill: Kill) -> None:
    name = f"{kill.party}-{kill.point}-{kill.turn}".replace("_", "-")
    study = light_study_of(federation, name).model_copy(update={"tags": True})
    outcome = run_killing(federation, study, [kill])
    audit(federation, study)
    assert [(record.state, record.attempt) for record in outcome.records] == [(RoundEnd.RELEASED, 1)] * ROUNDS
    assert set(outcome.models) == {undisturbed}
    kept = [read_transcripts(journal(federation, site, name).folder / "transcripts") for site in SITES]
    together = [one for of_site in kept for one in of_site]
    assert findings(together, federation.parties.roster.message).deviations == ()
    assert {len(one.goes) for one in together} == {1}


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    spec = FederationSpec("wrong", REQUESTER, light_sites(SITES), seed=5, ports=free_ports())
    with Federation(tmp_path_factory.mktemp("wrong"), spec, learner_with_wrong_tags) as running:
        yield running


@pytest.mark.soak
@pytest.mark.parametrize("kill", WRONG, ids=lambda kill: f"{kill.point}-{kill.turn}")
def test_who_had_wrong_tags_is_known_wherever_the_requester_dies(wrong: Federation, kill: Kill) -> None:
    """Three contributors are needed and one is wrong: the round ends without a sum, and no other list is left."""
    name = f"{kill.point}-{kill.turn}".replace("_", "-")
    study = light_study_of(wrong, name).model_copy(update={"tags": True})
    outcome = run_killing(wrong, study, [kill])
    audit(wrong, study)
    assert [(record.state, record.failed_check) for record in outcome.records][:1] == [(RoundEnd.SKIPPED, (SITE,))]
    assert not any(any(model) for model in outcome.models[1:]), "the requester goes on alone, from the first model"
