"""kill -9 at every durable step of servers, contributors and requester: one matrix (docs/protocol.md 4, 7, 9).

A case is a party, the failpoint at which it dies, the servers' storage and the mode of the study. Nothing that was
acknowledged is lost, no correlation serves two sketches, no contribution is measured or released twice (all from the
stores' own tables), and the final model has the bits of the undisturbed run; ``crash_modes.py`` says what else each
mode requires. Quick cases run in every test run, all of them in ``make soak``. Disks that are full and accidents of a
database follow below.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from client_agent import points as agent_points
from client_agent.site.events import RoundEnd
from harness.adversaries.scripted_requester import ScriptedSites, make_study
from harness.federation.memory.learners import light_study
from protocol.messages.control import RoundState, RuleName, RuleSpec, Study
from protocol.sharing import Side
from servers import points as server_points
from tests.integration import test_ckks_study
from tests.integration.agents import finished, rounds_of, wait_for
from tests.integration.crash_modes import DECLINES, LOST, MODES, WITHIN_S, begin_with_absent, require_no_wait
from tests.integration.crashes import (
    POSTGRESQL,
    REQUESTER,
    ROUNDS,
    SITES,
    SQLITE,
    A,
    B,
    Case,
    End,
    Kill,
    Undisturbed,
    audit,
    crash_federation,
    ended,
    light_study_of,
    outcome_of,
    run_killing,
)
from tests.integration.tagged import TAGS_FAIL
from tests.integration.test_server_round import NUMERATORS, updates
from tests.integration.test_server_round import SITES as SCRIPTED
from tests.kit.disk import fill, folder_on_disk, small_disk
from tests.kit.postgres import Cluster, running_cluster
from tests.kit.processes import Federation, prepare_servers, running_servers


def at(party: str, point: str, turn: int = 1, *ends: End, quick: bool = False, large: bool = False) -> Case:
    return Case((Kill(party, point, turn),), frozenset(ends or {End.REPLAYED}), quick, large)


def in_mode(mode: str, *cases: Case) -> tuple[Case, ...]:
    return tuple(replace(case, mode=mode) for case in cases)


SERVER_A = (
    at(A, "before_announcement_stored", 2),
    at(A, "after_announcement_stored", 2),
    at(A, "before_mail_stored", 1),
    at(A, "after_mail_stored", 3),
    at(A, "after_mail_stored", 6),
    at(A, "upload_midway", 2, large=True),
    at(A, "upload_midway", 3, quick=True),
    at(A, "before_upload_written", 3),
    at(A, "after_upload_written", 3),
    at(A, "after_receipt_stored", 3),
    at(A, "after_receipt_sent", 3),
    at(A, "ot_base_midway"),
    at(A, "ot_batch_midway", quick=True),
    at(A, "before_lock_signed", 1),
    at(A, "after_lock_signed", 1),
    at(A, "before_challenge_sent", 1),
    at(A, "before_challenge_stored", 1, quick=True),
    at(A, "after_challenge_stored", 1),
    at(A, "before_queries_stored", 1),
    at(A, "after_queries_stored", 1),
    at(A, "before_correlations_marked", 1),
    at(A, "after_correlations_marked", 1, End.BURNT, quick=True),
    at(A, "after_masked_sent", 1, End.SKIPPED, quick=True),
    at(A, "before_opening_stored", 1, End.SKIPPED),
    at(A, "after_opening_stored", 1),
    at(A, "before_release_set_stored", 1),
    at(A, "after_release_set_stored", 1),
    at(A, "before_mask_stored"),
    at(A, "after_mask_stored"),
    at(A, "masked_sum_midway", large=True),
    at(A, "before_output_stored", 1),
    at(A, "before_output_stored", 2),
    at(A, "after_output_stored", 1),
    at(A, "after_output_stored", 2, quick=True),
)
# B's queries may come after A has marked its correlations and sent its masked vectors, which die with B's session.
SERVER_B = (
    at(B, "before_announcement_stored", 2),
    at(B, "after_announcement_stored", 2),
    at(B, "upload_midway", 2, large=True),
    at(B, "before_upload_written", 3),
    at(B, "after_upload_written", 3),
    at(B, "after_receipt_stored", 3),
    at(B, "after_receipt_sent", 3),
    at(B, "ot_base_midway"),
    at(B, "ot_batch_midway"),
    at(B, "before_lock_signed", 1),
    at(B, "after_lock_signed", 1, quick=True),
    at(B, "before_challenge_stored", 1),
    at(B, "after_challenge_stored", 1),
    at(B, "before_queries_stored", 1, End.REPLAYED, End.BURNT),
    at(B, "after_queries_stored", 1, End.REPLAYED, End.BURNT),
    at(B, "before_opening_stored", 1, End.BURNT),
    at(B, "after_opening_stored", 1, quick=True),
    at(B, "before_release_set_stored", 1),
    at(B, "after_release_set_stored", 1),
    at(B, "before_mask_stored"),
    at(B, "after_mask_stored"),
    at(B, "masked_sum_midway", large=True),
    at(B, "before_output_stored", 1),
    at(B, "before_output_stored", 2, quick=True),
    at(B, "after_output_stored", 1),
    at(B, "after_output_stored", 2),
)


def pair(first: Kill, second: Kill, end: End) -> Case:
    return Case((first, second), frozenset({end}))


_MARKED, _SENT = Kill(A, "after_correlations_marked", 1), Kill(A, "after_masked_sent", 2)
WHILE_A_ROUND_ENDS = (
    pair(_MARKED, Kill(A, "before_outcome_stored"), End.BURNT),
    pair(_MARKED, Kill(A, "after_outcome_stored"), End.BURNT),
    pair(_MARKED, Kill(B, "before_outcome_stored"), End.BURNT),
    pair(_MARKED, Kill(B, "after_outcome_stored"), End.BURNT),
    pair(_SENT, Kill(A, "before_outcome_stored", 2), End.SKIPPED),
    pair(_SENT, Kill(A, "after_outcome_stored", 2), End.SKIPPED),
    pair(_SENT, Kill(B, "before_outcome_stored", 2), End.SKIPPED),
    pair(_SENT, Kill(B, "after_outcome_stored", 1), End.SKIPPED),
)
EVERY_SITE = tuple(
    at(site, point, turn, quick=quick and site == "c2")
    for site in ("c2", REQUESTER)
    for point, turn, quick in (
        ("before_sum_remembered", 1, False),
        ("after_sum_remembered", 1, True),
        ("before_update_encoded", 1, False),
        ("after_update_encoded", 1, False),
        ("before_shares_sealed", 1, False),
        ("after_shares_sealed", 1, False),
        ("before_receipt_journalled", 1, False),
        ("after_receipt_journalled", 1, True),
        ("after_output_opened", 1, False),
        ("before_checkpoint_written", 2, False),
        ("after_checkpoint_written", 2, True),
        ("after_state_written", 2, False),
        ("before_round_recorded", 2, False),
        ("after_round_recorded", 1, False),
    )
)
UPLOADS = (
    at("c2", "upload_midway", 2, large=True),
    at("c3", "upload_midway", 2, large=True),
    at(REQUESTER, "upload_midway", 2, large=True),
)
CONTRIBUTOR = (
    at("c2", "before_decision_journalled", 1),
    at("c2", "after_decision_journalled", 1),
    at("c2", "before_done_journalled", 1),
    at("c2", "after_done_journalled", 1),
    at("c2", "before_checkpoint_written", 1),
    at("c2", "after_state_written", 1),
)
AS_REQUESTER = (
    at(REQUESTER, "after_study_sent", 1),
    at(REQUESTER, "after_study_sent", 2),
    at(REQUESTER, "before_plan_journalled", 1),
    at(REQUESTER, "after_plan_journalled", 1),
    at(REQUESTER, "before_letter_journalled", 1),
    at(REQUESTER, "after_letter_journalled", 2),
    at(REQUESTER, "after_letter_sent", 3),
    at(REQUESTER, "after_letter_sent", 5),
    at(REQUESTER, "before_announced", 1),
    at(REQUESTER, "after_announced", 1, quick=True),
    at(REQUESTER, "after_announced", 2),
    at(REQUESTER, "before_queries_journalled", 1),
    at(REQUESTER, "after_queries_journalled", 1),
    at(REQUESTER, "after_queries_journalled", 2),
    at(REQUESTER, "after_queries_sent", 1, quick=True),
    at(REQUESTER, "before_opened_journalled", 1),
    at(REQUESTER, "after_opened_journalled", 1),
    at(REQUESTER, "after_release_sent", 1),
    at(REQUESTER, "before_settled", 1, quick=True),
    at(REQUESTER, "after_settled", 1),
    at(REQUESTER, "before_end_journalled"),
    at(REQUESTER, "after_end_journalled"),
    at(REQUESTER, "after_end_sent", 1),
    at(REQUESTER, "after_end_sent", 2),
)
PLAIN = (*SERVER_A, *SERVER_B, *WHILE_A_ROUND_ENDS, *EVERY_SITE, *UPLOADS, *CONTRIBUTOR, *AS_REQUESTER)
COUNTS = in_mode(
    "counts",
    at("c2", "after_update_encoded", quick=True),
    at("c2", "after_output_opened", quick=True),
    at(REQUESTER, "before_settled", quick=True),
)
FINISH = in_mode(
    "finish",
    at(REQUESTER, "before_finished_written"),
    at(REQUESTER, "after_finished_written", quick=True),
    at(REQUESTER, "before_round_recorded", ROUNDS + 1),
    at(REQUESTER, "after_round_recorded", ROUNDS + 1),
)
# Deaths in the sums that follow are those of any rule.
MEASURING = in_mode(
    "measuring",
    at(A, "after_opening_stored", quick=True),
    at(REQUESTER, "before_opened_journalled", quick=True),
    at("c1", "after_shares_sealed", quick=True),
    at(A, LOST, quick=True),
    at(A, "after_correlations_marked"),
    at(A, "after_outcome_stored"),
    at(B, "before_opening_stored"),
    at(B, "before_outcome_stored"),
    at(B, "after_outcome_stored"),
    at(REQUESTER, "after_plan_journalled"),
    at(REQUESTER, "after_opened_journalled"),
    at(REQUESTER, "before_settled"),
    at("c1", "after_decision_journalled"),
    at("c1", "before_round_recorded"),
)
SHRINKAGE = in_mode("shrinkage", at(REQUESTER, "after_output_opened", quick=True), at(REQUESTER, "before_settled"))
PRIVACY = in_mode(
    "privacy",
    at("c1", "before_budget_spent", 2),
    at("c1", "after_budget_spent", 2, quick=True),
    at("c1", "after_update_noised", 2),
)
# The requester's and both servers' deaths; a contributor's is that of any round.
RANKING = in_mode(
    "ranking",
    at(A, "after_correlations_marked", quick=True),
    at(B, "before_opening_stored", quick=True),
    at(REQUESTER, "before_opened_journalled", quick=True),
    at(A, LOST, quick=True),
    at(A, "after_challenge_stored"),
    at(A, "after_opening_stored"),
    at(A, "after_outcome_stored"),
    at(B, "before_outcome_stored"),
    at(REQUESTER, "after_queries_sent"),
    at(REQUESTER, "after_opened_journalled"),
)
SUMMARY = in_mode(
    "summary",
    at("c2", "after_decision_journalled"),
    at("c2", "after_update_encoded"),
    at("c2", "after_output_opened"),
    at(REQUESTER, "before_settled"),
)
TAGGED = in_mode(
    "tagged",
    at(REQUESTER, "before_tags_judged", quick=True),
    at(REQUESTER, "after_tags_judged", 2, quick=True),
    at(REQUESTER, "before_tag_seed_sent"),
    at(REQUESTER, "before_tag_seed_sent", 2),
    at(REQUESTER, "after_tag_seed_sent"),
    at(REQUESTER, "after_tag_seed_sent", 2),
    at(REQUESTER, "after_tag_seed_sent", 3),
    at(REQUESTER, "before_tags_judged", 2),
    at(REQUESTER, "after_tags_judged"),
    at(REQUESTER, "after_go_sent"),
    at(REQUESTER, "after_go_sent", 2),
    at(REQUESTER, "after_release_sent"),
    at(REQUESTER, "after_output_opened"),
    at("c1", "after_shares_sealed"),
    at("c1", "after_output_opened"),
    at("c1", "after_output_opened", 2),
    at("c1", "before_round_recorded"),
)
WRONG = in_mode(
    "wrong",
    at(REQUESTER, "before_tag_shares_journalled"),
    at(REQUESTER, "after_tag_shares_journalled"),
    at(REQUESTER, "after_tag_shares_journalled", 2),
    at(REQUESTER, "after_tags_judged"),
)
_TAG_STEPS = ("half_committed", "tag_check_stored", "go_stored")
_TAGS_QUICK = (
    (B, "after_half_committed", 1),
    (A, "before_half_committed", 2),
    (A, "after_go_stored", 1),
    (A, "after_tag_shares_stored", 2),
)
# The turn is the number of the round, since odd and even ones differ.
TAGGED_SERVERS = in_mode(
    "tagged-servers",
    *(
        at(server, point, number, quick=(server, point, number) in _TAGS_QUICK)
        for point in (*(f"{when}_{step}" for step in _TAG_STEPS for when in ("before", "after")), *TAGS_FAIL)
        for server in (A, B)
        for number in (1, 2)
    ),
    *(at(A, "after_go_handed_over", number) for number in (1, 2)),
)
ABSENT = in_mode(
    "absent",
    *(
        at(server, f"after_{step}")
        for server in (A, B)
        for step in (
            "announcement_stored",
            "mail_stored",
            "receipt_stored",
            "lock_signed",
            "challenge_stored",
            "queries_stored",
            "opening_stored",
            "release_set_stored",
            "output_stored",
        )
    ),
    at("c2", "after_decision_journalled"),
    at("c2", "after_shares_sealed"),
    at("c2", "after_receipt_journalled"),
    at("c2", "after_output_opened"),
    at(REQUESTER, "after_announced"),
    at(REQUESTER, "after_shares_sealed"),
    at(REQUESTER, "after_queries_sent"),
    at(REQUESTER, "after_release_sent"),
    at(REQUESTER, "before_settled"),
)
IN_POSTGRESQL = tuple(replace(case, storage=POSTGRESQL, quick=False) for case in (*SERVER_A, *SERVER_B))
CASES = (
    *(*PLAIN, *COUNTS, *FINISH, *MEASURING, *SHRINKAGE, *PRIVACY, *RANKING, *SUMMARY),
    *(*TAGGED, *WRONG, *TAGGED_SERVERS, *ABSENT, *IN_POSTGRESQL),
)


class Opened:
    """The processes of one mode and storage at a time; others are stopped before."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._of: tuple[str, str] = ("", "")
        self._opened: Undisturbed | None = None
        self.cluster: Cluster | None = None

    def of(self, mode: str, storage: str) -> Undisturbed:
        if self._opened is None or self._of != (mode, storage):
            self.close()
            made = MODES[mode].opened(self._stack.enter_context(folder_on_disk()))
            if storage == POSTGRESQL:
                assert isinstance(made, Federation)
                self.cluster = cluster = self._stack.enter_context(running_cluster())
                made.keep_in({side: cluster.new_database() for side in Side})
            federation = self._stack.enter_context(made)
            MODES[mode].prepare(federation)
            self._of, self._opened = (mode, storage), Undisturbed(federation)
        return self._opened

    def close(self) -> None:
        self._opened = None
        self._stack.close()


