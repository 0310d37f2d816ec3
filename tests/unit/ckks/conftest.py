"""One scheme and key for all tests: making them takes longer than using them."""

from __future__ import annotations

import pytest

from host.files import MemoryFile
from protocol.ckks.ciphertext import CkksParameters
from protocol.ckks.scheme import Scheme, SecretKey

STUDY = "5d" * 32
SEED = bytes(range(32))


@pytest.fixture(scope="session")
def scheme() -> Scheme:
    return Scheme(CkksParameters())


@pytest.fixture(scope="session")
def key(scheme: Scheme) -> SecretKey:
    return scheme.secret_key(SEED, STUDY)


@pytest.fixture
def scratch() -> MemoryFile:
    return MemoryFile()
