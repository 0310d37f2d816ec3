"""An older data_dir of a server is put back: it serves nothing, and goes on with new studies once its operator says so.

Before there were histories such a server went on as if nothing had been: it took other bytes for rounds that were over.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from harness.attack.scripted_requester import ScriptedRequester, make_study
from harness.attack.signed_client import SignedClient
from harness.engine.parties import OPERATOR_NAMES
from harness.federation.server_apps import ServersInMemory
from protocol.errors import BadSignature, RolledBack
from protocol.messages import paths
from protocol.messages.control import PauseCause, StudyEndState, StudyState
from protocol.messages.peer import Histories
from protocol.sharing import Side
from servers.cli import declare_restored
from servers.peer_client import histories_to_send, take_histories
from servers.server import Server
from servers.settings import load_settings
from tests.integration.test_server_round import SITES, D, expected_sum, run_round, updates


class Pair(ServersInMemory):
    """Both servers, each of which can be stopped, and its data copied and put back."""

    def server(self, side: Side) -> Server:
        server: Server = self.apps.apps[side].state.server
        return server

    def data(self, side: Side) -> Path:
        return self.folder / OPERATOR_NAMES[side] / "data"

    def copy(self, side: Side) -> Path:
        """As it is on disk, of a server that is stopped for it."""
        self.apps.kill(side)
        copied = self.data(side).with_name("copy")
        shutil.rmtree(copied, ignore_errors=True)
        shutil.copytree(self.data(side), copied)
        self.apps.bring_back(side)
        return copied

    def put_back(self, side: Side, copied: Path) -> None:
        self.apps.kill(side)
        shutil.rmtree(self.data(side))
        shutil.copytree(copied, self.data(side))
        self.apps.bring_back(side)

    def restored(self, side: Side) -> list[str]:
        self.apps.kill(side)
        stranded = declare_restored(load_settings(self.config(OPERATOR_NAMES[side])))
        self.apps.bring_back(side)
        return stranded

    def told_of(self, side: Side) -> int:
        """The number of this server's changes that the other one knows of."""
        kept = self.server(side.other).store.history_of(OPERATOR_NAMES[side])
        return 0 if kept is None else kept.message.changes

    def sites(self, name: str) -> ScriptedRequester[Pair]:
        made = ScriptedRequester(self, make_study(self, D, name=name))
        made.create()
        return made

    def until_refused(self, side: Side) -> str:
        """Let time pass until this server refuses for what it forgot; -> what it says."""
        client = SignedClient(self, self.keys(SITES[1]))
        said: list[str] = []

        def refused() -> bool:
            answer = client.send(side, "GET", paths.STUDIES)
            if answer.status_code == 503 and answer.json()["code"] == "rolled_back":
                said.append(str(answer.json()["detail"]))
            return bool(said)

        self.until("it refuses", refused)
        return said[0]

    def until(self, what: str, holds: Callable[[], bool]) -> None:
        """Let half a minute of their time pass."""
        for _ in range(300):
            if holds():
                return
            self.apps.clock.sleep(0.1)
        raise AssertionError(what)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with Pair(tmp_path, SITES) as made:
        yield made


@pytest.mark.parametrize("side", list(Side))
def test_a_server_that_forgot_a_released_round_serves_nothing_until_its_operator_says_so(
    pair: Pair, side: Side
) -> None:
    sites = pair.sites("trial")
    copied = pair.copy(side)
    run_round(sites, 1, updates(1))
    pair.put_back(side, copied)
    said = pair.until_refused(side)
    assert f"{OPERATOR_NAMES[side]!r} knows start" in said
    assert "moiety server accept-rollback" in said
    with pytest.raises(RolledBack):
        pair.server(side).history.require_current()
    assert pair.restored(side) == ["trial"]
    pair.until("both know", lambda: all(sites.view(one).pause is not None for one in Side))
    for one in Side:
        shown = sites.view(one)
        assert (shown.state, shown.pause and shown.pause.cause) == (StudyState.PAUSED, PauseCause.SERVER_RESTORED)
        assert "cancels it" in shown.reason
        with pytest.raises(AssertionError, match="rolled_back"):
            sites.announce(sites.announcement(2), [one])
    sites.end(StudyEndState.CANCELLED, "a server was restored")
    assert all(sites.view(one).state is StudyState.CANCELLED for one in Side)
    again, x = pair.sites("trial-2"), updates(2)
    run_round(again, 1, x)
    assert np.array_equal(again.output(SITES[1], 1), expected_sum(x))


