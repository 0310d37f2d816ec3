"""Kinds of studies in which processes are killed: how each is opened, and what must hold when it is over.

What every rule's sums have in common is asked in the mode "plain"; the other modes kill around what they add.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from client_agent.learning.study_file import FinishTable
from client_agent.requester.study import RequesterState
from client_agent.site.events import RoundEnd
from client_agent.site.journal import finished_model, load_finished
from client_agent.site.privacy_budget import budget_memory
from client_agent.site.sum_memory import Remembered
from client_agent.study.results import RANKING_FILE, SUMMARY_FILE, Ranking, Summary
from client_agent.study.transcripts import read_transcripts
from harness.federation.learners import EROSION, LightLearner, class_counts, light_learner, light_sites, light_study
from harness.federation.processes import FederationSpec
from protocol.messages.control import PrivacySpec, Purpose, RankingSpec, RuleName, RuleSpec, Study
from protocol.parameters import StudyParameters
from protocol.policy.site_policy import SitePolicy
from protocol.ranking import predictor
from protocol.rounds.evidence import findings
from protocol.sharing import Side
from tests.integration import tagged
from tests.integration.agents import finished, journal, rounds_of, wait_for
from tests.integration.crashes import (
    POSTGRESQL,
    REQUESTER,
    ROUNDS,
    SITES,
    Case,
    Outcome,
    Undisturbed,
    audit,
    crash_federation,
    died,
    ended,
    light_study_of,
    run_killing,
)
from tests.integration.test_server_round import SITES as SCRIPTED
from tests.integration.test_summary import POLICY as SUMMARY_POLICY
from tests.integration.test_summary import put_tables, summary_study
from tests.integration.wrong_tags import SITE as WRONG_SITE
from tests.integration.wrong_tags import learner_with_wrong_tags
from tests.kit.disk import folder_on_disk
from tests.kit.postgres import Cluster, running_cluster
from tests.kit.present import present
from tests.kit.processes import Federation, start_servers
from tests.ports import free_ports


@dataclass(frozen=True)
class Mode:
    """``opened`` makes processes that are not started yet; ``run`` kills where a case says, and requires what holds.

    Modes with the same ``opened`` share its processes: to start six of them costs as much as a case.
    """

    opened: Callable[[Path], AbstractContextManager[Federation]]
    run: Callable[[Undisturbed, Case], None]
    prepare: Callable[[Federation], None] = lambda federation: None


def _usual(folder: Path) -> Federation:
    """Sites that allow all that a mode needs, unless that is noise or summaries."""
    return crash_federation(folder, policy=SitePolicy(least_isolation=0.0, may_rank=True))


def _studies(
    study: Callable[[Federation, Case], Study],
    require: Callable[[Undisturbed, Case, Study, Outcome], None],
    *,
    opened: Callable[[Path], Federation] = _usual,
    finish: FinishTable | None = None,
    prepare: Callable[[Federation], None] = lambda federation: None,
) -> Mode:
    """Whole studies of agents, each run with its kills."""

    def run(opened: Undisturbed, case: Case) -> None:
        made = study(opened.federation, case)
        require(opened, case, made, run_killing(opened.federation, made, case.kills, finish))

    return Mode(opened, run, prepare)


def _light(federation: Federation, case: Case) -> Study:
    return light_study_of(federation, case.study, large=case.large)


def _as_undisturbed(opened: Undisturbed, case: Case, study: Study, outcome: Outcome) -> None:
    """The round is replayed or burnt as docs/protocol.md 7 says, and the model has the bits of the undisturbed run."""
    audit(opened.federation, study)
    assert ended(outcome) in case.ends, [(r.round, r.state.value, r.attempt, r.reason) for r in outcome.records]
    assert len(set(outcome.models)) == 1
    released = [record for record in outcome.records if record.state is RoundEnd.RELEASED]
    reference = opened.run(case.large)
    assert [r.weights for r in released] == [r.weights for r in reference.records[: len(released)]]
    assert [r.distances for r in released] == [r.distances for r in reference.records[: len(released)]]
    assert outcome.models[0] == opened.model_after(len(released), case.large)
    assert [record.round for record in outcome.records] == list(range(1, ROUNDS + 1))


# --- class counts, a local finish -------------------------------------------------------------------------------------

_TOTALS = tuple(sum(counts) for counts in zip(*map(class_counts, range(len(SITES))), strict=True))
_GRID = 2


def _counting(federation: Federation, case: Case) -> Study:
    parameters = StudyParameters(dimension=13, clip_norm=4.0, weight_grid=_GRID, least_contributors=3)
    changes = {"parameters": parameters, "rule": RuleSpec(name=RuleName.WFEDAVG), "rounds": ROUNDS}
    return Study.model_validate({**dict(_light(federation, case)), **changes})


def _expected_weight(site: str) -> float:
    """1 / sum_j P_j p_ij^2 over its largest possible value sum_j 1 / P_j, not below 1 / grid."""
    counts = class_counts(SITES.index(site))
    own, everywhere = sum(counts), sum(_TOTALS)
    shares = [Fraction(total, everywhere) for total in _TOTALS]
    spread = sum(P * Fraction(n, own) ** 2 for P, n in zip(shares, counts, strict=True))
    return max(1 / _GRID, float(1 / (spread * sum(1 / P for P in shares))))


def _counted_once(opened: Undisturbed, case: Case, study: Study, outcome: Outcome) -> None:
    """Class counts are summed once, by every site (docs/protocol.md 9)."""
    audit(opened.federation, study)
    assert len(set(outcome.models)) == 1
    records = outcome.records
    assert [(r.round, r.purpose, r.state) for r in records] == [
        (1, Purpose.COUNTS, RoundEnd.RELEASED),
        *((number, Purpose.UPDATE, RoundEnd.RELEASED) for number in range(2, 2 + ROUNDS)),
    ]
    assert all(record.took_part == SITES for record in records)
    for site in SITES:
        state = opened.federation.journal(site, study.name).site_state()
        assert state is not None
        assert state.counted is not None
        assert (state.counted.round, state.counted.totals) == (1, _TOTALS)
        assert state.model_version == ROUNDS
    assert [r.own_weight for r in records] == [None, *[_expected_weight(REQUESTER)] * ROUNDS]


def _finished_once(opened: Undisturbed, case: Case, study: Study, outcome: Outcome) -> None:
    """The requester's local finish is done again, to the same bits, and recorded once."""
    federation = opened.federation
    audit(federation, study)
    assert [record.state for record in outcome.records] == [RoundEnd.RELEASED] * ROUNDS + [RoundEnd.FINISHED]
    own = federation.journal(REQUESTER, study.name)
    facts = finished_model(own)
    assert facts is not None
    assert facts.shared_version == ROUNDS
    undisturbed = opened.once("undisturbed-finish", lambda name: light_study_of(federation, name), FinishTable())
    assert load_finished(own).tobytes() == load_finished(federation.journal(REQUESTER, undisturbed)).tobytes()
    assert len(set(outcome.models)) == 1


