"""kill -9 in the round that ranks the sites: opened once, or lost and said so; training goes on (docs/protocol.md 8).

The requester's and both servers' deaths; a contributor's is that of any round. Some run in every test run, all of them
in ``make soak``.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from client_agent.site.events import RoundEnd
from client_agent.study.ranking import RANKING_FILE, Ranking
from harness.federation.memory.learners import LightLearner
from protocol.policy.site_policy import SitePolicy
from protocol.rules.transfer_loss import predictor
from protocol.wire.messages import Purpose, RankingSpec, Study
from tests.integration.crashes import (
    REQUESTER,
    ROUNDS,
    SITES,
    A,
    B,
    Kill,
    audit,
    crash_federation,
    light_study_of,
    run_killing,
)
from tests.kit.disk import folder_on_disk
from tests.kit.processes import Federation

CONTRIBUTORS = SITES[1:]
QUICK = (
    Kill(A, "after_correlations_marked"),
    Kill(B, "before_opening_stored"),
    Kill(REQUESTER, "before_opened_journalled"),
)
SLOW = (
    Kill(A, "after_challenge_stored"),
    Kill(A, "after_opening_stored"),
    Kill(A, "after_outcome_stored"),
    Kill(B, "before_outcome_stored"),
    Kill(REQUESTER, "after_queries_sent"),
    Kill(REQUESTER, "after_opened_journalled"),
)


def named(kill: Kill) -> str:
    return f"{kill.party}-{kill.point}"


REST = [pytest.param(kill, id=named(kill), marks=pytest.mark.soak) for kill in SLOW]


@pytest.fixture(scope="module")
def federation() -> Iterator[Federation]:
    policy = SitePolicy(least_isolation=0.0, may_rank=True)
    with folder_on_disk() as folder, crash_federation(folder, policy=policy) as running:
        yield running


def ranking_study(federation: Federation, kill: Kill) -> Study:
    name = f"ranking-{kill.party}-{kill.point}".replace("_", "-")
    return light_study_of(federation, name).model_copy(update={"ranking": RankingSpec()})


def ranked(federation: Federation, study: Study, kill: Kill) -> Ranking:
    """The ranking that the requester keeps, once the study ran to its end with this death in its first round."""
    outcome = run_killing(federation, study, [kill])
    audit(federation, study)
    assert len(set(outcome.models)) == 1
    assert [(r.round, r.purpose, r.state) for r in outcome.records] == [
        (1, Purpose.RANKING, RoundEnd.RANKED),
        *((number, Purpose.UPDATE, RoundEnd.RELEASED) for number in range(2, 2 + ROUNDS)),
    ]
    journal = federation.journal(REQUESTER, study.name)
    ranking = journal.read(journal.folder / RANKING_FILE, Ranking)
    assert ranking is not None
    return ranking


@pytest.mark.parametrize("kill", [pytest.param(kill, id=named(kill)) for kill in QUICK] + REST)
def test_the_sites_are_ranked_once_wherever_a_party_dies(federation: Federation, kill: Kill) -> None:
    study = ranking_study(federation, kill)
    ranking = ranked(federation, study, kill)
    assert ranking.problem == ""
    learners = {site: LightLearner(study, place) for place, site in enumerate(SITES)}
    form = learners[REQUESTER].judging_form().form
    plain = {site: form.loss(predictor(learner.ridge(0.01))) for site, learner in learners.items()}
    assert ranking.own_loss == plain[REQUESTER]
    assert [one.site for one in ranking.sites] == sorted(CONTRIBUTORS, key=lambda site: plain[site])
    assert ranking.error_bound is not None
    for one in ranking.sites:
        assert one.loss is not None
        assert abs(one.loss - plain[one.site]) <= ranking.error_bound


def test_a_half_that_died_with_its_server_is_not_asked_for_again(federation: Federation) -> None:
    """B holds its half: whoever has A's too could open it, so no site answers another query."""
    kill = Kill(A, "after_masked_sent")
    ranking = ranked(federation, ranking_study(federation, kill), kill)
    assert ranking.problem.startswith("one server lost its half of what is opened")
    assert ranking.sites == ()