@pytest.mark.parametrize("side", list(Side))
def test_a_copy_that_knows_all_needs_no_word(pair: Pair, side: Side) -> None:
    """Made after the server was stopped for good, or a restart that lost nothing."""
    sites = pair.sites("trial")
    run_round(sites, 1, updates(1))
    pair.put_back(side, pair.copy(side))
    x = updates(2)
    run_round(sites, 2, x)
    assert np.array_equal(sites.output(SITES[1], 2), expected_sum(x))


def test_an_empty_folder_in_place_of_a_lost_one_needs_its_operators_word(pair: Pair) -> None:
    """As docs/incidents.md has it for a lost disk."""
    side, sites = Side.A, pair.sites("trial")
    run_round(sites, 1, updates(1))
    empty = pair.copy(side)
    shutil.rmtree(empty)
    empty.mkdir(mode=0o700)
    pair.put_back(side, empty)
    pair.until_refused(side)
    assert pair.restored(side) == []
    pair.until("the other knows", lambda: sites.view(side.other).pause is not None)
    again, x = pair.sites("trial-2"), updates(2)
    run_round(again, 1, x)
    assert np.array_equal(again.output(SITES[1], 1), expected_sum(x))


def test_nothing_but_its_own_signature_counts_against_a_server(pair: Pair) -> None:
    """The other server can say what it likes of its own history, and nothing of this one's."""
    pair.sites("trial")
    a, b = pair.server(Side.A), pair.server(Side.B)
    pair.until("compared", lambda: a.history.compared and b.history.compared)
    ahead = b.history.now().model_copy(update={"start": 9, "began": 900, "changes": 1000, "run": "ab" * 32})
    forged = [a.sign(ahead), a.sign(ahead.model_copy(update={"party": a.name}))]
    for known in forged:
        with pytest.raises(BadSignature):
            take_histories(b, Histories(own=histories_to_send(a).own, known=known))
    other = b.sign(b.history.now())
    with pytest.raises(BadSignature):
        take_histories(b, Histories(own=other))
    b.history.require_compared()


def test_a_late_message_of_one_start_says_nothing(pair: Pair) -> None:
    a, b = pair.server(Side.A), pair.server(Side.B)
    pair.until("compared", lambda: a.history.compared and b.history.compared)
    early = histories_to_send(a)
    pair.sites("trial")
    take_histories(b, histories_to_send(a))
    kept = b.store.history_of(a.name)
    take_histories(b, early)
    assert b.store.history_of(a.name) == kept
    b.history.require_compared()


def test_starts_without_the_other_server_hide_nothing(pair: Pair) -> None:
    """An old copy that grows again, and is started again, before the other server is asked."""
    sites = pair.sites("trial")
    copied = pair.copy(Side.A)
    run_round(sites, 1, updates(1))
    pair.until("told", lambda: pair.told_of(Side.A) > 9)
    pair.apps.kill(Side.B)
    pair.put_back(Side.A, copied)
    store = pair.server(Side.A).store
    for _ in range(40):
        store.change_study(sites.study.digest(), lambda record: record)
    pair.put_back(Side.A, pair.copy(Side.A))
    assert pair.server(Side.A).store.changes() > 20
    pair.apps.bring_back(Side.B)
    pair.until_refused(Side.A)


def test_what_a_start_told_whose_answer_was_lost_can_be_followed_by_the_next_one(pair: Pair) -> None:
    """Changes came in while nothing was compared: told and lost, they looked like an older database after a kill."""
    sites = pair.sites("trial")
    pair.apps.kill(Side.B)
    pair.apps.kill(Side.A)
    pair.apps.bring_back(Side.A)
    before = pair.server(Side.A).store.changes()
    sites.announce(sites.announcement(1), [Side.A])
    assert pair.server(Side.A).store.changes() > before
    lost = histories_to_send(pair.server(Side.A))
    pair.apps.kill(Side.A)
    pair.apps.bring_back(Side.B)
    take_histories(pair.server(Side.B), lost)
    pair.apps.bring_back(Side.A)
    pair.until("they have compared", lambda: all(pair.server(side).history.compared for side in Side))
    assert all(pair.server(side).history.current for side in Side)
    assert pair.told_of(Side.A) >= before
