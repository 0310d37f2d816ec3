"""Encryption, addition and decryption by SEAL."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest

from host.files import MemoryFile
from protocol.ckks.ciphertext import CkksParameters, SeededChunk, SumChunk
from protocol.ckks.scheme import MISSING, Adder, Decryptor, Encryptor, Scheme, SecretKey
from protocol.errors import ConfigurationError, MalformedMessage, ProtocolViolation, UnusableUpdate
from tests.unit.ckks.conftest import SEED, STUDY

PARAMETERS = CkksParameters()


def clipped(number: int) -> np.ndarray:
    """1,024 values of norm 1."""
    values = np.random.default_rng(number).normal(size=1024)
    return values / np.linalg.norm(values)


@pytest.mark.parametrize("sites", [1, 10, 100])
def test_the_decrypted_sum_is_the_sum_within_the_noise(key: SecretKey, scratch: MemoryFile, sites: int) -> None:
    encryptor, adder, decryptor = Encryptor(key, scratch), Adder(key.scheme, scratch), Decryptor(key, scratch)
    expected = np.zeros(1024)
    for number in range(sites):
        adder.add(encryptor.encrypt(clipped(number)))
        expected += clipped(number)
    error = decryptor.decrypt(adder.finish()) - expected
    deviation = PARAMETERS.value_deviation * math.sqrt(sites)
    # 1,024 nearly normal values: 8 deviations are passed with probability below 1e-12, and the root mean square is
    # within 8 / sqrt(2 * 1024) = 0.18 of the deviation as surely.
    assert np.max(np.abs(error)) < 8 * deviation
    assert np.sqrt(np.mean(error**2)) == pytest.approx(deviation, rel=0.18)


def test_fewer_values_are_filled_up_with_zeros(key: SecretKey, scratch: MemoryFile) -> None:
    adder = Adder(key.scheme, scratch)
    adder.add(Encryptor(key, scratch).encrypt(np.array([0.5, -0.25])))
    found = Decryptor(key, scratch).decrypt(adder.finish())
    assert found[:2] == pytest.approx([0.5, -0.25], abs=8 * PARAMETERS.value_deviation)
    assert np.max(np.abs(found[2:])) < 8 * PARAMETERS.value_deviation


def test_a_hundred_updates_at_the_very_limit_do_not_wrap(key: SecretKey, scratch: MemoryFile) -> None:
    """All magnitudes in the first coefficient: equal values make one coefficient of the largest size."""
    encryptor, adder, decryptor = Encryptor(key, scratch), Adder(key.scheme, scratch), Decryptor(key, scratch)
    most = np.full(1024, 0.999 * PARAMETERS.largest_magnitudes / 1024)
    for _ in range(PARAMETERS.most_sites):
        adder.add(encryptor.encrypt(most))
    assert decryptor.decrypt(adder.finish()) == pytest.approx(100 * most, abs=80 * PARAMETERS.value_deviation)


def test_the_same_values_never_make_the_same_ciphertext(key: SecretKey, scratch: MemoryFile) -> None:
    encryptor = Encryptor(key, scratch)
    one, other = (SeededChunk.parse(encryptor.encrypt(clipped(1)), PARAMETERS) for _ in range(2))
    assert one.seed != other.seed
    # two independent uniform polynomials modulo 2^40 agree in one of 2,048 places with probability 2^-29
    assert np.count_nonzero(one.c0 == other.c0) < 2


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_refused(key: SecretKey, scratch: MemoryFile, bad: float) -> None:
    values = clipped(1)
    values[7] = bad
    with pytest.raises(UnusableUpdate, match="NaN or infinite"):
        Encryptor(key, scratch).encrypt(values)


def test_what_leaves_the_plaintext_range_is_refused(key: SecretKey, scratch: MemoryFile) -> None:
    values = np.full(1024, 1.001 * PARAMETERS.largest_magnitudes / 1024)
    with pytest.raises(UnusableUpdate, match="add up to 82"):
        Encryptor(key, scratch).encrypt(values)


@pytest.mark.parametrize("shape", [(0,), (1025,), (2, 2)])
def test_other_shapes_are_refused(key: SecretKey, scratch: MemoryFile, shape: tuple[int, ...]) -> None:
    with pytest.raises(UnusableUpdate, match="1 to 1024 values"):
        Encryptor(key, scratch).encrypt(np.zeros(shape))


def test_an_adder_keeps_to_the_most_sites(scheme: Scheme, key: SecretKey, scratch: MemoryFile) -> None:
    chunk, adder = Encryptor(key, scratch).encrypt(clipped(1)), Adder(scheme, scratch)
    for _ in range(PARAMETERS.most_sites):
        adder.add(chunk)
    with pytest.raises(ProtocolViolation, match="at most 100"):
        adder.add(chunk)
    adder.reset()
    adder.add(chunk)


def test_a_sum_of_nothing_is_refused(scheme: Scheme, scratch: MemoryFile) -> None:
    with pytest.raises(ProtocolViolation, match="no ciphertexts"):
        Adder(scheme, scratch).finish()


def test_a_sum_that_is_not_encrypted_is_refused(key: SecretKey, scratch: MemoryFile) -> None:
    zeros = np.zeros(2048, dtype=np.uint64)
    with pytest.raises(MalformedMessage, match="not encrypted"):
        Decryptor(key, scratch).decrypt(SumChunk(zeros, zeros).to_bytes(PARAMETERS))


def test_checking_takes_what_adding_takes_and_leaves_the_sum_alone(
    key: SecretKey, scheme: Scheme, scratch: MemoryFile
) -> None:
    adder = Adder(scheme, scratch)
    adder.check(Encryptor(key, scratch).encrypt(clipped(1)))
    with pytest.raises(MalformedMessage):
        adder.check(b"not a ciphertext")
    with pytest.raises(ProtocolViolation):
        adder.finish()


def test_the_key_follows_from_its_seed_and_study(scheme: Scheme, key: SecretKey, scratch: MemoryFile) -> None:
    again = Scheme(PARAMETERS).secret_key(SEED, STUDY)
    adder = Adder(scheme, scratch)
    adder.add(Encryptor(key, scratch).encrypt(clipped(1)))
    found = Decryptor(again, scratch).decrypt(adder.finish())
    assert again.id == key.id
    assert found == pytest.approx(clipped(1), abs=8 * PARAMETERS.value_deviation)


def test_another_seed_or_study_gives_another_key_that_decrypts_nothing(
    scheme: Scheme, key: SecretKey, scratch: MemoryFile
) -> None:
    others = [scheme.secret_key(SEED, "00" * 32), scheme.secret_key(bytes(32), STUDY)]
    assert len({key.id, *(other.id for other in others)}) == 3
    adder = Adder(scheme, scratch)
    adder.add(Encryptor(key, scratch).encrypt(clipped(1)))
    total = adder.finish()
    for other in others:
        assert np.std(Decryptor(other, scratch).decrypt(total)) > 1  # uniform modulo q: far from values below 1


def test_a_key_seed_of_another_length_is_refused(scheme: Scheme) -> None:
    with pytest.raises(MalformedMessage, match="31 bytes"):
        scheme.secret_key(bytes(31), STUDY)


def test_a_key_shows_only_its_id(key: SecretKey) -> None:
    assert repr(key) == f"SecretKey(id={key.id!r})"


def test_a_modulus_that_is_no_prime_is_refused_by_seal() -> None:
    composite = CkksParameters(modulus=(1 << 40) - 4095 - 4096 * 16)
    assert composite.modulus % 4096 == 1
    with pytest.raises(ConfigurationError, match="SEAL refuses"):
        Scheme(composite)


def test_fingerprints_differ_when_the_parameters_do(scheme: Scheme) -> None:
    assert Scheme(CkksParameters(scale_bits=35)).fingerprint != scheme.fingerprint
    assert Scheme(PARAMETERS).fingerprint == scheme.fingerprint


def test_without_tenseal_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tenseal.sealapi", None)
    with pytest.raises(ConfigurationError, match="pip install 'moiety") as caught:
        Scheme(PARAMETERS)
    assert caught.value.detail == MISSING


class Altered(MemoryFile):
    """A scratch file whose bytes change on the way."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self._at = at

    def read(self) -> bytes:
        data = bytearray(super().read())
        data[self._at] ^= 1
        return bytes(data)

    def write(self, data: bytes) -> None:
        changed = bytearray(data)
        changed[self._at] ^= 1
        super().write(bytes(changed))


def test_a_seal_that_writes_another_form_is_not_used(key: SecretKey) -> None:
    with pytest.raises(ConfigurationError, match="another form"):
        Encryptor(key, Altered(at=2)).encrypt(clipped(1))


def test_what_seal_refuses_is_refused(key: SecretKey, scheme: Scheme, scratch: MemoryFile) -> None:
    chunk = Encryptor(key, scratch).encrypt(clipped(1))
    with pytest.raises(MalformedMessage, match="SEAL refuses it"):
        Adder(scheme, Altered(at=20)).add(chunk)
