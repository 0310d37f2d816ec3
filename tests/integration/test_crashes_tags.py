"""kill -9 of either server before and after each step of a round with tags, odd and even ones (docs/protocol.md 15).

What it had said it says again in the same bytes, the round ends as it would have, and in one way. A few cases run in
every test run, all of them in ``make soak``.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

import httpx
import pytest

from harness.adversaries.scripted_requester import TaggedSites
from harness.engine.parties import OPERATOR_NAMES
from protocol.errors import ErrorCode
from protocol.sharing import Side
from protocol.tags.verdicts import wrong_tags
from protocol.wire import paths
from protocol.wire.messages import OutcomeCause, RoundState, RoundView
from tests.integration.tagged import SITES, finish, require_sum, signed_end, tagged_sites, to_committed
from tests.kit.disk import folder_on_disk
from tests.kit.processes import Federation, start_servers

P = ParamSpec("P")
T = TypeVar("T")

STEPS = ("half_committed", "tag_check_stored", "go_stored")
HANDED_OVER = "after_go_handed_over"
FAILED = ("before_tag_shares_stored", "after_tag_shares_stored")
POINTS = (*(f"{when}_{step}" for step in STEPS for when in ("before", "after")), HANDED_OVER, *FAILED)
_OVER_WITHIN_S = 60.0


@dataclass(frozen=True)
class Case:
    side: Side
    point: str
    number: int

    @property
    def name(self) -> str:
        return f"{self.side.value}-{self.point}-{self.number}".replace("_", "-")


CASES = [Case(side, point, number) for point in POINTS for side in Side for number in (1, 2)]
CASES = [case for case in CASES if case.point != HANDED_OVER or case.side is Side.A]
ALWAYS = {
    Case(Side.B, "after_half_committed", 1),
    Case(Side.A, "before_half_committed", 2),
    Case(Side.A, "after_go_stored", 1),
    Case(Side.A, "after_tag_shares_stored", 2),
}


def cases(points: tuple[str, ...]) -> list[object]:
    return [
        pytest.param(case, id=case.name, marks=() if case in ALWAYS else pytest.mark.soak)
        for case in CASES
        if case.point in points
    ]


@pytest.fixture(scope="module")
def federation() -> Iterator[Federation]:
    with folder_on_disk() as folder, start_servers(folder, SITES, seed=5) as running:
        yield running


@contextmanager
def killed_at(federation: Federation, case: Case) -> Iterator[None]:
    """One server is armed; whenever it dies it is started again, unarmed."""
    name, over, deaths = OPERATOR_NAMES[case.side], threading.Event(), list[int]()

    def revive() -> None:
        while not over.wait(0.02):
            code = federation.exit_code(name)
            if code is not None:
                deaths.append(code)
                federation.start_party(name)

    federation.kill(name)
    federation.start_party(name, f"{case.point}:1")
    federation.wait_for(case.side, "/readyz")
    nurse = threading.Thread(target=revive)
    nurse.start()
    try:
        yield
    finally:
        over.set()
        nurse.join()
    assert deaths == [-signal.SIGKILL], f"{case.point} was not reached"


def again(action: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What ``action`` returns, once nobody is dead on the way."""
    deadline = time.monotonic() + _OVER_WITHIN_S
    while True:
        try:
            return action(*args, **kwargs)
        except httpx.TransportError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


@contextmanager
def begun(federation: Federation, case: Case) -> Iterator[TaggedSites[Federation]]:
    """Earlier rounds are over."""
    with closing(tagged_sites(federation, case.name)) as sites:
        for before in range(1, case.number):
            to_committed(sites, before)
            finish(sites, before)
        yield sites
        sites.end()


def both(sites: TaggedSites[Federation], number: int, state: RoundState) -> dict[Side, RoundView]:
    return {side: again(sites.wait_round, side, number, state) for side in Side}


@pytest.mark.parametrize("case", cases((*POINTS[:6], HANDED_OVER)))
def test_a_round_that_goes_is_released(federation: Federation, case: Case) -> None:
    with begun(federation, case) as sites:
        goes(sites, case)


def goes(sites: TaggedSites[Federation], case: Case) -> None:
    number = case.number
    with killed_at(sites.federation, case):
        again(to_committed_again, sites, number)
        views = both(sites, number, RoundState.COMMITTED)
        checks = [again(sites.show_seed, side, number) for side in Side]
        go = again(sites.verdict, views)
        assert list(go.message.checks) == checks
        for side in Side:
            again(sites.go, go, [side])
        both(sites, number, RoundState.RELEASED)
    again(require_sum, sites, number)
    released = both(sites, number, RoundState.RELEASED)
    assert {side: view.commitment for side, view in released.items()} == {s: v.commitment for s, v in views.items()}
    assert [again(sites.show_seed, side, number) for side in Side] == checks


@pytest.mark.parametrize("case", cases(FAILED))
def test_a_round_whose_tags_fail_is_skipped_and_the_site_is_named(federation: Federation, case: Case) -> None:
    with begun(federation, case) as sites:
        fails(sites, case)


def fails(sites: TaggedSites[Federation], case: Case) -> None:
    number = case.number
    with killed_at(sites.federation, case):
        views = to_committed(sites, number, {SITES[2]: 9})
        failed = sites.failed(views)
        shares = again(sites.fail, failed)
        skipped = both(sites, number, RoundState.SKIPPED)
    assert again(sites.fail, failed) == shares
    found = wrong_tags(failed.message, sites.release_of(views[Side.A]), shares, sites.federation.roster)
    assert (found.sites, found.server_lied) == ((SITES[2],), False)
    for side in Side:
        assert signed_end(skipped[side]) == (RoundState.SKIPPED, OutcomeCause.TAGS_FAILED)
        answer = sites.clients[SITES[1]].send(side, "GET", sites.path(paths.OUTPUT, round=number))
        assert answer.json()["code"] == ErrorCode.UNKNOWN_RESOURCE


def to_committed_again(sites: TaggedSites[Federation], number: int) -> None:
    """From wherever the round is to both commitments."""
    view = sites.view(Side.A).current
    if view is None or view.round < number:
        to_committed(sites, number)
    else:
        sites.committed(number)
