"""All that a server keeps of every contribution, and when it came: what a classifier makes of it.

Two real servers, forty sites and three rounds; half of their updates are close to zero, half are long.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import numpy as np
import torch

from client_agent.learning.data import Examples
from client_agent.learning.models import build_model, model_spec
from client_agent.learning.trainer import compute_update
from harness.adversaries.catalogue.attack import Attack, Found, Party
from harness.adversaries.catalogue.by_servers.curious import Floats, _no_pad, found_by_classifier
from harness.adversaries.scripted_requester import ScriptedSites, make_study
from harness.adversaries.scripted_rounds import SMALL, database
from harness.federation.memory.servers import ServersInMemory
from protocol.arithmetic.ring import Ring
from protocol.parameters import Needs
from protocol.sharing import Side, vector_side
from protocol.wire.messages import TrainingSpec

_ROUNDS: Final = 3
_SITES: Final = tuple(f"hospital-{number}" for number in range(41))
_BYTES: Final = 64
_LONG: Final = 2**18


class AllTheyStore(Attack):
    """Every column of a contribution's row, its place among the others, and its file: lengths, numbers and bytes."""

    name = "servers-classify-all-they-store"
    party = Party.SERVER
    tries = (
        "tells sites with long updates from others by all that it stores of them: of seeds or vectors, server a or b"
    )
    defence = "additive shares, headers that say the same of every site, and sealed bodies of one length"
    figure = "of the classifier's answers are right, 0.5 is chance"
    without: Mapping[str, object] = {"protocol.sharing.expand_into": _no_pad}

    def attempt(self, folder: Path) -> Found:
        draw = np.random.default_rng(12)
        seen: dict[tuple[Side, bool], list[tuple[int, Floats]]] = {(s, v): [] for s in Side for v in (False, True)}
        with ServersInMemory(folder, _SITES) as servers:
            for number in range(_ROUNDS):
                sites = ScriptedSites(servers, make_study(servers, SMALL, name=f"round-{number}"))
                try:
                    kind = _contributed(sites, draw)
                    for side in Side:
                        for site, stored in _stored(sites, side):
                            vector = vector_side(servers.roster.place(site)) is side
                            seen[side, vector].append((kind[site], stored))
                finally:
                    sites.close()
        found = [found_by_classifier(*(_of_kind(rows, kind) for kind in (0, 1))) for rows in seen.values()]
        return max(found, key=lambda one: one.figure)


def _of_kind(rows: list[tuple[int, Floats]], kind: int) -> Floats:
    return np.array([stored for of, stored in rows if of == kind])


def _contributed(sites: ScriptedSites[ServersInMemory], draw: np.random.Generator) -> dict[str, int]:
    """One round of which the requester's contribution is missing, so that it stays open. -> each site's kind"""
    sites.create()
    told = sites.announcement(1, opens=Needs.NOTHING)
    sites.announce(told)
    kind: dict[str, int] = {}
    for place in (0, 1):  # as many of each kind among the sites whose vectors go to the one server as to the other
        own = _SITES[1 + place :: 2]
        kind |= dict(zip(own, draw.permutation(np.arange(len(own)) % 2).tolist(), strict=True))
    for site in draw.permutation(_SITES[1:]).tolist():
        sites.contribute(site, sites.seal_contribution(site, _update(draw, kind[site]), told), 1)
    return kind


def _update(draw: np.random.Generator, kind: int) -> Ring:
    """Close to zero, or most of the clip norm in every coordinate's sign."""
    return (draw.integers(-8, 8, SMALL) + kind * _LONG).astype(np.int64).view(np.uint64)


def _stored(sites: ScriptedSites[ServersInMemory], side: Side) -> Iterator[tuple[str, Floats]]:
    """Of each site's contribution to this round: what the row holds, in numbers, and how its file begins."""
    connection = database(sites.federation, side)
    try:
        found = connection.execute("select * from contributions where study = ?", [sites.study.digest()])
        columns = [column[0] for column in found.description]
        rows = list(found)
    finally:
        connection.close()
    folder = sites.federation.folder / sites.federation.roster.operator(side).name / "data" / "shares"
    for place, row in enumerate(rows):
        named = dict(zip(columns, row, strict=True))
        content = (folder / named["file"]).read_bytes()
        head = np.frombuffer(content[:_BYTES].ljust(_BYTES, b"\0"), dtype=np.uint8).astype(np.float64)
        yield named["site"], np.array([float(place), float(len(content)), *map(_number, row), *head])


def _number(value: object) -> float:
    """A number as it is, of a text or of bytes the length."""
    if isinstance(value, int | float):
        return float(value)
    return float(len(value)) if isinstance(value, str | bytes) else 0.0


class TrainingTimes(Attack):
    """When a share comes tells how long its site trained, and that how many examples it has."""

    name = "server-times-training"
    party = Party.SERVER
    tries = "tells sites with many examples from those with few by when their shares come"
    defence = "none: who took part and when is not hidden from servers"
    figure = "of the classifier's answers are right, 0.5 is chance"
    promised = False
    without: Mapping[str, object] = {}
    _spec = model_spec("mlp", (30,), (64,), 2)
    _many = 30

    def attempt(self, folder: Path) -> Found:
        self._trained_s(100, 0)  # the first call loads what the others find in memory
        took = np.array([[self._trained_s(n, run) for n in (100, 20_000)] for run in range(self._many)])
        few, many = np.log(took).T[:, :, np.newaxis]
        return found_by_classifier(few, many)

    def _trained_s(self, examples: int, run: int) -> float:
        draw = np.random.default_rng([examples, run])
        data = Examples(draw.normal(size=(examples, 30)).astype(np.float32), draw.integers(0, 2, examples))
        network, whole = build_model(self._spec, 0), TrainingSpec(batch_size=examples)
        began = time.perf_counter()
        compute_update(network, data, whole, round=1, seed=run, device=torch.device("cpu"))
        return time.perf_counter() - began


def stored_by_servers() -> tuple[Attack, ...]:
    """Every attack of this family."""
    return AllTheyStore(), TrainingTimes()
