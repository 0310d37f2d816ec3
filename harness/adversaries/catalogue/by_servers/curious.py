"""Servers that keep to the protocol and study all they get: classifiers on bytes and on lengths.

The figure is the accuracy of a classifier that tells two kinds of sites apart, five-fold, beside its interval: 0.5 is
chance, and better than chance is a leak.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict

from client_agent.site.letter import WeightMail
from harness.adversaries.catalogue.attack import Attack, Found, Party
from harness.adversaries.forgeries import honest_contribution
from harness.adversaries.scripted.there import there
from harness.adversaries.scripted_agents import GRID, PARTIES, REQUESTER, ROSTER, SITES, study
from protocol.arithmetic.fixed_point import clip, encode
from protocol.arithmetic.prg import Usage, derive
from protocol.arithmetic.ring import Ring
from protocol.bodies.letter import seal_letter, told
from protocol.errors import ErrorCode
from protocol.parameters import Needs
from protocol.sharing import Side, vector_side
from protocol.wire.authentic import sign
from protocol.wire.messages import Announcement, Decline, ListedWeight, Message, WeightList

_MANY = 300
_SURE = 5.0
"""Standard errors above chance from which on it is a leak; an honest run gets there once in three million."""
_SEED = bytes(range(32))
Floats = NDArray[np.float64]


def found_by_classifier(first: Floats, second: Floats) -> Found:
    """How well a logistic regression tells rows of the one kind from rows of the other, on rows it has not seen."""
    rows, kind = np.concatenate([first, second]), np.repeat([0, 1], [len(first), len(second)])
    if np.all(rows == rows[0]):
        return Found(False, 0.5, "nothing differs between any two of them; chance is 0.5")
    scaled = (rows - rows.mean(axis=0)) / np.maximum(rows.std(axis=0), 1e-12)
    predicted = cross_val_predict(LogisticRegression(max_iter=500), scaled, kind, cv=5)
    accuracy = float(np.mean(predicted == kind))
    low, high = proportion_confint(accuracy, len(kind))
    leak = accuracy - 0.5 > _SURE * 0.5 / np.sqrt(len(kind))
    return Found(bool(leak), accuracy, f"95 % interval {low:.2f} to {high:.2f} over {len(kind)}; chance is 0.5")


def proportion_confint(share: float, of: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    z = 1.959964
    middle = (share + z * z / (2 * of)) / (1 + z * z / of)
    half = z / (1 + z * z / of) * float(np.sqrt(share * (1 - share) / of + z * z / (4 * of * of)))
    return middle - half, middle + half


class CuriousServer(Attack):
    """Two kinds of sites, whose messages at one server are compared."""

    party = Party.SERVER
    figure = "of the classifier's answers are right, 0.5 is chance"

    def attempt(self, folder: Path) -> Found:
        return found_by_classifier(*(np.array([self._seen(kind, n) for n in range(_MANY)]) for kind in (0, 1)))

    @abstractmethod
    def _seen(self, kind: int, number: int) -> Floats:
        """What the server looks at of one site of that kind."""


def _announced() -> Announcement:
    return Announcement(
        study_digest=study().digest(),
        round=1,
        listed=SITES,
        least_contributors=3,
        opens=Needs.NOTHING,
        model_version=0,
        model_digest="00" * 32,
        weight_list_digest="11" * 32,
        closes_at_s=10**9,
    )


def _no_pad(seed: bytes, usage: Usage, out: Ring, *, start: int) -> None:
    """A pad of zeros: what is left is the vector itself."""
    out[:] = 0


class StoredShares(CuriousServer):
    """The bytes of the shares that a server stores: of updates near zero, and of long ones that all point one way."""

    defence = "additive shares: each alone is uniform"
    without: Mapping[str, object] = {"protocol.sharing.expand_into": _no_pad}

    def __init__(self, side: Side) -> None:
        self._side, self._told = side, _announced()
        self._site = next(site for site in SITES if vector_side(ROSTER.place(site)) is side)
        self.name = f"server-{side.value}-classifies-shares"
        self.tries = f"server {side.value} tells small updates from large ones by the shares it stores"

    def _seen(self, kind: int, number: int) -> Floats:
        draw = np.random.default_rng([kind, number])
        update = clip(np.ones(study().parameters.dimension) * 4.0 * kind + 1e-3 * draw.normal(size=60), 4.0)[0]
        encoded: Ring = encode(update, study().parameters, draw.bytes(32))
        rand = derive(_SEED, f"{self._side.value} {kind} {number}")
        part = honest_contribution(encoded, self._told, self._site, ROSTER, rand)[self._side]
        return np.frombuffer(part.plain[:64], dtype=np.uint8).astype(np.float64)


class LetterLengths(CuriousServer):
    """How long letters are that server A relays: of weight lists, and of the reasons for which sites decline."""

    defence = "letters in which every number takes nine bytes and every reason is padded, inside their seals"
    without: Mapping[str, object] = {
        "protocol.bodies.letter.packed": Message.canonical,
        "protocol.bodies.letter.pad": lambda content, length: content,
    }

    def __init__(self, what: str, tries: str, letter: Callable[[int, int], bytes]) -> None:
        self.name, self.tries, self._letter = f"server-a-measures-{what}", tries, letter

    def _seen(self, kind: int, number: int) -> Floats:
        return np.array([float(len(self._letter(kind, number)))])


def _weights(kind: int, number: int) -> bytes:
    """A list of weights of two digits, or of one."""
    draw = np.random.default_rng([kind, number])
    low, high = ((10, GRID + 1), (1, 10))[kind]
    weights = tuple(ListedWeight(site=site, numerator=int(draw.integers(low, high))) for site in SITES)
    listed = WeightList(study_digest=study().digest(), round=1, grid=GRID, weights=weights, salt="cd" * 32)
    party = there(ROSTER.party(SITES[0]), SITES[0])
    return seal_letter(WeightMail(weight_list=listed), "weights", study().digest(), REQUESTER, party, 1)


def _declined(kind: int, number: int) -> bytes:
    """A site's reason: a short one, or one that quotes its data."""
    reason = ("largest_share: 0.61 of 0.6", f"layer 'weight' holds NaN in {number} of 10 coordinates; look at it " * 3)[
        kind
    ]
    site = SITES[0]
    letter = Decline(
        study_digest=study().digest(), round=1, site=site, code=ErrorCode.POLICY_REFUSAL, reason=told(reason)
    )
    signed = sign(letter, site, PARTIES.keys_of(site).signing)
    to = there(ROSTER.party(REQUESTER), REQUESTER)
    return seal_letter(signed, "decline", study().digest(), site, to, 1)


def curious_servers() -> tuple[Attack, ...]:
    """Every attack of this family."""
    return (
        StoredShares(Side.A),
        StoredShares(Side.B),
        LetterLengths("weight-lists", "tells low weights from high ones by the lengths of weight lists", _weights),
        LetterLengths("declines", "tells why a site declines by the length of its letter", _declined),
    )