# --- opened once, or lost and said so (docs/protocol.md 8) ------------------------------------------------------------

LOST = "after_masked_sent"
"""B holds its half: whoever has A's too could open it, so no site answers another query."""


def _measuring(federation: Federation, case: Case) -> Study:
    return _light(federation, case).model_copy(update={"rule": RuleSpec(name=RuleName.MALLOWS)})


def _measured_once(opened: Undisturbed, case: Case, study: Study, outcome: Outcome) -> None:
    first, *others = outcome.records
    if case.kills[0].point == LOST:
        assert (first.purpose, first.state, first.pairs) == (Purpose.MEASURE, RoundEnd.CLOSED, ())
        assert first.reason.startswith("one server lost its half of what is opened")
        assert [record.state for record in others] == [RoundEnd.ALONE] * ROUNDS
        state = journal(opened.federation, REQUESTER, study.name).site_state()
        assert state is not None
        assert (state.finished or "").startswith("local_only: measured_twice: round 1 measured model 0 already")
        return
    audit(opened.federation, study)
    assert len(set(outcome.models)) == 1
    assert [(r.round, r.purpose, r.state) for r in outcome.records] == [
        (1, Purpose.MEASURE, RoundEnd.CLOSED),
        *((number, Purpose.UPDATE, RoundEnd.RELEASED) for number in range(2, 2 + ROUNDS)),
    ]
    assert (len(first.pairs), first.took_part) == (6, SITES)
    assert all(record.took_part == SITES and not record.declined for record in others)


