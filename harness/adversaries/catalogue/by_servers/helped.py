"""A server alone or with a site's help: whom it leaves out of a round, and what it lets through a check."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from unittest import mock

import numpy as np

from harness.adversaries.catalogue.attack import Attack, Found, Party, passes
from harness.adversaries.scripted_rounds import SITES, SMALL, VICTIM, Pair, small_update
from harness.adversaries.vectors import wrap_around_entry
from harness.federation.memory.servers import ServersInMemory
from protocol.arithmetic.ring import Ring
from protocol.errors import AggregateOutOfBounds
from protocol.mpc import range_check
from protocol.parameters import Needs, StudyParameters
from protocol.release import AverageOpener, coordinate_bound, longest_sum, masked_sum_chunk
from protocol.sharing import Side
from protocol.wire.peer_messages import CollectedSet
from servers.rounds import collect
from servers.server import Server
from servers.store.study_records import RoundRecord

_OTHERS: Final = tuple(site for site in SITES if site != VICTIM)
_SEED: Final = bytes(32)


class DropsASite(Attack):
    """Server B says that it does not hold a site's share, and the round goes on without."""

    name = "server-drops-a-site"
    party = Party.SERVER
    tries = "says that a site's share never came, and signs at the deadline a set without it"
    defence = "none: what both servers hold is in; the site has that server's signed receipt, which proves the lie"
    figure = "sites whose shares both servers had, and that are not in the sum"
    promised = False
    without: Mapping[str, object] = {}

    def attempt(self, folder: Path) -> Found:
        honest, awaited = collect.collected, collect.awaited_sites

        def without_the_victim(server: Server, record: RoundRecord) -> CollectedSet:
            held = honest(server, record)
            if server.side is Side.A:
                return held
            return held.model_copy(update={"contributions": tuple(c for c in held.contributions if c.site != VICTIM)})

        def nobody_at_b(server: Server, record: RoundRecord) -> frozenset[str]:
            return awaited(server, record) if server.side is Side.A else frozenset()

        with (
            mock.patch("servers.rounds.collect.awaited_sites", nobody_at_b),
            mock.patch("servers.rounds.standing.awaited_sites", nobody_at_b),
            mock.patch("servers.rounds.standing.collected", without_the_victim),
            mock.patch("servers.rounds.side_b.collected", without_the_victim),
            ServersInMemory(folder, SITES) as servers,
        ):
            pair = Pair(servers)
            try:
                opened = pair.round(opens=Needs.NOTHING)
                opened.sites.announce(opened.announcement)
                opened.lock()
                left_out = set(SITES) - set(opened.agreed)
            finally:
                pair.close()
        return Found(bool(left_out), len(left_out))


class PassedByAServer(Attack):
    """A site tells server B both shares of a vector with 2^63 in it; B then answers the range check to fit."""

    name = "server-passes-a-site"
    party = Party.SERVER_AND_SITE
    tries = "has a vector with 2^63 in it pass the range check, whose other half the server knows from the site"
    defence = "the bound on every coordinate of an opened sum, and on its length, at every site"
    figure = "clip norms between the average that sites apply and the true one"
    without: Mapping[str, object] = {
        "protocol.release._require_within": passes,
        "protocol.release.AverageOpener.finish": passes,
    }

    def attempt(self, folder: Path) -> Found:
        draw = np.random.default_rng(31)
        hostile = wrap_around_entry(small_update(draw, SMALL))
        with ServersInMemory(folder, SITES) as servers:
            pair = Pair(servers)
            try:
                opened = pair.round(updates={VICTIM: hostile})
                share_b = _share_at_b(opened.honest[VICTIM][Side.B].plain)
                with mock.patch("protocol.mpc.range_check.operand", _fitted(hostile, share_b)):
                    opened.sites.announce(opened.announcement)
                    opened.lock()
                    opened.measure()
                    passed = opened.in_range()[VICTIM]
                    opened.release(opened.agreed)
                total = opened.sites.output(_OTHERS[1], opened.number)
                parameters = opened.sites.study.parameters
            finally:
                pair.close()
        if not passed:
            return Found(False, 0.0, "the range check did not pass")
        return _applied(total, parameters)


def _share_at_b(plain: bytes) -> Ring:
    """The vector half, which for this site goes to server B."""
    return np.frombuffer(plain, dtype="<u8")


def _fitted(hostile: Ring, share_b: Ring) -> Callable[..., Ring]:
    """What server B puts into the check in place of its own part: server A's, which the site tells it."""
    honest = range_check.operand

    def operand(side: Side, values: Ring, *how: Any) -> Ring:  # noqa: ANN401  # challenge, parameters, kernels
        if side is Side.B and np.array_equal(values, share_b):
            return honest(Side.A, hostile - share_b, *how)
        return honest(side, values, *how)

    return operand


def _applied(total: Ring, parameters: StudyParameters) -> Found:
    """What a site makes of the sum, with all its checks."""
    grid, seed = parameters.weight_grid * len(SITES), _SEED
    vector = masked_sum_chunk(total, seed, 0)
    opener = AverageOpener(
        seed,
        coordinate_bound(parameters, grid, len(SITES), measured=True),
        longest_sum(parameters, grid, len(SITES)),
        float(len(SITES)),
        parameters,
    )
    average = np.empty(parameters.dimension, dtype=np.float32)
    try:
        opener.open_into(average, vector, 0)
        opener.finish()
    except AggregateOutOfBounds as refused:
        return Found(False, 0.0, refused.detail)
    moved = float(np.linalg.norm(average)) / parameters.clip_norm
    return Found(moved > 1, moved)


def helped_servers() -> tuple[Attack, ...]:
    """Every attack of this family."""
    return DropsASite(), PassedByAServer()
