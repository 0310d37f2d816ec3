"""Rounds with tags over two servers, driven step by step by whoever speaks for the sites (docs/protocol.md 15)."""

from __future__ import annotations

import numpy as np

from harness.adversaries.scripted_requester import R, TaggedSites, tagged_study
from protocol.sharing import Side
from protocol.wire.messages import Announcement, OutcomeCause, RoundState, RoundView

SITES = ["hospital-0", "hospital-1", "hospital-2", "hospital-3"]
D = 20
NUMERATORS = dict.fromkeys(SITES[1:], 4)


def tagged_sites(federation: R, name: str) -> TaggedSites[R]:
    sites = TaggedSites(federation, tagged_study(federation, D, name=name))
    sites.create()
    return sites


def updates(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {site: rng.integers(-(2**17), 2**17, D).astype(np.int64).view(np.uint64) for site in SITES}


def to_measured(
    sites: TaggedSites[R], number: int, wrong: dict[str, int] | None = None, closes_in_s: float = 500.0
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
    sites: TaggedSites[R], number: int, wrong: dict[str, int] | None = None, closes_in_s: float = 500.0
) -> dict[Side, RoundView]:
    sites.release(to_measured(sites, number, wrong, closes_in_s))
    return sites.committed(number)


def finish(sites: TaggedSites[R], number: int) -> None:
    """From both commitments to the sum, which every site finds right."""
    sites.go(sites.verdict(sites.committed(number)))
    require_sum(sites, number)


def require_sum(sites: TaggedSites[R], number: int) -> None:
    views = sites.released(number)
    opened = sites.open_sum(SITES[1], views[Side.A])
    assert np.array_equal(opened.total, np.sum(list(updates(number).values()), axis=0, dtype=np.uint64))
    assert opened.as_committed
    assert opened.errors.tolist() == [0, 0]
    assert opened.liars == ()


def signed_end(view: RoundView) -> tuple[RoundState, OutcomeCause]:
    """The end that both servers signed, and why."""
    assert view.outcome is not None
    assert len(view.outcome.signatures) == 2
    return view.outcome.message.outcome, view.outcome.message.cause