def _shrinking(federation: Federation, case: Case) -> Study:
    return _light(federation, case).model_copy(update={"rule": RuleSpec(name=RuleName.SHRINKAGE)})


def _shrinkage_learnt(opened: Undisturbed, case: Case, study: Study, outcome: Outcome) -> None:
    """The model has stepped, or not: what the rule needs of the sum was kept before it could."""
    audit(opened.federation, study)
    assert len(set(outcome.models)) == 1
    assert [record.state for record in outcome.records] == [RoundEnd.RELEASED] * ROUNDS
    own = journal(opened.federation, REQUESTER, study.name)
    found = own.read(own.folder / "requester.json", RequesterState)
    assert found is not None
    (mean,) = found.rule_state.means
    assert mean.rounds == ROUNDS


def _ranking(federation: Federation, case: Case) -> Study:
    return _light(federation, case).model_copy(update={"ranking": RankingSpec()})


def _ranked_once(opened: Undisturbed, case: Case, study: Study, outcome: Outcome) -> None:
    """Training goes on, whatever becomes of the ranking."""
    audit(opened.federation, study)
    assert len(set(outcome.models)) == 1
    assert [(r.round, r.purpose, r.state) for r in outcome.records] == [
        (1, Purpose.RANKING, RoundEnd.RANKED),
        *((number, Purpose.UPDATE, RoundEnd.RELEASED) for number in range(2, 2 + ROUNDS)),
    ]
    own = opened.federation.journal(REQUESTER, study.name)
    ranking = own.read(own.folder / RANKING_FILE, Ranking)
    assert ranking is not None
    if case.kills[0].point == LOST:
        assert ranking.problem.startswith("one server lost its half of what is opened")
        assert ranking.sites == ()
        return
    assert ranking.problem == ""
    learners = {site: LightLearner(study, place) for place, site in enumerate(SITES)}
    form = learners[REQUESTER].judging_form().form
    plain = {site: form.loss(predictor(learner.ridge(0.01))) for site, learner in learners.items()}
    assert ranking.own_loss == plain[REQUESTER]
    assert [one.site for one in ranking.sites] == sorted(SITES[1:], key=lambda site: plain[site])
    for one in ranking.sites:
        assert abs(present(one.loss) - plain[one.site]) <= present(ranking.error_bound)


def _summarised_once(opened: Undisturbed, case: Case, study: Study, outcome: Outcome) -> None:
    """The same question in every study, so the same table; each site remembers the round once, with its end."""
    federation = opened.federation
    audit(federation, study)
    assert [(r.purpose, r.state) for r in outcome.records] == [
        (Purpose.SUMMARY, RoundEnd.RELEASED),
        (Purpose.UPDATE, RoundEnd.RELEASED),
    ]
    journals = [federation.journal(site, study.name) for site in SITES]
    found = [own.read(own.folder / SUMMARY_FILE, Summary) for own in journals]
    tables = {None if one is None or one.table is None else one.table.model_dump_json() for one in found}
    assert len(tables) == 1
    assert None not in tables
    for site in SITES:
        (path,) = federation.state(site).glob("cohorts/*/rounds.json")
        remembered = Remembered.model_validate_json(path.read_bytes()).cohorts
        (own,) = [one for one in remembered if one.study_digest == study.digest()]
        assert own.released is not None
        assert [question.column for question in own.questions] == ["x0", "x1", "x2", "x3", "x4", "stage"]


