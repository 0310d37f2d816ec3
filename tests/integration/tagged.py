"""Rounds with tags over two servers, driven step by step by whoever speaks for the sites (docs/protocol.md 15)."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import ParamSpec, TypeVar

import httpx
import numpy as np

from harness.attack.scripted_requester import R, make_study
from harness.engine.parties import OPERATOR_NAMES
from protocol.errors import ErrorCode
from protocol.messages import paths
from protocol.messages.control import Announcement, OutcomeCause, RoundState, RoundView, TagsFailed
from protocol.sharing import Side
from protocol.tags import wrong_tags
from tests.integration.test_server_round import SITES, D, expected_sum, updates
from tests.kit.processes import Federation
from tests.kit.tagged_requester import TaggedRequester

P = ParamSpec("P")
T = TypeVar("T")

NUMERATORS = dict.fromkeys(SITES[1:], 4)


def tagged_sites(federation: R, name: str) -> TaggedRequester[R]:
    sites = TaggedRequester(federation, make_study(federation, D, name, tags=True))
    sites.create()
    return sites


def to_measured(
    sites: TaggedRequester[R], number: int, wrong: dict[str, int] | None = None, closes_in_s: float = 500.0
) -> RoundView:
    """``wrong``: what some sites add to their first tag."""
    announcement: Announcement = sites.announcement(number, closes_in_s=closes_in_s)
    sites.announce(announcement)
    x = updates(number)
    vectors = {site: sites.with_tags(x[site], announcement) for site in SITES}
    for site, off in (wrong or {}).items():
        vectors[site][D : D + 1] += np.uint64(off)
    sites.contribute_all(announcement, vectors)
    return sites.measured(number, x[SITES[0]], NUMERATORS)


def to_committed(
    sites: TaggedRequester[R], number: int, wrong: dict[str, int] | None = None, closes_in_s: float = 500.0
) -> dict[Side, RoundView]:
    sites.release(to_measured(sites, number, wrong, closes_in_s))
    return sites.committed(number)


def finish(sites: TaggedRequester[R], number: int) -> None:
    """Run from both commitments to the sum, which every site finds right."""
    sites.go(sites.verdict(sites.committed(number)))
    require_sum(sites, number)


def require_sum(sites: TaggedRequester[R], number: int) -> None:
    views = sites.released(number)
    opened = sites.open_sum(SITES[1], views[Side.A])
    assert np.array_equal(opened.total, expected_sum(updates(number)))
    assert opened.as_committed
    assert opened.errors.tolist() == [0, 0]
    assert opened.liars == ()


def signed_end(view: RoundView) -> tuple[RoundState, OutcomeCause]:
    """The end that both servers signed, and why."""
    assert view.outcome is not None
    assert len(view.outcome.signatures) == 2
    return view.outcome.message.outcome, view.outcome.message.cause


# --- either server is killed in such a round --------------------------------------------------------------------------

TAGS_FAIL = ("before_tag_shares_stored", "after_tag_shares_stored")
"""Failpoints that only a round whose tags fail reaches."""
_OVER_WITHIN_S = 60.0


@contextmanager
def _killed_at(federation: Federation, party: str, point: str) -> Iterator[None]:
    """One server is armed; whenever it dies it is started again, unarmed."""
    over, deaths = threading.Event(), list[int]()

    def revive() -> None:
        while not over.wait(0.02):
            code = federation.exit_code(party)
            if code is not None:
                deaths.append(code)
                federation.start_party(party)

    federation.kill(party)
    federation.start_party(party, f"{point}:1")
    federation.wait_for(next(side for side in Side if OPERATOR_NAMES[side] == party), "/readyz")
    nurse = threading.Thread(target=revive)
    nurse.start()
    try:
        yield
    finally:
        over.set()
        nurse.join()
    assert deaths == [-signal.SIGKILL], f"{point} was not reached"


def _again(action: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Repeat ``action`` until no server is dead on the way; return its result."""
    deadline = time.monotonic() + _OVER_WITHIN_S
    while True:
        try:
            return action(*args, **kwargs)
        except httpx.TransportError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def killed_in_a_round(federation: Federation, study: str, party: str, point: str, number: int) -> None:
    """One server dies in this round, earlier ones are over. What it had said it says again in the same bytes, and the
    round ends as it would have, in one way."""
    with closing(tagged_sites(federation, study)) as sites:
        for before in range(1, number):
            to_committed(sites, before)
            finish(sites, before)
        (_fails if point in TAGS_FAIL else _goes)(sites, party, point, number)
        sites.end()


def _both(sites: TaggedRequester[Federation], number: int, state: RoundState) -> dict[Side, RoundView]:
    return {side: _again(sites.wait_round, side, number, state) for side in Side}


def _goes(sites: TaggedRequester[Federation], party: str, point: str, number: int) -> None:
    """A round that goes is released."""
    with _killed_at(sites.federation, party, point):
        _again(_to_committed_again, sites, number)
        views = _both(sites, number, RoundState.COMMITTED)
        checks = [_again(sites.show_seed, side, number) for side in Side]
        go = _again(sites.verdict, views)
        assert list(go.message.checks) == checks
        for side in Side:
            _again(sites.go, go, [side])
        _both(sites, number, RoundState.RELEASED)
    _again(require_sum, sites, number)
    released = _both(sites, number, RoundState.RELEASED)
    assert {side: view.commitment for side, view in released.items()} == {s: v.commitment for s, v in views.items()}
    assert [_again(sites.show_seed, side, number) for side in Side] == checks


def _fails(sites: TaggedRequester[Federation], party: str, point: str, number: int) -> None:
    """A round whose tags fail is skipped, and the site is named."""
    with _killed_at(sites.federation, party, point):
        views = to_committed(sites, number, {SITES[2]: 9})
        failed = sites.judged(views, TagsFailed)
        shares = _again(sites.fail, failed)
        skipped = _both(sites, number, RoundState.SKIPPED)
    assert _again(sites.fail, failed) == shares
    found = wrong_tags(failed.message, sites.release_of(views[Side.A]), shares, sites.federation.roster)
    assert (found.sites, found.server_lied) == ((SITES[2],), False)
    for side in Side:
        assert signed_end(skipped[side]) == (RoundState.SKIPPED, OutcomeCause.TAGS_FAILED)
        answer = sites.clients[SITES[1]].send(side, "GET", sites.path(paths.OUTPUT, round=number))
        assert answer.json()["code"] == ErrorCode.UNKNOWN_RESOURCE


def _to_committed_again(sites: TaggedRequester[Federation], number: int) -> None:
    """Bring the round to both commitments, wherever it is."""
    view = sites.view(Side.A).current
    if view is None or view.round < number:
        to_committed(sites, number)
    else:
        sites.committed(number)
