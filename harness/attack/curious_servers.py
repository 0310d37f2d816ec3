"""Servers that keep to the protocol and study all they get: classifiers on bytes, lengths, rows and times.

The figure is the accuracy of a classifier that tells two kinds of sites apart, five-fold, beside its interval: 0.5 is
chance, and better than chance is a leak.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import binomtest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict

from client_agent.learning.data import Examples
from client_agent.learning.models import build_model, model_spec
from client_agent.learning.trainer import train_round
from client_agent.site.letters import WeightMail
from harness.attack.attack import Attempt, Found
from harness.attack.forgeries import honest_contribution
from harness.attack.scripted_agents import GRID, PARTIES, REQUESTER, ROSTER, SITES, How, announced, study
from harness.attack.scripted_requester import ScriptedRequester
from harness.attack.scripted_rounds import SMALL, data_folder, database, pair_in_memory
from harness.attack.signed_client import there
from harness.federation.server_apps import ServersInMemory
from protocol.arithmetic.fixed_point import clip, encode
from protocol.arithmetic.ring import Ring, Usage, derive
from protocol.errors import ErrorCode
from protocol.messages.control import Decline, Message, TrainingSpec, sign
from protocol.messages.letter import seal_letter, told
from protocol.parameters import Needs
from protocol.sharing import Side, vector_side

_MANY: Final = 300
_SURE: Final = 5.0
"""Standard errors above chance from which on it is a leak; an honest run gets there once in three million."""
Floats = NDArray[np.float64]


def found_by_classifier(first: Floats, second: Floats) -> Found:
    """Measure how well a logistic regression tells two kinds of rows apart, on rows it has not seen."""
    rows, kind = np.concatenate([first, second]), np.repeat([0, 1], [len(first), len(second)])
    if np.all(rows == rows[0]):
        return Found(False, 0.5, "nothing differs between any two of them; chance is 0.5")
    scaled = (rows - rows.mean(axis=0)) / np.maximum(rows.std(axis=0), 1e-12)
    predicted = cross_val_predict(LogisticRegression(max_iter=500), scaled, kind, cv=5)
    right = int(np.count_nonzero(predicted == kind))
    accuracy = right / len(kind)
    low, high = binomtest(right, len(kind)).proportion_ci(method="wilson")
    leak = accuracy - 0.5 > _SURE * 0.5 / np.sqrt(len(kind))
    return Found(bool(leak), accuracy, f"95 % interval {low:.2f} to {high:.2f} over {len(kind)}; chance is 0.5")


def _classified(seen: Callable[[int, int], Floats], _: Path) -> Found:
    """Two kinds of sites, of which a server sees this much: of the n-th site of that kind."""
    return found_by_classifier(*(np.array([seen(kind, n) for n in range(_MANY)]) for kind in (0, 1)))


# --- shares and letters -----------------------------------------------------------------------------------------------

_ANNOUNCED: Final = announced(study(), 1, SITES, How(version=0))[1]


def _share_at(side: Side, kind: int, number: int) -> Floats:
    """The bytes of a share that it stores: of updates near zero, and of long ones that all point one way."""
    parameters, site = study().parameters, next(site for site in SITES if vector_side(ROSTER.place(site)) is side)
    draw = np.random.default_rng([kind, number])
    update = clip(np.ones(parameters.dimension) * 4.0 * kind + 1e-3 * draw.normal(size=60), 4.0)[0]
    encoded: Ring = encode(update, parameters, draw.bytes(32))
    rand = derive(bytes(range(32)), f"{side.value} {kind} {number}")
    part = honest_contribution(encoded, _ANNOUNCED, site, ROSTER, rand)[side]
    return np.frombuffer(part.plain[:64], dtype=np.uint8).astype(np.float64)


def _length_of(letter: Callable[[int, int], bytes], kind: int, number: int) -> Floats:
    return np.array([float(len(letter(kind, number)))])


def _weights(kind: int, number: int) -> bytes:
    """A list of weights of two digits, or of one."""
    draw = np.random.default_rng([kind, number])
    low, high = ((10, GRID + 1), (1, 10))[kind]
    numerators = {site: int(draw.integers(low, high)) for site in SITES}
    listed, _ = announced(study(), 1, SITES, How(version=0, numerators=numerators))
    party = there(ROSTER.party(SITES[0]), SITES[0])
    return seal_letter(WeightMail(weight_list=listed), "weights", study().digest(), REQUESTER, party, 1)


def _declined(kind: int, number: int) -> bytes:
    """A site's reason: a short one, or one that quotes its data."""
    short, long = (
        "largest_share: 0.61 of 0.6",
        f"layer 'weight' holds NaN in {number} of 10 coordinates; look at it " * 3,
    )
    site, reason = SITES[0], told((short, long)[kind])
    letter = Decline(study_digest=study().digest(), round=1, site=site, code=ErrorCode.POLICY_REFUSAL, reason=reason)
    signed = sign(letter, site, PARTIES.keys_of(site).signing)
    return seal_letter(signed, "decline", study().digest(), site, there(ROSTER.party(REQUESTER), REQUESTER), 1)


