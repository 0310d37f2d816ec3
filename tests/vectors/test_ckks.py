"""``ckks.json``: the same key and fingerprint for ever, and bytes that every version opens."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import pytest

from host.files import MemoryFile
from protocol.ckks.ciphertext import HEADER_BYTES, CkksParameters, Kind
from protocol.ckks.scheme import Adder, Decryptor, Scheme, SecretKey
from protocol.ckks.update import SumChecks, average, body_header
from tests.vectors.material import FOLDER

# Eight deviations of two contributions, divided by weights of 1.5; twice, since the weights' sum is noisy too.
NOISE = 2 * 8 * CkksParameters().value_deviation * math.sqrt(2) / 1.5


@pytest.fixture(scope="module")
def vector() -> Any:
    return json.loads((FOLDER / "ckks.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def key(vector: Any) -> SecretKey:
    scheme = Scheme(CkksParameters(**vector["parameters"]))
    return scheme.secret_key(bytes.fromhex(vector["key_seed"]), vector["study_digest"])


def test_the_default_parameters_are_the_vectors(vector: Any) -> None:
    assert CkksParameters().model_dump() == vector["parameters"]


def test_key_and_fingerprint_are_the_vectors(vector: Any, key: SecretKey) -> None:
    assert key.id.hex() == vector["key_id"]
    assert key.scheme.fingerprint.hex() == vector["fingerprint"]


def test_the_sum_opens_to_the_average(vector: Any, key: SecretKey) -> None:
    header = body_header(Kind.SUM, key, 4)
    body = base64.b64decode(vector["sum_base64"])
    checks = SumChecks(key, vector["announcement_digest"], vector["sites"])
    found = average([body], Decryptor(key, MemoryFile()), header, checks, 0.5, vector["clip_norm"])
    assert found == pytest.approx(vector["average"], abs=vector["clip_norm"] * NOISE + 2.0**-24)


def test_the_contributions_add_up_to_the_very_same_sum(vector: Any, key: SecretKey) -> None:
    """Addition is exact: every implementation must give these bytes."""
    adder = Adder(key.scheme, MemoryFile())
    for body in vector["contributions_base64"]:
        adder.add(base64.b64decode(body)[HEADER_BYTES:])
    assert adder.finish() == base64.b64decode(vector["sum_base64"])[HEADER_BYTES:]
