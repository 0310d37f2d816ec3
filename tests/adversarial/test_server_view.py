"""Two different sets of updates, one and the same view: what a server holds says nothing about them.

Two worlds with the same parties and the same randomness, but other updates of every site, the requester's included.
In the second world the pads that the server under test never sees are replaced by the ones that fit the other
updates: the streams of seeds it does not hold, the other server's half of each correlation, and the commitments under
salts that it does not hold (a hash of 32 unknown bytes is as good as random). Everything else is the servers' own
code: applications, databases, files, messages, oblivious transfer. The round is then sound in both worlds, each with
its own distances and its own sum, and the server's whole view is the same to the byte.

HPKE draws its own randomness. It is real here, but the same plaintext under the same header is sealed to the same
bytes in both worlds, as if both had drawn alike; so digests of sealed bodies, receipts and file names agree as well.

A proof, not an attack: the attacks of curious servers (``server-a-classifies-shares``) find what this excludes.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import secrets
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from harness.attack import scripted_requester as scripted_sites
from harness.attack import signed_client
from harness.attack.forgeries import honest_contribution
from harness.attack.scripted_requester import ScriptedRequester, make_study
from harness.federation.clocks import ToldClock
from protocol.arithmetic import ring
from protocol.arithmetic.ring import Ring, Usage, derive, from_bytes
from protocol.channel import commitment, sealing
from protocol.messages.control import RoundState
from protocol.mpc import measurement
from protocol.mpc.measurement import distance_query
from protocol.ot.session import CorrelationHalf, segment_sums
from protocol.sharing import Side, round_seed_side, vector_side
from servers.rounds import contributions, sketches
from servers.rounds import side_a as driver
from servers.rounds import side_b as answering
from servers.rounds.sketches import Products
from servers.store import chunk_tags
from tests.integration.test_server_round import GRID, NUMERATORS, SITES, D, exact_distances, expected_sum, updates
from tests.kit import processes
from tests.kit.in_process import WatchedApps, durable
from tests.kit.processes import prepare_servers

NOW_S = 1_800_000_000
ROUNDS = (1, 2)
"""Each server masks its sum in one of the two, and takes the other's in the other."""
Updates = dict[int, dict[str, Ring]]


@dataclass
class Tape:
    """The randomness that both worlds share, and what the first world's products were made with."""

    sealed: dict[tuple[bytes, bytes], bytes] = field(default_factory=dict)
    seeds: dict[Usage, list[bytes]] = field(default_factory=lambda: {Usage.QUERY: [], Usage.OUTPUT_MASK: []})
    products: dict[tuple[Side, int], Products] = field(default_factory=dict)


@dataclass
class View:
    """All that one server has seen, and how the world looked to the sites."""

    durable: dict[str, Any]
    messages: list[Any]
    logs: list[str]
    distances: dict[int, dict[str, float]]
    sums: dict[int, Ring]


def contribution_rand(site: str, number: int) -> bytes:
    return derive(b"contributions", f"{site} {number}")


def hidden_salts(viewer: Side) -> set[bytes]:
    """Salts of the commitments to the other server's shares."""
    label = "salt a" if viewer is Side.B else "salt b"
    return {derive(contribution_rand(site, number), label) for site in SITES for number in ROUNDS}


def asked(x: dict[str, Ring]) -> Ring:
    """Every contributor's query in a row; the sketch is the identity here."""
    return np.concatenate([distance_query(x[SITES[0]], numerator, GRID) for numerator in NUMERATORS.values()])


def pads(viewer: Side, tape: Tape, one: Updates, other: Updates) -> dict[tuple[Usage, bytes], Ring]:
    """The difference of each pad that ``viewer`` never sees in the second world."""
    shifts: dict[tuple[Usage, bytes], Ring] = {}
    for place, site in enumerate(SITES):
        if vector_side(place) is viewer:
            for number in ROUNDS:
                seed = derive(contribution_rand(site, number), "share seed")
                shifts[Usage.SHARE, seed] = other[number][site] - one[number][site]
    for number in ROUNDS:
        if round_seed_side(number) is not viewer:
            shifts[Usage.QUERY, tape.seeds[Usage.QUERY][number - 1]] = asked(other[number]) - asked(one[number])
        masks = Side.A if number % 2 else Side.B
        if masks is not viewer:
            seed = tape.seeds[Usage.OUTPUT_MASK][number - 1]
            shifts[Usage.OUTPUT_MASK, seed] = expected_sum(other[number]) - expected_sum(one[number])
    return shifts


