"""The requester's probe: the gradient of its validation loss, with which every update's inner product is opened.

The vector is clipped and encoded like an update of weight 1 and never leaves this site but as query shares
(docs/protocol.md 8).
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from pydantic import BaseModel, ConfigDict

from client_agent.study.contribute import EncodedFile, journal_encoded
from client_agent.study.participant import Participant
from protocol.arithmetic.fixed_point import decode
from protocol.messages.control import Announcement
from protocol.protection.shares import CHUNK, encode_update

_ENCODED: Final = "probe.ring"
_RECORD: Final = "probe.json"


class Probe(BaseModel):
    """||v|| of the clipped probe v, and <g_0, v> with the requester's own clipped update."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    norm: float
    inner_product: float


def make_probe(owner: Participant, announcement: Announcement) -> Probe:
    """The round's probe, encoded in the journal; computed only the first time.

    Requires: the round's own update is encoded
    Raises:   UnusableUpdate; ConfigurationError without validation examples
    """
    round_number = announcement.round
    folder = owner.journal.round_folder(round_number)
    known = owner.journal.read(folder / _RECORD, Probe)
    if known is not None and (folder / _ENCODED).exists():  # as with the update
        return known
    with owner.stopwatch.phase("probing"):
        vector = owner.learner.probe(owner.require_model())
        parameters = owner.study.parameters
        seed = owner.context.randomness.bytes(32, f"probe rounding {owner.study_digest} round {round_number}")
        made = encode_update(vector, owner.layers, 1.0, parameters, seed)
        encoded = journal_encoded(made, folder / _ENCODED, 1.0, parameters.weight_grid)
        own, products = owner.encoded_file(announcement), []
        source = probe_file(owner, round_number)
        for start in range(0, parameters.dimension, CHUNK):
            stop = min(start + CHUNK, parameters.dimension)
            mine, theirs = (decode(of(start, stop), parameters) for of in (own, source))
            products.append(float(np.dot(mine, theirs)))
    probe = Probe(norm=encoded.norm, inner_product=math.fsum(products))
    owner.journal.write(folder / _RECORD, probe)
    return probe


def probe_file(owner: Participant, round_number: int) -> EncodedFile:
    """Chunk access to the encoded probe."""
    return EncodedFile(owner.journal.round_folder(round_number) / _ENCODED, owner.study.parameters.dimension)
