"""Rounds in which somebody deviates: a site is left out, a requester caught, others see no reason, the study goes on.

What deviators send are the attacks ``vector-...``, ``share-two-faced``, ``release-twice`` and others; here is what
everybody sees of such a round, which has no defence that could be taken out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from harness.attack import forgeries
from harness.attack.forgeries import equivocating_announcement, release_set
from harness.attack.scripted_rounds import (
    EARLY,
    LAST,
    OTHER,
    REQUESTER,
    SITES,
    SMALL,
    VICTIM,
    AttackedPair,
    OpenRound,
    Phase,
    refusals,
    small_update,
)
from protocol.arithmetic.ring import Ring
from protocol.messages import paths
from protocol.messages.control import RoundState, StudyView, sign
from protocol.parameters import Needs
from protocol.sharing import Side
from tests.kit.present import present

CLOSES_IN_S = 9.0
WITHOUT_VICTIM = tuple(site for site in SITES if site != VICTIM)


def honest_update(seed: int = 1) -> Ring:
    return small_update(np.random.default_rng(seed), SMALL)


def seen_by(opened: OpenRound, site: str) -> dict[str, Any]:
    """A site's view of the round at both servers, without what differs from round to round anyway."""
    views: dict[str, Any] = {}
    for side in Side:
        view: StudyView = opened.sites.view(side, site)
        current = present(view.current)
        views[side] = {
            "state": (view.state, view.reason, current.state, current.outcome),
            "agreed": present(current.agreed_set).message.sites,
            "fields": sorted(current.model_dump(exclude_none=True)),
        }
    return views


# --- a contributor against the sum ------------------------------------------------------------------------------------


def test_a_failed_range_check_leaves_the_site_out_and_tells_it(pair: AttackedPair) -> None:
    """The attack is chosen before the challenge; the requester sees that the check failed, and no distance."""
    opened = pair.round(updates={VICTIM: forgeries.wrap_around_entry(honest_update())})
    opened.advance(Phase.MEASURED)
    found = opened.sites.openings(opened.current, {})
    assert {site for site, one in found.items() if not one.in_range} == {VICTIM}
    assert found[VICTIM].distance is None
    chosen = release_set(present(opened.current.agreed_set).message, WITHOUT_VICTIM, (VICTIM,))
    body = sign(chosen, REQUESTER, opened.sites.me.keys.signing).canonical()
    opened.sites.me.ok(Side.B, "PUT", opened.path(paths.RELEASE_SET), body)
    opened.wait_released()
    opened.require_sum(WITHOUT_VICTIM)
    told = present(opened.sites.view(Side.A, VICTIM).current)
    assert present(told.release_set).message.failed_check == (VICTIM,)


# --- exclusions look alike --------------------------------------------------------------------------------------------


def one_share_only(opened: OpenRound) -> None:
    assert opened.put(VICTIM, Side.A, opened.honest[VICTIM][Side.A].sealed()).status_code == 200


def two_faced(opened: OpenRound) -> None:
    """Each server gets a sound share, but of two different updates, under commitments that differ."""
    opened.contribute(VICTIM, forgeries.two_faced(opened.honest[VICTIM], opened.fresh(VICTIM, honest_update(2))))


def nothing_at_all(opened: OpenRound) -> None:
    assert VICTIM not in opened.sent


def test_whoever_is_missing_at_the_lock_looks_alike_to_everybody_else(pair: AttackedPair) -> None:
    """One share, two different updates, or no contribution: the others see a set without the site and no reason."""
    views, rounds = [], []
    for attack in (two_faced, one_share_only, nothing_at_all):  # all rounds wait for their close at the same time
        made = pair.new_study(SMALL)
        opened = pair.round(opens=Needs.NOTHING, closes_at_s=made.announcement(1, closes_in_s=CLOSES_IN_S).closes_at_s)
        opened.sites.announce(opened.announcement)
        attack(opened)
        opened.sent.add(VICTIM)
        for site in WITHOUT_VICTIM:
            opened.contribute(site)
        rounds.append(opened)
    for opened in rounds:
        opened.finish()
        opened.require_sum(WITHOUT_VICTIM)
        assert opened.agreed == WITHOUT_VICTIM
        views.append(seen_by(opened, OTHER))
        late = opened.put(VICTIM, Side.B, opened.fresh(VICTIM)[Side.B].sealed())
        assert late.status_code == 409
    assert views[0] == views[1] == views[2]