# --- noise ------------------------------------------------------------------------------------------------------------


_SPENDER = "c1"
_SPENT_TWICE = {"after_budget_spent"}


def _noised(federation: Federation, case: Case) -> Study:
    fields = _light(federation, case).model_dump()
    return Study.model_validate({**fields, "privacy": PrivacySpec(record_clip=1.0, noise_multiplier=2.0)})


def _spent_counts(opened: Undisturbed, case: Case, study: Study, outcome: Outcome) -> None:
    """Spending before a death counts, nothing leaves uncounted, and a round has one update."""
    federation = opened.federation
    audit(federation, study)
    assert [record.state for record in outcome.records] == [RoundEnd.RELEASED] * ROUNDS
    for site in SITES:
        kept = budget_memory(
            federation.state(site), federation.parties.keys_of(site).party().signing_key
        ).spent.trainings
        counted = Counter(one.round for one in kept if one.study_digest == study.digest())
        twice = site == _SPENDER and case.kills[0].point in _SPENT_TWICE
        assert counted == {1: 1, 2: 2 if twice else 1}


# --- tags (docs/protocol.md 15) ---------------------------------------------------------------------------------------


def _tagged(federation: Federation, case: Case) -> Study:
    return _light(federation, case).model_copy(update={"tags": True})


def _opened_once(opened: Undisturbed, case: Case, study: Study, outcome: Outcome) -> None:
    """One seed, one go for an attempt, one sum: the model of the study without tags and without a crash."""
    federation = opened.federation
    audit(federation, study)
    assert [(record.state, record.attempt) for record in outcome.records] == [(RoundEnd.RELEASED, 1)] * ROUNDS
    assert set(outcome.models) == set(opened.run(large=False).models)
    kept = [read_transcripts(journal(federation, site, study.name).folder / "transcripts") for site in SITES]
    together = [one for of_site in kept for one in of_site]
    assert findings(together, federation.parties.roster.message).deviations == ()
    assert {len(one.goes) for one in together} == {1}


def _wrong_site_known(opened: Undisturbed, case: Case, study: Study, outcome: Outcome) -> None:
    """Three contributors are needed and one is wrong: the round ends without a sum, and no other list is left."""
    audit(opened.federation, study)
    assert [(record.state, record.failed_check) for record in outcome.records][:1] == [
        (RoundEnd.SKIPPED, (WRONG_SITE,))
    ]
    assert not any(any(model) for model in outcome.models[1:]), "the requester goes on alone, from the first model"


def _with_wrong_tags(folder: Path) -> Federation:
    spec = FederationSpec("wrong", REQUESTER, light_sites(SITES), seed=5, ports=free_ports())
    return Federation(folder, spec, learner_with_wrong_tags)


def _kill_a_tagged_server(opened: Undisturbed, case: Case) -> None:
    """Either server dies in a round that scripted sites drive; a kill's turn is the number of that round."""
    (kill,) = case.kills
    tagged.killed_in_a_round(opened.federation, case.study, kill.party, kill.point, kill.turn)


# --- one site declines and one has left: no round waits for its deadline (docs/protocol.md 4) -------------------------

_STAYING, DECLINES, LEFT = (*SITES, "c4"), "c4", "c5"
_ABSENT_ROUNDS = 3
_DEADLINE_S = 3600.0
WITHIN_S = 240.0


def _with_absent(folder: Path) -> Federation:
    policy = SitePolicy(least_isolation=0.0, least_contributors=2)
    spec = FederationSpec("absent", REQUESTER, light_sites((*_STAYING, LEFT), policy), seed=5, ports=free_ports())
    return Federation(folder, spec, light_learner)