@pytest.fixture(scope="module")
def opened() -> Iterator[Opened]:
    processes = Opened()
    yield processes
    processes.close()


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=f"{case.mode}-{case.storage}-{case.name}", marks=() if case.quick else pytest.mark.soak)
        for case in CASES
    ],
)
def test_kill_at(opened: Opened, case: Case) -> None:
    MODES[case.mode].run(opened.of(case.mode, case.storage), case)


def test_four_are_killed_at_once(opened: Opened) -> None:
    """Once c4 has declined: B, two contributors and the requester. Without c1 the round cannot go on before."""
    federation = opened.of("absent", SQLITE).federation
    begin_with_absent(federation, "four-at-once")
    federation.kill("c1")
    federation.start_party(REQUESTER)
    declined = federation.journal(DECLINES, "four-at-once").folder / "rounds" / "000002" / "decline.sealed"
    wait_for("the decline", declined.exists, WITHIN_S, federation.tails)
    killed = (B, "c2", REQUESTER)
    for party in killed:
        federation.kill(party)
    for party in (*killed, "c1"):
        federation.start_party(party)
    require_no_wait(federation, "four-at-once")


def test_every_point_is_in_a_case() -> None:
    """A failpoint that no case kills at would not be worth its line."""
    kills = {(kill.party, kill.point) for case in CASES for kill in case.kills}
    encrypted = {(kill.party, kill.point) for kill in (*test_ckks_study.QUICK, *test_ckks_study.MORE)}
    servers = {point for party, point in kills | encrypted if party in (A, B)}
    assert servers == {point.value for point in server_points.Point} - {server_points.Point.DISK_FULL}
    sites = {point for party, point in kills if party in SITES}
    assert sites == {point.value for point in agent_points.Point}