def test_left_out_after_the_lock_the_others_see_who_and_not_why(pair: AttackedPair) -> None:
    """A site too far away, and one that the requester leaves out for no reason at all."""
    views = []
    for x in (forgeries.scaled_update(np.full(SMALL, 2**18, dtype=np.uint64), 8), honest_update()):
        opened = pair.round(updates={VICTIM: x})
        opened.advance(Phase.MEASURED)
        opened.release(WITHOUT_VICTIM)
        opened.require_sum(WITHOUT_VICTIM)
        views.append(seen_by(opened, OTHER))
    assert views[0] == views[1]


def test_strangers_cannot_tell_what_exists(pair: AttackedPair) -> None:
    """A stranger gets one and the same answer about studies that exist and studies that do not."""
    opened = pair.round(opens=Needs.NOTHING)
    opened.advance(Phase.COLLECTING)
    answers = set()
    for path in (opened.path(paths.VIEW), paths.fill(paths.VIEW, study="elsewhere"), opened.path(paths.OUTPUT)):
        asked = opened.sites.me.enclose(Side.A, "GET", path)
        response = opened.sites.me.post(replace(asked, headers=[]))
        answers.add((response.status_code, response.content))
    assert len(answers) == 1
    opened.finish()


def test_a_refusal_is_told_to_its_sender_only(pair: AttackedPair) -> None:
    """After a refused contribution nobody's view differs; the other sites cannot fetch it, nor its receipt."""
    opened = pair.round(opens=Needs.NOTHING)
    opened.advance(Phase.COLLECTING)
    before = {site: [opened.sites.view(side, site) for side in Side] for site in SITES}
    refused = opened.put(VICTIM, Side.A, opened.honest[VICTIM][Side.A].sealed()[:-1])
    assert refused.json()["code"] == "broken_seal"
    assert {site: [opened.sites.view(side, site) for side in Side] for site in SITES} == before
    for site in (OTHER, EARLY, REQUESTER):
        answer = opened.client(site).send(Side.A, "GET", opened.path(paths.CONTRIBUTION))
        assert answer.status_code == 405
    opened.finish()
    assert opened.agreed == SITES


# --- a requester that says two things ---------------------------------------------------------------------------------


def test_different_announcements_at_the_two_servers_release_nothing(pair: AttackedPair) -> None:
    """Contributions bind their announcement, so neither server's set holds one; the next round completes."""
    pair.new_study(SMALL)
    opened = pair.round(opens=Needs.NOTHING)
    one, other = equivocating_announcement(
        opened.announcement.model_copy(
            update={"closes_at_s": opened.sites.announcement(1, closes_in_s=CLOSES_IN_S).closes_at_s}
        )
    )
    opened.sites.announce(one, [Side.A])
    opened.sites.announce(other, [Side.B])
    for site in SITES:
        told = opened.fresh(site, announcement=one)
        assert opened.put(site, Side.A, told[Side.A].sealed()).status_code == 200
        mixed = opened.put(site, Side.B, told[Side.B].sealed())
        assert (mixed.status_code, mixed.json()["code"]) == (409, "announcement_mismatch")
    for site in SITES:
        assert opened.put(site, Side.B, opened.fresh(site, announcement=other)[Side.B].sealed()).status_code == 200
    for side in Side:
        skipped = opened.sites.wait_round(side, 1, RoundState.SKIPPED)
        assert skipped.agreed_set is None
    following = pair.round(opens=Needs.NOTHING)
    assert following.number == 2
    following.finish()
    assert following.agreed == SITES


@pytest.mark.parametrize("order", [(Side.B, Side.A), (Side.A, Side.B)], ids=["b-first", "a-first"])
def test_two_release_sets_release_one_sum(pair: AttackedPair, order: tuple[Side, Side]) -> None:
    """The requester signs a set for each server: one of them stands at both, the other is kept as evidence."""
    opened = pair.round()
    opened.advance(Phase.MEASURED)
    before = refusals(pair.federation)
    sets = {order[0]: SITES, order[1]: tuple(site for site in SITES if site != LAST)}
    answers = []
    for side in order:
        body = opened.sites.release_body(opened.current, sets[side])
        answers.append(opened.sites.me.send(side, "PUT", opened.path(paths.RELEASE_SET), body).status_code)
    assert answers[0] == 204
    opened.wait_released()
    shown = [opened.sites.view(side).current for side in Side]
    chosen = {view.release_set.message.sites for view in shown if view is not None and view.release_set is not None}
    assert len(chosen) == 1
    opened.require_sum(chosen.pop())
    assert (REQUESTER, "conflicting_message") in {entry[1:] for entry in refusals(pair.federation)[len(before) :]}
    pair.round(opens=Needs.NOTHING).finish()
