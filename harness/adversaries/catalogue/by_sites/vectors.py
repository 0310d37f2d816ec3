"""Vectors that are no clipped updates: against the range check, the lengths that are opened, and the agreed set."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from harness.adversaries import forgeries as forged
from harness.adversaries import vectors
from harness.adversaries.catalogue.attack import Attack, Found, Party, passes
from harness.adversaries.scripted_requester import make_study
from harness.adversaries.scripted_rounds import SITES, SMALL, VICTIM, OpenRound, Pair, small_update
from harness.federation.memory.servers import ServersInMemory
from protocol.arithmetic.ring import Ring, to_signed
from protocol.rounds.agree import agree
from protocol.wire.messages import AgreedSet, Announcement, CollectedContribution, Roster

_PASSES = "protocol.mpc.measurement._passes"
_DISTANCE = "protocol.mpc.measurement._distance"
_OTHERS = tuple(site for site in SITES if site != VICTIM)
Change = Callable[[Ring], Ring]


def _update(seed: int = 1) -> Ring:
    return small_update(np.random.default_rng(seed), SMALL)


class WholeRound(Attack):
    """A round of two real servers, walked through with a contribution of the attacker's.

    The figure is the largest coordinate of the sum that sites open, in clip norms; honest ones stay below their number.
    """

    party = Party.SITE
    figure = "clip norms in one coordinate of the released sum"

    def attempt(self, folder: Path) -> Found:
        with ServersInMemory(folder, SITES) as servers:
            pair = Pair(servers)
            try:
                opened = self._contributed(pair)
                opened.lock()
                opened.measure()
                opened.release([site for site, passed in opened.in_range().items() if passed])
                total = opened.sites.output(_OTHERS[1], opened.number)
            finally:
                pair.close()
        norm = opened.sites.study.parameters.encoded_norm
        figure = float(np.abs(to_signed(total).astype(np.float64)).max()) / norm
        return Found(figure > len(SITES), figure)

    @abstractmethod
    def _contributed(self, pair: Pair[ServersInMemory]) -> OpenRound[ServersInMemory]:
        """A round to which the attacker has contributed."""


class OutOfRange(WholeRound):
    """A vector whose squares vanish in the ring, or that is far too long."""

    defence = "the range check on random projections of every contribution"
    without: Mapping[str, object] = {_PASSES: lambda *_: True, _DISTANCE: lambda *_: 0.0}

    def __init__(self, name: str, tries: str, change: Change) -> None:
        self.name, self.tries, self._change = name, tries, change

    def _contributed(self, pair: Pair[ServersInMemory]) -> OpenRound[ServersInMemory]:
        opened = pair.round(updates={VICTIM: self._change(_update())})
        opened.sites.announce(opened.announcement)
        opened.contribute(VICTIM)
        return opened


class OutOfTheSmallRing(OutOfRange):
    """The same in a study whose shares are modulo 2^48: what lies outside is seen after each server read its sketch."""

    def _contributed(self, pair: Pair[ServersInMemory]) -> OpenRound[ServersInMemory]:
        of_64 = make_study(pair.federation, SMALL).parameters
        pair.new_study(SMALL, parameters=of_64.model_copy(update={"ring_bits": 48}))
        return super()._contributed(pair)


def _any_commitments(
    announcement: Announcement,
    attempt: int,
    roster: Roster,
    mine: Sequence[CollectedContribution],
    theirs: Sequence[CollectedContribution],
) -> AgreedSet:
    """What A holds, whatever B holds."""
    return agree(announcement, attempt, roster, mine, mine)


class TwoFaced(WholeRound):
    """Each server gets a sound share, but of another vector: two halves that do not belong together are uniform."""

    name = "share-two-faced"
    tries = "gives each server a sound share, of two different updates"
    defence = "the agreed set: only contributions of which both servers hold the same commitments"
    without: Mapping[str, object] = {
        "protocol.rounds.side_a.agree": _any_commitments,
        "protocol.rounds.side_b._check_held": passes,
        _PASSES: lambda *_: True,
        _DISTANCE: lambda *_: 0.0,
    }

    def _contributed(self, pair: Pair[ServersInMemory]) -> OpenRound[ServersInMemory]:
        opened = pair.round()
        opened.sites.announce(opened.announcement)
        opened.contribute(VICTIM, forged.two_faced(opened.honest[VICTIM], opened.fresh(VICTIM, _update(2))))
        return opened


def vector_attacks() -> tuple[Attack, ...]:
    """Every attack of this family."""
    scaled = vectors.scaled_update
    return (
        OutOfRange("vector-two-to-the-63", "adds 2^63 to one coordinate, whose square is 0", vectors.wrap_around_entry),
        OutOfRange(
            "vector-two-to-the-63-last",
            "adds 2^63 to the last coordinate",
            lambda x: vectors.wrap_around_entry(x, place=SMALL - 1),
        ),
        OutOfRange(
            "vector-multiples-of-two-to-the-32",
            "adds odd multiples of 2^32 everywhere, whose squares vanish",
            vectors.multiples_of_two_to_the_32,
        ),
        OutOfRange("vector-times-two-to-the-40", "scales its update by 2^40", lambda x: scaled(x, 2**40)),
        OutOfRange(
            "vector-negated-wrap-around",
            "turns an update with 2^63 in it around",
            lambda x: scaled(vectors.wrap_around_entry(x), -1),
        ),
        OutOfTheSmallRing(
            "vector-48-bits-two-to-the-47",
            "adds 2^47 to one coordinate of a study modulo 2^48",
            vectors.half_of_the_small_ring,
        ),
        OutOfTheSmallRing(
            "vector-48-bits-two-halves",
            "adds 2^47 to two coordinates of a study modulo 2^48",
            lambda x: vectors.half_of_the_small_ring(x, places=(0, 1)),
        ),
        OutOfTheSmallRing(
            "vector-48-bits-times-two-to-the-25",
            "scales its update by 2^25 in a ring of 48 bits",
            lambda x: scaled(x, 2**25),
        ),
        TwoFaced(),
    )
