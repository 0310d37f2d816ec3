"""Writes ``ckks.json``: a key, and contributions and a sum under it.

    python -m tests.vectors.ckks_once

SEAL draws the noise and the seeds itself, so, unlike the other vectors, these cannot
come from the slow reference; every run writes other ciphertexts, and the file is written once; what it
holds for ever is that every later version derives this key, has this fingerprint, and opens these bytes.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from host.files import MemoryFile
from protocol.arithmetic.kernels import Scaling
from protocol.ckks.ciphertext import HEADER_BYTES, CkksParameters, Kind
from protocol.ckks.scheme import Adder, Encryptor, Scheme
from protocol.ckks.update import SiteChecks, body_header, contribution
from tests.vectors.material import FOLDER

SEED = bytes(range(32))
STUDY = "5d" * 32
ROUND = "a0" * 32
SITES = ("site-a", "site-b")
CLIP_NORM = 2.0
UPDATES = ([0.5, -0.25, 1.0, 0.0], [0.125, 0.75, -1.0, 1.5])
WEIGHTS = (1.0, 0.5)


def ckks() -> dict[str, Any]:
    scheme = Scheme(CkksParameters())
    key = scheme.secret_key(SEED, STUDY)
    bodies = [b"".join(_body(key, site)) for site in range(len(UPDATES))]
    adder = Adder(scheme, MemoryFile())
    for body in bodies:
        adder.add(body[HEADER_BYTES:])
    total = body_header(Kind.SUM, key, len(UPDATES[0])).to_bytes() + adder.finish()
    return {
        "parameters": scheme.parameters.model_dump(),
        "fingerprint": scheme.fingerprint.hex(),
        "key_seed": SEED.hex(),
        "study_digest": STUDY,
        "key_id": key.id.hex(),
        "announcement_digest": ROUND,
        "sites": SITES,
        "clip_norm": CLIP_NORM,
        "updates": UPDATES,
        "weights": WEIGHTS,
        "average": (np.average(UPDATES, axis=0, weights=WEIGHTS)).tolist(),
        "contributions_base64": [base64.b64encode(body).decode() for body in bodies],
        "sum_base64": base64.b64encode(total).decode(),
    }


def _body(key: Any, site: int) -> Iterator[bytes]:
    update = np.array(UPDATES[site])
    header = body_header(Kind.CONTRIBUTION, key, update.size)
    checks, scaling = SiteChecks(key, ROUND, SITES[site]), Scaling(weight=WEIGHTS[site])
    return contribution(Encryptor(key, MemoryFile()), header, update, scaling, CLIP_NORM, checks)


if __name__ == "__main__":
    (FOLDER / "ckks.json").write_text(json.dumps(ckks(), indent=1) + "\n")