def begin_with_absent(federation: Federation, name: str) -> None:
    """Round 1 is over, the requester is dead, c4 declines and c5 has left."""
    study = light_study(federation.parties, name, EROSION, rounds=_ABSENT_ROUNDS)
    least = study.parameters.model_copy(update={"least_contributors": 2})
    federation.kill(REQUESTER)
    federation.start_party(REQUESTER, "before_plan_journalled:2")
    federation.hand_in(study.model_copy(update={"parameters": least, "round_deadline_s": _DEADLINE_S}))
    died(federation, REQUESTER, WITHIN_S)
    federation.journal(DECLINES, name).pause("scanner")
    federation.journal(LEFT, name).leave("withdrawn")


def require_no_wait(federation: Federation, name: str) -> None:
    """Every round was released, with c4's decline in each and c5's in the first after it left."""
    wait_for("the end", finished(federation, name, *_STAYING), WITHIN_S, federation.tails)
    records = rounds_of(federation, REQUESTER, name)
    assert [record.state for record in records] == [RoundEnd.RELEASED] * _ABSENT_ROUNDS
    assert [set(record.declined) for record in records] == [set(), {DECLINES, LEFT}, {DECLINES}]
    assert [record.took_part for record in records] == [(*_STAYING, LEFT), SITES, SITES]


def _kill_while_some_are_absent(opened: Undisturbed, case: Case) -> None:
    federation, name, (kill,) = opened.federation, case.study, case.kills
    begin_with_absent(federation, name)
    if kill.party != REQUESTER:
        federation.kill(kill.party)
        federation.start_party(kill.party, kill.armed)
    federation.start_party(REQUESTER, kill.armed if kill.party == REQUESTER else None)
    died(federation, kill.party, WITHIN_S)
    federation.start_party(kill.party)
    require_no_wait(federation, name)


MODES = {
    "plain": _studies(_light, _as_undisturbed),
    "counts": _studies(_counting, _counted_once),
    "finish": _studies(_light, _finished_once, finish=FinishTable()),
    "measuring": _studies(_measuring, _measured_once),
    "shrinkage": _studies(_shrinking, _shrinkage_learnt),
    "privacy": _studies(
        _noised,
        _spent_counts,
        opened=lambda folder: crash_federation(
            folder, policy=SitePolicy(least_isolation=0.0, epsilon=60.0, delta=1e-3)
        ),
    ),
    "ranking": _studies(_ranking, _ranked_once),
    "summary": _studies(
        lambda federation, case: summary_study(federation, case.study, rounds=1),
        _summarised_once,
        opened=lambda folder: crash_federation(folder, policy=SUMMARY_POLICY),
        prepare=lambda federation: put_tables(federation, SITES),
    ),
    "tagged": _studies(_tagged, _opened_once),
    "wrong": _studies(_tagged, _wrong_site_known, opened=_with_wrong_tags),
    "absent": Mode(_with_absent, _kill_while_some_are_absent),
    "tagged-servers": Mode(lambda folder: start_servers(folder, SCRIPTED, seed=5), _kill_a_tagged_server),
}


class CrashProcesses:
    """Processes of one kind and storage at a time. Others are stopped first."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._of: tuple[object, str] = (None, "")
        self._opened: Undisturbed | None = None
        self.cluster: Cluster | None = None

    def of(self, mode: str, storage: str) -> Undisturbed:
        wanted = MODES[mode].opened, storage
        if self._opened is None or self._of != wanted:
            self.close()
            made = MODES[mode].opened(self._stack.enter_context(folder_on_disk()))
            if storage == POSTGRESQL:
                assert isinstance(made, Federation)
                self.cluster = cluster = self._stack.enter_context(running_cluster())
                made.keep_in({side: cluster.new_database() for side in Side})
            federation = self._stack.enter_context(made)
            MODES[mode].prepare(federation)
            self._of, self._opened = wanted, Undisturbed(federation)
        return self._opened

    def close(self) -> None:
        self._opened = None
        self._stack.close()