# --- full disks -------------------------------------------------------------------------------------------------------


def test_a_full_disk_only_delays_the_study(opened: Opened) -> None:
    """A share meets a full disk at B: refused with 507 and nothing stored; the site sends the same bytes again."""
    of = opened.of("plain", SQLITE)
    federation, reference = of.federation, of.run(large=False)
    federation.kill(B)
    federation.start_party(B, "disk_full:2")
    study = light_study_of(federation, "disk-full")
    outcome = run_killing(federation, study)
    audit(federation, study)
    assert ended(outcome) is End.REPLAYED
    assert outcome.models == reference.models
    refused = [
        line for line in (federation.folder / B / "process.log").read_text().splitlines() if "storage_full" in line
    ]
    assert len(refused) == 1
    assert "nothing was stored" in refused[0]
    federation.kill(B)
    federation.start_party(B)


_DIMENSION = 20_000
_DISK_BYTES = 24 * 2**20
_RESERVE_BYTES = 4 * 2**20


@pytest.fixture(params=list(Side))
def sites(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ScriptedSites]:
    """Both servers, one of them with its data on a disk of 24 MB."""
    federation = prepare_servers(tmp_path, SCRIPTED, limits={"disk_reserve_bytes": _RESERVE_BYTES})
    with small_disk(data_of(federation, request.param), _DISK_BYTES), running_servers(federation):
        made = ScriptedSites(federation, make_study(federation, _DIMENSION))
        made.create()
        yield made
        made.close()