class World:
    """Patches that make the randomness a tape, and in the second world the hidden pads fit other updates."""

    def __init__(self, viewer: Side, tape: Tape, shifts: dict[tuple[Usage, bytes], Ring] | None) -> None:
        self.viewer, self.tape, self.shifts = viewer, tape, shifts

    def install(self, patch: pytest.MonkeyPatch) -> None:
        counted = iter(range(10**6))
        drawn = SimpleNamespace(
            token_bytes=lambda n: derive(b"secrets", str(next(counted)))[:n], token_urlsafe=secrets.token_urlsafe
        )
        asked = defaultdict[str, Iterator[int]](itertools.count)  # of each label, one for every round
        queries = SimpleNamespace(bytes=lambda n, label: derive(b"queries", f"{label} {next(asked[label])}")[:n])
        patch.setattr(scripted_sites, "SystemRandomness", lambda: queries)
        for module in (scripted_sites, signed_client):
            patch.setattr(module, "secrets", drawn)
        named = itertools.count()
        patch.setattr(contributions, "share_name", lambda: f"{next(named):064x}")
        patch.setattr(chunk_tags, "secrets", SimpleNamespace(token_bytes=bytes))  # of every share one key of tags
        patch.setattr(processes, "free_ports", lambda: (28441, 28442))
        patch.setattr(ring, "_fill", self._fill(ring._fill))
        patch.setattr(sealing, "_SUITE", self._suite(sealing._SUITE))
        patch.setattr(commitment, "commitment", self._commitment(commitment.commitment))
        prepare = self._products(sketches.prepare_products)
        for caller in (driver, answering):
            patch.setattr(caller, "prepare_products", prepare)

    def _fill(self, real: Any) -> Any:
        def fill(seed: bytes, usage: Usage, out: np.ndarray, start: int) -> None:
            real(seed, usage, out, start)
            if self.shifts is None:
                known = self.tape.seeds.get(usage)
                if known is not None and bytes(seed) not in known:
                    known.append(bytes(seed))
            elif (usage, bytes(seed)) in self.shifts:
                shift = self.shifts[usage, bytes(seed)]
                words = out.view("<u8")
                words += shift[start // 8 : start // 8 + words.size]

        return fill

    def _suite(self, real: Any) -> Any:
        def encrypt(plaintext: bytes, recipient: Any, info: bytes) -> bytes:
            key = (bytes(plaintext), info)
            if key not in self.tape.sealed:
                self.tape.sealed[key] = real.encrypt(plaintext, recipient, info=info)
            return self.tape.sealed[key]

        return SimpleNamespace(encrypt=encrypt, decrypt=real.decrypt)

    def _commitment(self, real: Any) -> Any:
        salts = hidden_salts(self.viewer)

        def make(salt: bytes, content_key: bytes, body_hash: bytes) -> bytes:
            if salt in salts:
                return hashlib.sha256(b"programmed" + salt).digest()
            made: bytes = real(salt, content_key, body_hash)
            return made

        return make

    def _products(self, real: Any) -> Any:
        def prepare(server: Any, record: Any, sketches: Any, halves: Any, parameters: Any) -> Products:
            made = real(server, record, sketches, halves, parameters)
            place = (server.side, record.key.round)
            if self.shifts is None:
                self.tape.products[place] = made
            elif server.side is not self.viewer:
                return refitted(made, self.tape.products[place], self.tape.products[place[0].other, place[1]])
            return made

        return prepare


def refitted(made: Products, before: Products, viewers: Products) -> Products:
    """The same masked vectors as before, from halves that fit the new operands and the viewer's own halves."""
    masked = from_bytes(before.masked, len(before.masked) // 8)
    halves, at = [], 0
    for operands, half, theirs in zip(made.operands, made.halves, viewers.halves, strict=True):
        own = measurement.operand_vector(operands)
        vector = own - masked[at : at + own.size]
        change = segment_sums([half.lengths], (vector - half.vector) * theirs.vector)
        halves.append(CorrelationHalf(half.lengths, vector, half.products + change))
        at += own.size
    return replace(made, halves=halves, masked=before.masked)


def walk(sites: ScriptedRequester, number: int, x: dict[str, Ring]) -> tuple[dict[str, float], Ring]:
    """One measured round; -> the distances that the requester opens, and the sum that a site opens."""
    announcement = sites.announcement(number)
    sites.announce(announcement)
    for site in SITES:
        made = honest_contribution(
            x[site], announcement, site, sites.federation.roster, contribution_rand(site, number)
        )
        for side in Side:
            sites.clients[site].ok(side, "PUT", sites.contribution_path(number), made[side].sealed())
    current = sites.wait_transcript(Side.A, number)
    sites.send_queries(current, x[SITES[0]], NUMERATORS)
    for side in Side:
        current = sites.wait_round(side, number, RoundState.MEASURED)
    opened = sites.openings(current, NUMERATORS)
    assert all(one.in_range for one in opened.values())
    sites.release(current, to=[Side.B])
    sites.release(current, to=[Side.A])
    for side in Side:
        sites.wait_round(side, number, RoundState.RELEASED)
    distances = {site: one.distance for site, one in opened.items() if one.distance is not None}
    return distances, sites.output(SITES[2], number)


def live(folder: Path, world: World, x: Updates) -> View:
    """One world from its first byte to its last; -> what the viewer saw."""
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        world.install(patch)
        made = prepare_servers(folder, SITES, seed=7)
        made.clock = ToldClock(lambda: NOW_S)
        with capture_logs() as logged, ExitStack() as stack:
            apps = WatchedApps(made, NOW_S)
            stack.callback(apps.stop)
            made.connect = apps.transport
            sites = ScriptedRequester(made, make_study(made, D))
            sites.create()
            found = {number: walk(sites, number, x[number]) for number in ROUNDS}
            sites.close()
    logs = sorted(json.dumps(entry, sort_keys=True, default=str) for entry in logged)
    return View(
        durable(made, world.viewer),
        sorted(apps.said[world.viewer]),
        logs,
        {number: distances for number, (distances, _) in found.items()},
        {number: total for number, (_, total) in found.items()},
    )


def require_sound(view: View, x: Updates) -> None:
    """The world was a real one: exact distances and sums of its own updates."""
    scale = 2.0**21  # C = 1, E = 2^21
    for number in ROUNDS:
        expected = exact_distances(x[number], SITES[0], NUMERATORS, scale)
        # One square root and two divisions of the same integer on both sides: a few roundings of 2^-53.
        assert view.distances[number] == pytest.approx(expected, rel=1e-15)
        assert np.array_equal(view.sums[number], expected_sum(x[number]))


@dataclass
class First:
    """The first world, which both tests compare with: who looks, what was drawn, and what was seen."""

    viewer: Side
    tape: Tape
    one: Updates
    view: View


@pytest.fixture(scope="module", params=list(Side))
def first(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> First:
    tape, one = Tape(), {number: updates(number) for number in ROUNDS}
    view = live(tmp_path_factory.mktemp("first") / "one", World(request.param, tape, None), one)
    require_sound(view, one)
    return First(request.param, tape, one, view)


OTHER = {number: updates(100 + number) for number in ROUNDS}


def test_the_whole_view_is_the_same_for_other_updates(first: First, tmp_path: Path) -> None:
    world = World(first.viewer, first.tape, pads(first.viewer, first.tape, first.one, OTHER))
    second, view = live(tmp_path / "other", world, OTHER), first.view
    require_sound(second, OTHER)
    assert view.distances != second.distances
    assert view.durable.keys() == second.durable.keys()
    for name, content in view.durable.items():
        assert second.durable[name] == content, name
    assert view.messages == second.messages
    assert view.logs == second.logs
    assert len(view.messages) > 30


def test_without_the_other_pads_the_view_differs(first: First, tmp_path: Path) -> None:
    """The comparison sees the updates once the pads stay as they were: it would see a leak."""
    second = live(tmp_path / "other", World(first.viewer, Tape(sealed=first.tape.sealed), None), OTHER)
    require_sound(second, OTHER)
    assert first.view.durable != second.durable
    assert first.view.messages != second.messages