# --- all that they keep of every contribution, and when it came -------------------------------------------------------

_HOSPITALS: Final = tuple(f"hospital-{number}" for number in range(41))
_BYTES: Final = 64
_LONG: Final = 2**18


def _all_they_store(folder: Path) -> Found:
    """Every column of a contribution's row, its place among the others, and its file: lengths, numbers and bytes.

    Two real servers, forty sites and three rounds; half of their updates are close to zero, half are long.
    """
    draw = np.random.default_rng(12)
    seen: dict[tuple[Side, bool], list[tuple[int, Floats]]] = {(s, v): [] for s in Side for v in (False, True)}
    with pair_in_memory(folder, _HOSPITALS) as pair:
        for sites in [pair.new_study(SMALL) for _ in range(3)]:
            kind = _contributed(sites, draw)
            for side in Side:
                for site, stored in _stored(sites, side):
                    vector = vector_side(pair.federation.roster.place(site)) is side
                    seen[side, vector].append((kind[site], stored))
    results = [
        found_by_classifier(*(np.array([stored for of, stored in rows if of == kind]) for kind in (0, 1)))
        for rows in seen.values()
    ]
    return max(results, key=lambda one: one.figure)


def _contributed(sites: ScriptedRequester[ServersInMemory], draw: np.random.Generator) -> dict[str, int]:
    """One round of which the requester's contribution is missing, so that it stays open. -> each site's kind"""
    announcement = sites.announcement(1, opens=Needs.NOTHING)
    sites.announce(announcement)
    kind: dict[str, int] = {}
    for place in (0, 1):  # as many of each kind among the sites whose vectors go to the one server as to the other
        own = _HOSPITALS[1 + place :: 2]
        kind |= dict(zip(own, draw.permutation(np.arange(len(own)) % 2).tolist(), strict=True))
    for site in draw.permutation(_HOSPITALS[1:]).tolist():
        # Close to zero, or most of the clip norm in every coordinate's sign.
        update = (draw.integers(-8, 8, SMALL) + kind[site] * _LONG).astype(np.int64).view(np.uint64)
        sites.contribute(site, sites.seal_contribution(site, update, announcement), 1)
    return kind


def _stored(sites: ScriptedRequester[ServersInMemory], side: Side) -> Iterator[tuple[str, Floats]]:
    """Yield each site's contribution to this round: its row in numbers, and the beginning of its file."""
    with closing(database(sites.federation, side)) as connection:
        connection.row_factory = sqlite3.Row
        rows = list(connection.execute("select * from contributions where study = ?", [sites.study.digest()]))
    for place, row in enumerate(rows):
        content = (data_folder(sites.federation, side) / "shares" / row["file"]).read_bytes()
        head = np.frombuffer(content[:_BYTES].ljust(_BYTES, b"\0"), dtype=np.uint8).astype(np.float64)
        yield row["site"], np.array([float(place), float(len(content)), *map(_number, row), *head])


def _number(value: object) -> float:
    """A number as it is, of a text or of bytes the length."""
    if isinstance(value, int | float):
        return float(value)
    return float(len(value)) if isinstance(value, str | bytes) else 0.0


def _training_times(_: Path) -> Found:
    """The time of a share tells how long its site trained, and so how many examples it has."""
    _trained_s(100, 0)  # the first call loads what the others find in memory
    took = np.array([[_trained_s(n, run) for n in (100, 20_000)] for run in range(30)])
    few, many = np.log(took).T[:, :, np.newaxis]
    return found_by_classifier(few, many)


def _trained_s(examples: int, run: int) -> float:
    draw = np.random.default_rng([examples, run])
    data = Examples(draw.normal(size=(examples, 30)).astype(np.float32), draw.integers(0, 2, examples))
    network, whole = build_model(model_spec("mlp", (30,), (64,), 2), 0), TrainingSpec(batch_size=examples)
    began = time.perf_counter()
    train_round(network, data, whole, round=1, seed=run, device=torch.device("cpu"))
    return time.perf_counter() - began


def _no_pad(seed: bytes, usage: Usage, out: Ring, *, start: int) -> None:
    """A pad of zeros: what is left is the vector itself."""
    out[:] = 0


_NO_SHARES: Final[Mapping[str, object]] = {"protocol.sharing.expand_into": _no_pad}
_NO_PADDING: Final[Mapping[str, object]] = {
    "protocol.messages.letter.pack_message": Message.canonical,
    "protocol.messages.letter.pad": lambda content, length: content,
}
ATTEMPTS: Final = {
    "server-a-classifies-shares": Attempt(partial(_classified, partial(_share_at, Side.A)), _NO_SHARES),
    "server-b-classifies-shares": Attempt(partial(_classified, partial(_share_at, Side.B)), _NO_SHARES),
    "server-a-measures-weight-lists": Attempt(partial(_classified, partial(_length_of, _weights)), _NO_PADDING),
    "server-a-measures-declines": Attempt(partial(_classified, partial(_length_of, _declined)), _NO_PADDING),
    "servers-classify-all-they-store": Attempt(_all_they_store, _NO_SHARES),
    "server-times-training": Attempt(_training_times),
}
