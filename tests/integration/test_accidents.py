"""Accidents of real processes in a study: what was acknowledged is kept, and the study ends with a reason.

Two parties die at once, a server is away for longer than a round may last, an agent for three rounds, a process is
stopped (SIGSTOP) for longer than anybody waits for it, somebody else fills a disk. Every site is in every sum, so the
model after n released rounds has the bits of the undisturbed run after n, whatever happened in between. Clocks are
short: a round lasts at most ``DEADLINE_S``, and the servers wait ``PEER_TIMEOUT_S`` for each other.
"""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from client_agent.site.events import EventKind, RoundEnd
from harness.attack.signed_client import SignedClient
from harness.federation.learners import light_study
from protocol.messages.control import PauseCause, RuleName, RuleSpec, Study, StudyView
from protocol.sharing import Side
from tests.integration.agents import rounds_of, wait_for
from tests.integration.crashes import REQUESTER, A, B, Outcome, audit, crash_federation, over, recorded
from tests.kit.disk import fill, folder_on_disk, small_disk
from tests.kit.processes import Federation

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]
ROUNDS = 6
DEADLINE_S = 15.0
PEER_TIMEOUT_S = 3.0
GRACE_S = 4.0
AWAY_S = 22.0
"""Longer than a round and what is granted after it."""
_DISK_BYTES = 24 * 2**20
LIMITS = {"grace_s": GRACE_S, "peer_timeout_s": PEER_TIMEOUT_S, "pause_after_skips": 1, "requester_silent_s": 20.0}


@pytest.fixture(scope="module")
def federation() -> Iterator[Federation]:
    with folder_on_disk() as folder, crash_federation(folder, LIMITS) as running:
        yield running


def study_of(federation: Federation, name: str, rounds: int = ROUNDS) -> Study:
    asked = light_study(federation.parties, name, RuleSpec(name=RuleName.FEDAVG), rounds=rounds)
    return asked.model_copy(update={"round_deadline_s": DEADLINE_S})


def run(federation: Federation, name: str, accident: Callable[[Study], None]) -> Outcome:
    """A study in which something happens after its first round."""
    study = study_of(federation, name)
    federation.hand_in(study)
    recorded(federation, study, 1)
    accident(study)
    return over(federation, study, 300.0)


@dataclass
class Undisturbed:
    """The same study without an accident, of as many rounds as are asked for."""

    federation: Federation
    _models: dict[int, bytes] = field(default_factory=dict)

    def after(self, rounds: int) -> bytes:
        if rounds not in self._models:
            study = study_of(self.federation, f"undisturbed-{rounds}", rounds)
            self.federation.hand_in(study)
            outcome = over(self.federation, study, 300.0)
            assert [(one.state, one.attempt) for one in outcome.records] == [(RoundEnd.RELEASED, 1)] * rounds
            (self._models[rounds],) = set(outcome.models)
        return self._models[rounds]


@pytest.fixture(scope="module")
def undisturbed(federation: Federation) -> Undisturbed:
    return Undisturbed(federation)


def require_same(undisturbed: Undisturbed, outcome: Outcome, least_released: int) -> None:
    """Every round has a named end; the model is the undisturbed one after as many releases."""
    told = [(one.round, one.state.value, one.attempt, one.reason) for one in outcome.records]
    assert [one.round for one in outcome.records] == list(range(1, ROUNDS + 1)), told
    released = [one for one in outcome.records if one.state is RoundEnd.RELEASED]
    assert all(one.state is RoundEnd.SKIPPED and one.reason for one in outcome.records if one not in released), told
    assert len(released) >= least_released, told
    assert set(outcome.models) == {undisturbed.after(len(released))}


@pytest.mark.parametrize(
    "pair",
    [(A, B), (A, "c1"), (B, "c2"), (A, REQUESTER), (B, REQUESTER), ("c1", REQUESTER), ("c1", "c2")],
    ids="-".join,
)
def test_two_parties_die_at_once(federation: Federation, undisturbed: Undisturbed, pair: tuple[str, str]) -> None:
    """Three times, at moments that nobody chose."""
    moments = random.Random("-".join(pair))

    def accident(study: Study) -> None:
        for _ in range(3):
            time.sleep(moments.uniform(0.0, 1.0))
            for name in pair:
                federation.running[name].process.send_signal(signal.SIGKILL)
            for name in pair:
                federation.kill(name)
            for name in pair:
                federation.start_party(name)

    require_same(undisturbed, run(federation, f"both-{'-'.join(pair)}", accident), 2)


@pytest.mark.parametrize("name", [A, B, "c1"])
def test_a_party_is_away_for_longer_than_a_round(federation: Federation, undisturbed: Undisturbed, name: str) -> None:
    def accident(study: Study) -> None:
        federation.kill(name)
        time.sleep(AWAY_S)
        federation.start_party(name)

    require_same(undisturbed, run(federation, f"away-{name}", accident), 3)


def test_an_agent_is_off_for_three_rounds(federation: Federation, undisturbed: Undisturbed) -> None:
    def accident(study: Study) -> None:
        federation.kill("c2")
        before = len(rounds_of(federation, REQUESTER, study.name))
        recorded(federation, study, min(before + 3, ROUNDS - 1))
        federation.start_party("c2")

    outcome = run(federation, "off-for-three-rounds", accident)
    require_same(undisturbed, outcome, 2)
    assert sum(record.state is RoundEnd.SKIPPED for record in outcome.records) >= 2


