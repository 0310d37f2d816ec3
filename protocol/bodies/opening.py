"""One server's shares of what an attempt opens, sealed to the requester (docs/protocol.md 6, 8).

header    which challenge and side; the sites checked, in the agreed set's order; what is opened about them
content   every site's range shares, then every site's values; 8 bytes each
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from protocol.arithmetic.ring import ELEMENT_BYTES, from_bytes, to_bytes
from protocol.bodies import sealed
from protocol.errors import MalformedMessage, TranscriptMismatch
from protocol.mpc.measurement import OpeningShare
from protocol.mpc.quantity import value_count
from protocol.parameters import RANGE_PROJECTIONS
from protocol.wire.channel.sealing import SealedReader
from protocol.wire.keys import SealingKey, SealingPublicKey
from protocol.wire.messages import OpeningHeader


def seal_opening(
    header: OpeningHeader, shares: Sequence[OpeningShare], recipient: SealingPublicKey, secret: bytes
) -> bytes:
    """The body, of the shares in the header's order. Requires: ``secret`` as :func:`seal_body`"""
    ranges, values = [to_bytes(s.range_shares) for s in shares], [to_bytes(s.values) for s in shares]
    return sealed.seal_body(header, ranges + values, recipient, secret).whole()


def most_opening_bytes(sites: int) -> int:
    """The longest body about so many sites: range checks, and at most one value a pair."""
    return sealed.most_body_bytes(ELEMENT_BYTES * sites * (RANGE_PROJECTIONS + sites))


def read_opening(body: bytes, expected: OpeningHeader, requester: str, key: SealingKey) -> tuple[OpeningShare, ...]:
    """The shares of exactly the expected opening, in the order of its sites.

    Raises: TranscriptMismatch, MalformedMessage, BrokenSeal
    """

    def accept(raw: bytes) -> None:
        if OpeningHeader.parse(raw) != expected:
            raise TranscriptMismatch(f"server {expected.side} opened other sites or another challenge than the round's")

    content = b"".join(sealed.open_body(SealedReader(key, accept), [body]))
    checked = expected.checked
    counts = [value_count(expected.opens, place, site == requester) for place, site in enumerate(checked)]
    ranges = len(checked) * RANGE_PROJECTIONS
    length = ranges + sum(counts)
    if len(content) != length * ELEMENT_BYTES:
        raise MalformedMessage(
            f"server {expected.side}'s opening has {len(content)} bytes, expected {length * ELEMENT_BYTES}"
        )
    numbers = from_bytes(content, length)
    range_shares = numbers[:ranges].reshape(len(checked), RANGE_PROJECTIONS)
    values = np.split(numbers[ranges:], np.cumsum(counts)[:-1])
    return tuple(OpeningShare(*one) for one in zip(checked, range_shares, values, strict=True))
