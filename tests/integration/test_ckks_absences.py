"""Under CKKS over real processes: a site that joins late, and a release set that never comes."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import closing

import numpy as np
import pytest

from client_agent.site.events import RoundEnd, read_metrics
from harness.federation.learners import LightLearner
from protocol.messages.control import OutcomeCause, Study, StudyProtection
from protocol.policy.site_policy import SitePolicy
from protocol.shared_model import first_model
from protocol.sharing import Side
from tests.integration.agents import finished, wait_for
from tests.integration.crashes import REQUESTER, SITES, crash_federation, light_study_of, outcome_of
from tests.integration.test_ckks_study import FEDAVG
from tests.kit.bounds.regression_facts import UNIT, RoundFacts, encryption_error
from tests.kit.processes import Federation

pytest.importorskip("tenseal")
LATE = "c3"
MISSING = OutcomeCause.RELEASE_SET_MISSING.said()
EARLY = tuple(site for site in SITES if site != LATE)
WILLING = SitePolicy(least_isolation=0.0, allow_ckks=True, least_contributors=2)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    limits = {"grace_s": 1.0}
    with crash_federation(tmp_path_factory.mktemp("absences"), limits, WILLING) as running:
        yield running


def study_of(federation: Federation, name: str, rounds: int, deadline_s: float = 60.0) -> Study:
    made = light_study_of(federation, name)
    parameters = made.parameters.model_copy(update={"least_contributors": 2})
    changes = {"rule": FEDAVG, "protection": StudyProtection.CKKS, "rounds": rounds}
    return made.model_copy(update={**changes, "parameters": parameters, "round_deadline_s": deadline_s})


def died(federation: Federation, name: str) -> None:
    """Until its failpoint has killed it."""
    wait_for(f"the death of {name}", lambda: federation.exit_code(name) is not None)
    assert federation.exit_code(name) == -signal.SIGKILL, federation.tails()


def over(federation: Federation, study: Study) -> None:
    wait_for(f"the end of {study.name}", finished(federation, study.name, *SITES))


def at_both(federation: Federation, query: str, study: Study) -> list[list[tuple[object, ...]]]:
    found = []
    for side in Side:
        with closing(federation.database(side)) as database:
            found.append(database.execute(query, (study.digest(),)).fetchall())
    return found


def assert_model_of(federation: Federation, study: Study, took_part: Sequence[tuple[str, ...]]) -> None:
    """Every site has one and the same model: that of plain rounds with these sites, within the encryption's error.

    The updates are multiples of 1/256 and far enough from the middle of two, so a round adds its own error to the
    model, the server's step times the average's, and two float32 roundings; nothing is amplified.
    """
    models = set(outcome_of(federation, study).models)
    assert len(models) == 1
    learners = {site: LightLearner(study, place) for place, site in enumerate(SITES)}
    plain, allowed = first_model(study), 0.0
    step, clip_norm = study.training.server_learning_rate, study.parameters.clip_norm
    for number, sites in enumerate(took_part, 1):
        updates = [learners[site].update(plain, number).astype(np.float64) for site in sites]
        plain = learners[REQUESTER].apply(plain, np.mean(updates, axis=0).astype(np.float32))
        facts = RoundFacts(len(sites), float(len(sites)), 1.0, 1.0, 1.0, 1.0, False, rounded=False)
        rounding = 2 * UNIT * (3 * step * clip_norm + float(np.linalg.norm(plain)) + 1)
        allowed += step * encryption_error(facts, study.parameters) + rounding
    assert allowed < 1e-4
    model = np.frombuffer(models.pop(), dtype="<f4").astype(np.float64)
    assert np.linalg.norm(model - plain) <= allowed


def test_a_site_that_joins_in_round_3_gets_key_and_model_and_takes_part(federation: Federation) -> None:
    """The requester dies after round 2 and comes back when the late site has said that it is ready."""
    federation.kill(LATE)
    federation.kill(REQUESTER)
    federation.start_party(REQUESTER, "after_settled:2", start_when=2)
    study = study_of(federation, "late", rounds=4)
    federation.hand_in(study)
    died(federation, REQUESTER)
    federation.start_party(LATE)
    ready = "select site from ready_sites where study = ?"
    wait_for("c3 to be ready", lambda: all((LATE,) in rows for rows in at_both(federation, ready, study)))
    federation.start_party(REQUESTER, start_when=2)
    over(federation, study)
    records = outcome_of(federation, study).records
    assert [(r.round, r.state) for r in records] == [(number, RoundEnd.RELEASED) for number in (1, 2, 3, 4)]
    assert [r.took_part for r in records] == [EARLY, EARLY, SITES, SITES]
    assert_model_of(federation, study, [EARLY, EARLY, SITES, SITES])
    late, requester = (federation.journal(site, study.name).site_state() for site in (LATE, REQUESTER))
    assert late is not None
    assert requester is not None
    assert late.ckks_key_seed == requester.ckks_key_seed
    own = read_metrics(federation.journal(LATE, study.name).folder / "metrics.jsonl")
    assert [r.round for r in own] == [3, 4]
    assert (late.finished or "").startswith("completed: all rounds are done")


@pytest.mark.slow
def test_a_release_set_that_does_not_come_skips_the_round_and_the_study_goes_on(federation: Federation) -> None:
    """The requester dies with its release set signed and not sent, and comes back after the deadline."""
    federation.kill(REQUESTER)
    federation.start_party(REQUESTER, "after_opened_journalled:1")
    study = study_of(federation, "unreleased", rounds=2, deadline_s=20.0)
    federation.hand_in(study)
    died(federation, REQUESTER)
    states = "select state from rounds where study = ? and round = 1"
    wait_for("the skip", lambda: at_both(federation, states, study) == [[("skipped",)], [("skipped",)]])
    skipped = {site: federation.journal(site, study.name).folder / "metrics.jsonl" for site in SITES[1:]}
    wait_for("the sites' records", lambda: all(len(read_metrics(path)) == 1 for path in skipped.values()))
    for path in skipped.values():
        (record,) = read_metrics(path)
        assert (record.state, record.reason, record.model_version) == (RoundEnd.SKIPPED, MISSING, 0)
    assert at_both(federation, "select state from studies where digest = ?", study) == [[("open",)], [("open",)]]
    federation.start_party(REQUESTER)
    over(federation, study)
    first, second = outcome_of(federation, study).records
    assert (first.state, first.reason, first.took_part) == (RoundEnd.SKIPPED, MISSING, ())
    assert (second.state, second.took_part) == (RoundEnd.RELEASED, SITES)
    assert_model_of(federation, study, [SITES])