@pytest.mark.parametrize("name", [A, B, "c1", REQUESTER])
def test_a_process_that_is_stopped_goes_on(federation: Federation, undisturbed: Undisturbed, name: str) -> None:
    """Its connections stay open and nobody answers."""

    def accident(study: Study) -> None:
        federation.running[name].process.send_signal(signal.SIGSTOP)
        time.sleep(AWAY_S)
        federation.running[name].process.send_signal(signal.SIGCONT)

    require_same(undisturbed, run(federation, f"stopped-{name}", accident), 3)


def test_the_requester_is_gone_for_good(federation: Federation) -> None:
    """In the middle of a round: both servers end it, and the study waits with that reason."""
    study = study_of(federation, "no-requester")
    federation.hand_in(study)
    recorded(federation, study, 1)
    federation.kill(REQUESTER)
    client = federation.client("c1")
    try:
        for side in Side:
            wait_for("a pause", partial(paused, client, side, study), 120.0, federation.tails)
        audit(federation, study)
    finally:
        client.close()
        federation.start_party(REQUESTER)
    over(federation, study, 300.0)


@pytest.mark.parametrize("name", [A, B, "c1", REQUESTER])
def test_somebody_else_fills_the_disk(tmp_path: Path, name: str) -> None:
    """In the middle of a study, to the last byte; room comes back after longer than a round may last."""
    with folder_on_disk() as folder:
        federation = crash_federation(folder, {**LIMITS, "disk_reserve_bytes": 2**20})
        disk = federation.folder / name / ("data" if name in (A, B) else "state")
        with small_disk(disk, _DISK_BYTES), federation:

            def accident(study: Study) -> None:
                filler = fill(disk, 0)
                time.sleep(AWAY_S)
                filler.unlink()

            outcome = run(federation, "filled", accident)
            require_same(Undisturbed(federation), outcome, 2)


def paused(client: SignedClient, side: Side, study: Study) -> bool:
    view = StudyView.parse(client.ok(side, "GET", f"/v1/studies/{study.name}/view?after=0&wait_s=0"))
    return view.pause is not None and view.pause.cause in (PauseCause.REQUESTER_AWAY, PauseCause.REQUESTER_SILENT)


def put_back(folder: Path, copied: Path) -> Path:
    """Put the copy back; the present files are kept beside it."""
    newest = folder.with_name("newest")
    shutil.rmtree(newest, ignore_errors=True)
    folder.rename(newest)
    shutil.copytree(copied, folder)
    return newest


def stopped_copy(federation: Federation, name: str, folder: Path) -> Path:
    federation.kill(name)
    copied = folder.with_name("older")
    shutil.rmtree(copied, ignore_errors=True)
    shutil.copytree(folder, copied)
    federation.start_party(name)
    return copied


@pytest.mark.parametrize("name", [A, B])
def test_an_older_data_dir_of_a_server_is_refused_and_the_newest_goes_on(
    federation: Federation, undisturbed: Undisturbed, name: str
) -> None:
    data = federation.folder / name / "data"

    def accident(study: Study) -> None:
        copied = stopped_copy(federation, name, data)
        recorded(federation, study, len(rounds_of(federation, REQUESTER, study.name)) + 2)
        federation.kill(name)
        newest = put_back(data, copied)
        federation.start_party(name)
        log = federation.folder / name / "process.log"
        wait_for("it refuses", lambda: "moiety server accept-rollback" in log.read_text(), 60.0, federation.tails)
        federation.kill(name)
        shutil.rmtree(data)
        newest.rename(data)
        federation.start_party(name)

    require_same(undisturbed, run(federation, f"older-{name}", accident), 3)


def test_an_older_state_folder_of_an_agent_contributes_nothing_and_the_newest_ends_the_study(
    federation: Federation,
) -> None:
    """It says what happened and what to do; without it the study has too few sites. What it might contribute would be
    missing in the newest memory, which ``audit`` compares.
    """
    state, study = federation.state("c3"), study_of(federation, "older-c3")
    federation.hand_in(study)
    recorded(federation, study, 1)
    copied = stopped_copy(federation, "c3", state)
    recorded(federation, study, len(rounds_of(federation, REQUESTER, study.name)) + 2)
    federation.kill("c3")
    newest = put_back(state, copied)
    federation.start_party("c3")

    def says_so() -> bool:
        said = federation.texts(EventKind.DECLINED, "c3")
        return any("an older copy of the state folder was put back" in one for one in said)

    wait_for("it says what happened", says_so, 60.0, federation.site_tails)
    federation.kill("c3")
    shutil.rmtree(state)
    newest.rename(state)
    federation.start_party("c3")
    outcome = over(federation, study, 300.0)
    ends = [(one.round, one.state, one.reason) for one in outcome.records]
    assert [number for number, *_ in ends] == list(range(1, ROUNDS + 1)), ends
    assert all(end is RoundEnd.RELEASED or why for _, end, why in ends), ends
    assert sum(end is RoundEnd.RELEASED for _, end, _ in ends) >= 3, ends
    assert any(end is RoundEnd.SKIPPED for _, end, _ in ends), ends
