"""kill -9 at every durable step of servers, contributors and requester, and what is left (docs/protocol.md 4, 7, 9).

Nothing that was acknowledged is lost, no correlation serves two sketches, no contribution is measured or released
twice (all from the stores' own tables), the round is replayed or burnt as section 7 says, and the final model has the
bits of the undisturbed run. A few cases run in every test run, all of them in ``make soak``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

import pytest

from client_agent import points as agent_points
from client_agent.site.events import RoundEnd
from harness.engine.parties import Parties
from protocol.wire.messages import Study
from servers import points as server_points
from tests.integration import (
    test_ckks_study,
    test_crashes_finish,
    test_crashes_noise,
    test_crashes_privacy,
    test_crashes_tagged_study,
    test_crashes_tags,
)
from tests.integration.crashes import (
    REQUESTER,
    ROUNDS,
    SITES,
    A,
    B,
    Kill,
    Outcome,
    audit,
    crash_federation,
    light_study_of,
    run_killing,
)
from tests.kit.disk import folder_on_disk
from tests.kit.processes import Federation


class End(StrEnum):
    """What becomes of the round in which a process died."""

    REPLAYED = "replayed"
    BURNT = "burnt"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Case:
    """Who dies where, and how the round may end. ``quick``: part of every test run."""

    kills: tuple[Kill, ...]
    ends: frozenset[End] = frozenset({End.REPLAYED})
    quick: bool = False
    large: bool = False

    @property
    def name(self) -> str:
        parts = [f"{kill.party}-{kill.point}-{kill.turn}" for kill in self.kills]
        return "-then-".join([*parts, *(["large"] if self.large else [])])


def at(party: str, point: str, turn: int = 1, *ends: End, quick: bool = False, large: bool = False) -> Case:
    return Case((Kill(party, point, turn),), frozenset(ends or {End.REPLAYED}), quick, large)


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
CASES = (*SERVER_A, *SERVER_B, *WHILE_A_ROUND_ENDS, *EVERY_SITE, *UPLOADS, *CONTRIBUTOR, *AS_REQUESTER)
QUICK = tuple(pytest.param(case, id=case.name) for case in CASES if case.quick)
REST = tuple(pytest.param(case, id=case.name, marks=pytest.mark.soak) for case in CASES if not case.quick)


@pytest.fixture(scope="module")
def federation() -> Iterator[Federation]:
    with folder_on_disk() as folder, crash_federation(folder) as running:
        yield running


class Undisturbed:
    """The same study without a crash, small and large; run when a case first asks for it."""

    def __init__(self, federation: Federation) -> None:
        self._federation = federation
        self._runs: dict[bool, Outcome] = {}

    def run(self, large: bool) -> Outcome:
        if large not in self._runs:
            self._runs[large] = outcome = run_killing(
                self._federation, light_study_of(self._federation, _name(large), large=large)
            )
            assert [(r.state, r.attempt) for r in outcome.records] == [(RoundEnd.RELEASED, 1)] * ROUNDS
            assert len(set(outcome.models)) == 1
            handed_out = {tuple(w.numerator for w in record.weights) for record in outcome.records}
            assert large or len(handed_out) == ROUNDS, "a round's weights must depend on the distances before"
        return self._runs[large]

    def model_after(self, rounds: int, large: bool) -> bytes:
        """A skipped round leaves the model as it was."""
        self.run(large)
        return self._federation.journal(SITES[1], _name(large)).load_model(rounds).tobytes()

    def model_of(self, make: Callable[[Parties], Study]) -> bytes:
        """The final model of another study."""
        (model,) = set(run_killing(self._federation, make(self._federation.parties)).models)
        return model


def _name(large: bool) -> str:
    return "undisturbed-large" if large else "undisturbed"


@pytest.fixture(scope="module")
def undisturbed(federation: Federation) -> Undisturbed:
    return Undisturbed(federation)


@pytest.mark.parametrize("case", [*QUICK, *REST])
def test_kill_at(federation: Federation, undisturbed: Undisturbed, case: Case) -> None:
    study = light_study_of(federation, case.name.replace("_", "-").lower()[:60].rstrip("-"), large=case.large)
    outcome = run_killing(federation, study, case.kills)
    audit(federation, study)
    assert ended(outcome) in case.ends, [(r.round, r.state.value, r.attempt, r.reason) for r in outcome.records]
    assert len(set(outcome.models)) == 1
    released = [record for record in outcome.records if record.state is RoundEnd.RELEASED]
    reference = undisturbed.run(case.large)
    assert [r.weights for r in released] == [r.weights for r in reference.records[: len(released)]]
    assert [r.distances for r in released] == [r.distances for r in reference.records[: len(released)]]
    assert outcome.models[0] == undisturbed.model_after(len(released), case.large)
    assert [record.round for record in outcome.records] == list(range(1, ROUNDS + 1))


def ended(outcome: Outcome) -> End:
    """The one round that was not released at its first attempt, if there is one."""
    odd = [record for record in outcome.records if record.state is not RoundEnd.RELEASED or record.attempt > 1]
    if not odd:
        return End.REPLAYED
    (record,) = odd
    return End.SKIPPED if record.state is RoundEnd.SKIPPED else End.BURNT


def test_a_full_disk_only_delays_the_study(federation: Federation, undisturbed: Undisturbed) -> None:
    """A share meets a full disk at B: refused with 507 and nothing stored; the site sends the same bytes again."""
    reference = undisturbed.run(large=False)
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


def test_every_point_is_in_a_case() -> None:
    """A failpoint that no case kills at would not be worth its line."""
    encrypted = {kill.point for kill in (*test_ckks_study.QUICK, *test_ckks_study.MORE) if kill.party in (A, B)}
    servers = (
        encrypted
        | set(test_crashes_tags.POINTS)
        | {kill.point for kill in test_crashes_noise.KILLS}
        | {kill.point for case in CASES for kill in case.kills if kill.party in (A, B)}
    )
    assert servers == {point.value for point in server_points.Point} - {server_points.Point.DISK_FULL}
    finishing = {kill.point for kill in (*test_crashes_finish.KILLS, *test_crashes_privacy.KILLS)}
    with_tags = test_crashes_tagged_study
    tagged = {kill.point for kill in (*with_tags.QUICK, *with_tags.SLOW, *with_tags.WRONG)}
    sites = finishing | tagged | {kill.point for case in CASES for kill in case.kills if kill.party in SITES}
    assert sites == {point.value for point in agent_points.Point}