def data_of(federation: Federation, side: Side) -> Path:
    return federation.folder / f"operator-{side.value}" / "data"


@pytest.mark.parametrize("leave_bytes", [_RESERVE_BYTES, 0], ids=["reserve", "nothing"])
def test_a_full_disk_refuses_and_recovers(
    sites: ScriptedSites, request: pytest.FixtureRequest, leave_bytes: int
) -> None:
    side = next(s for s in Side if (data_of(sites.federation, s)).is_mount())
    disk = data_of(sites.federation, side)
    announcement = sites.announcement(1)
    sites.announce(announcement)
    x = updates(1, dimension=_DIMENSION)
    sealed = {site: sites.seal_contribution(site, x[site], announcement) for site in SCRIPTED}
    receipts = sites.contribute(SCRIPTED[0], sealed[SCRIPTED[0]], 1)
    path = sites.contribution_path(1)

    filler = fill(disk, leave_bytes)
    before = sorted(p.name for p in (disk / "shares").iterdir())
    for site in SCRIPTED[1:3]:
        answer = sites.clients[site].send(side, "PUT", path, sealed[site].bodies[side])
        assert answer.status_code == 507, (answer.status_code, answer.text)
        assert answer.json()["code"] == "storage_full"
    assert sorted(p.name for p in (disk / "shares").iterdir()) == before
    filler.unlink()

    assert sites.contribute(SCRIPTED[0], sealed[SCRIPTED[0]], 1) == receipts
    for site in SCRIPTED[1:]:
        sites.contribute(site, sealed[site], 1)
    current = sites.wait_transcript(Side.A, 1)
    sites.send_queries(current, x[sites.requester], NUMERATORS)
    for each in Side:
        current = sites.wait_round(each, 1, RoundState.MEASURED)
    sites.release(current)
    for each in Side:
        sites.wait_round(each, 1, RoundState.RELEASED)
    assert np.array_equal(sites.output(SCRIPTED[1], 1), sum(x.values()))


# --- accidents of a server's database ---------------------------------------------------------------------------------

_MANY_ROUNDS = 12
_REFUSES = "moiety server restored"


@pytest.mark.soak
@pytest.mark.parametrize("accident", ["dies", "breaks connections"])
def test_the_database_has_an_accident(opened: Opened, accident: str) -> None:
    """Nothing that was stored is lost, what was not is sent again."""
    undisturbed = opened.of("plain", POSTGRESQL)
    federation, cluster = undisturbed.federation, opened.cluster
    assert cluster is not None
    study = light_study_of(federation, f"database-{accident.replace(' ', '-')}")
    federation.hand_in(study)
    for _ in range(3):
        time.sleep(0.7)
        if accident == "dies":
            cluster.stop()
            cluster.start()
        else:
            for url in federation.databases.values():
                cluster.break_connections(url)
    wait_for("the end", finished(federation, study.name, *SITES), 120.0, federation.site_tails)
    audit(federation, study)
    outcome = outcome_of(federation, study)
    records = rounds_of(federation, REQUESTER, study.name)
    assert [record.round for record in records] == list(range(1, ROUNDS + 1))
    released = sum(record.state is RoundEnd.RELEASED for record in records)
    assert set(outcome.models) == {undisturbed.model_after(released, large=False)}


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_replica_that_lags_takes_over_and_the_newest_database_goes_on() -> None:
    """Side A's database goes back by a round under a running server, and under one that starts on it: it refuses, and
    says what to do; with the newest database back the study goes on.
    """
    with running_cluster() as of_a, running_cluster() as of_b, folder_on_disk() as folder:
        federation = crash_federation(folder)
        federation.keep_in({Side.A: of_a.new_database(), Side.B: of_b.new_database()})
        with federation:
            rule = RuleSpec(name=RuleName.FEDAVG)  # under which no weight erodes, however many rounds there are
            study = light_study(federation.parties, "lagging-replica", rule, rounds=_MANY_ROUNDS)
            federation.hand_in(study)
            _recorded(federation, study, 1)
            replica = of_a.replica()
            _recorded(federation, study, len(rounds_of(federation, REQUESTER, study.name)) + 2)
            of_a.fail_over(replica)
            log = federation.folder / A / "process.log"
            wait_for("a running server refuses", lambda: _REFUSES in log.read_text(), 60.0, federation.tails)
            federation.kill(A)
            said = log.read_text().count(_REFUSES)
            federation.start_party(A)
            wait_for("a new start refuses", lambda: log.read_text().count(_REFUSES) > said, 60.0, federation.tails)
            federation.kill(A)
            of_a.fail_over(of_a.folder / "data")
            federation.start_party(A)
            wait_for("the end", finished(federation, study.name, *SITES), 240.0, federation.site_tails)
            audit(federation, study)
            outcome = outcome_of(federation, study)
            told = [(one.round, one.state.value, one.attempt, one.reason) for one in outcome.records]
            assert [number for number, *_ in told] == list(range(1, _MANY_ROUNDS + 1)), told
            assert sum(end == RoundEnd.RELEASED for _, end, *_ in told) >= _MANY_ROUNDS - 2, told
            assert len(set(outcome.models)) == 1


def _recorded(federation: Federation, study: Study, rounds: int) -> None:
    wait_for(f"round {rounds}", lambda: len(rounds_of(federation, REQUESTER, study.name)) >= rounds, 60.0)
