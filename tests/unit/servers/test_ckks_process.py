"""The worker process that parses ciphertexts: it may die, its owner does not; and whatever it is given, it lives.

What a site could reach by odd bytes is tried by ``ciphertexts-of-something-else``; here are parser and words.
"""

from __future__ import annotations

import io
import os
import re
import resource
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import zstandard

from host.files import MemoryFile
from protocol.arithmetic.kernels import Scaling
from protocol.ckks.ciphertext import (
    HEADER_BYTES,
    SEED_BYTES,
    BodyHeader,
    CkksParameters,
    Kind,
    SeededChunk,
    chunk_bytes,
)
from protocol.ckks.scheme import Adder, Decryptor, Encryptor, Scheme, SecretKey
from protocol.ckks.update import SiteChecks, SumChecks, average, body_header, contribution
from protocol.errors import ConfigurationError, MalformedMessage, ProtocolViolation, ShareAltered, Unavailable
from protocol.messages.control import ShareKind
from servers.ckks import process as ckks_process
from servers.ckks.process import CkksProcess, ContributionCheck, summed_body
from servers.ckks.worker import REQUEST, Operation, Verdict, limit_resources, serve
from servers.rounds.ciphertexts import stored_chunks
from servers.store.chunk_tags import ChunkTags, Tagger, layout_of
from tests.kit.present import present

PARAMETERS = CkksParameters()
DIMENSION = 2500
SEED = bytes(range(32))
STUDY, ROUND = "5d" * 32, "a0" * 32
TRIES = 150
SIZE = chunk_bytes(PARAMETERS, Kind.CONTRIBUTION)


@pytest.fixture(scope="module")
def key() -> SecretKey:
    return Scheme(PARAMETERS).secret_key(SEED, STUDY)


@pytest.fixture(scope="module")
def bodies(key: SecretKey) -> list[bytes]:
    """Contributions of 0.01 times the site's number."""
    header, found = body_header(Kind.CONTRIBUTION, key, DIMENSION), list[bytes]()
    for site in ("1", "2", "3"):
        update, checks = np.full(DIMENSION, 0.01 * int(site), dtype=np.float32), SiteChecks(key, ROUND, site)
        found.append(b"".join(contribution(Encryptor(key, MemoryFile()), header, update, Scaling(), 1.0, checks)))
    return found


@pytest.fixture(scope="module")
def lasting() -> Iterator[CkksProcess]:
    """One worker for all that must not end it."""
    with CkksProcess(PARAMETERS) as process:
        yield process


@pytest.fixture
def process() -> Iterator[CkksProcess]:
    with CkksProcess(PARAMETERS) as process:
        yield process


def chunks(body: bytes) -> list[bytes]:
    return [body[at : at + SIZE] for at in range(HEADER_BYTES, len(body), SIZE)]


def bad_chunk() -> bytes:
    return SeededChunk(np.full(2048, PARAMETERS.modulus, dtype=np.uint64), bytes(64)).to_bytes(PARAMETERS)


def test_contributions_are_checked_stored_and_summed(
    lasting: CkksProcess, key: SecretKey, bodies: list[bytes], tmp_path: Path
) -> None:
    sources = []
    for number, body in enumerate(bodies):
        offer(lasting, key, body, 7000)
        path = tmp_path / str(number)
        path.write_bytes(body)
        sources.append(stored_chunks(path, tags_of(body), PARAMETERS, DIMENSION + 1))
    pieces = list(summed_body(lasting, body_header(Kind.SUM, key, DIMENSION), sources))
    checks = SumChecks(key, ROUND, ("1", "2", "3"))
    found = average(
        pieces, Decryptor(key, MemoryFile()), body_header(Kind.SUM, key, DIMENSION), checks, 1.0, clip_norm=1.0
    )
    # The weights are 1, so the average is 0.02; sixteen deviations as in the unit test of ``average``.
    assert found == pytest.approx(np.full(DIMENSION, 0.02), abs=16 * PARAMETERS.value_deviation + 1e-9)


def test_batches_of_a_long_contribution_are_checked_as_they_come(
    lasting: CkksProcess, key: SecretKey, bodies: list[bytes]
) -> None:
    """65 chunks make one full batch and a rest; the last chunk is bad."""
    values = 65 * PARAMETERS.value_slots
    header = BodyHeader(Kind.CONTRIBUTION, lasting.fingerprint(), key.id, values)
    check = ContributionCheck(lasting, header.key_id, header.values)
    with pytest.raises(MalformedMessage, match="not a ciphertext of this study"):
        check.write(header.to_bytes() + 64 * chunks(bodies[0])[0] + bad_chunk())


def tags_of(body: bytes) -> ChunkTags:
    layout = layout_of(ShareKind.CIPHERTEXT, PARAMETERS)
    tagger = Tagger(layout)
    tagger.write(body)
    return ChunkTags("site-1", len(body), layout, tagger.finish())


def test_a_stored_contribution_that_is_cut_or_altered_is_never_added(bodies: list[bytes], tmp_path: Path) -> None:
    path = tmp_path / "cut"
    source = stored_chunks(path, tags_of(bodies[0]), PARAMETERS, DIMENSION + 1)
    with pytest.raises(ShareAltered, match="'site-1'"):
        source(0)
    path.write_bytes(bodies[0][:-1])
    assert source(1) == chunks(bodies[0])[1]
    for index in (2, 3):
        with pytest.raises(ShareAltered, match="'site-1'"):
            source(index)
    path.write_bytes(bodies[1])  # a sound body of another site, under the same key
    with pytest.raises(ShareAltered, match="'site-1'"):
        source(0)


def test_a_refused_chunk_leaves_the_process_running(lasting: CkksProcess, bodies: list[bytes]) -> None:
    lasting.check(chunks(bodies[0]))
    before = lasting.pid
    with pytest.raises(MalformedMessage, match="SEAL refuses it"):
        lasting.check([bad_chunk()])
    with pytest.raises(MalformedMessage, match="must have 10304 bytes"):
        lasting.check([b"short"])
    lasting.check(chunks(bodies[1]))
    assert lasting.pid == before


def test_a_chunk_that_no_longer_parses_at_the_sum_is_a_violation(lasting: CkksProcess, bodies: list[bytes]) -> None:
    with pytest.raises(ProtocolViolation, match="check the disk"):
        lasting.add([chunks(bodies[0])[0], bad_chunk()])
    assert len(lasting.add([chunks(bodies[0])[0]])) == chunk_bytes(PARAMETERS, Kind.SUM)


@pytest.mark.parametrize("count", [0, 101])
def test_sums_of_none_or_too_many_are_refused(lasting: CkksProcess, count: int) -> None:
    with pytest.raises(ProtocolViolation, match="1 to 100"):
        lasting.add(count * [bytes(SIZE)])


def test_a_process_that_was_killed_is_started_again(process: CkksProcess, bodies: list[bytes]) -> None:
    process.check(chunks(bodies[0]))
    first = present(process.pid)
    os.kill(first, signal.SIGKILL)
    process.check(chunks(bodies[0]))
    assert process.pid not in (None, first)


class Impatient(CkksProcess):
    """Waits for the process that hangs no longer than a moment, for every other one as long as a busy machine needs."""

    hangs: int | None = None

    def _exchange(self, running: subprocess.Popen[bytes], message: bytes, answer_bytes: int) -> bytes | None:
        self._timeout_s = 0.3 if running.pid == self.hangs else 60.0
        return super()._exchange(running, message, answer_bytes)


def test_a_process_that_hangs_is_killed_and_a_new_one_answers(bodies: list[bytes]) -> None:
    process = Impatient(PARAMETERS)
    with process:
        process.check(chunks(bodies[0]))
        first = process.hangs = process.pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        begun = time.monotonic()
        process.check(chunks(bodies[0]))  # the second try, in a new process, answers
        assert time.monotonic() - begun > 0.3
        assert process.pid not in (None, first)


class Dying(CkksProcess):
    """Its worker is replaced by a program that says READY and dies of the first request."""

    tail = "sys.stdin.buffer.read(1); os.abort()"

    def _started(self) -> subprocess.Popen[bytes]:
        program = f"import os, sys; {self.tail}"
        self._running = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self._running


class Lying(Dying):
    """Its worker answers an ``ADD`` with too few bytes."""

    tail = f"sys.stdin.buffer.read({REQUEST.size}); os.write(1, bytes([{Verdict.ACCEPTED.value}, 0])); os._exit(0)"


class Babbling(Dying):
    """Its worker answers with a verdict that does not exist."""

    tail = f"sys.stdin.buffer.read({REQUEST.size}); os.write(1, bytes([9])); os._exit(0)"


@pytest.mark.parametrize("kind", [Dying, Babbling])
def test_what_ends_every_process_that_parses_it_is_not_a_ciphertext(kind: type[CkksProcess]) -> None:
    with (
        kind(PARAMETERS) as process,
        pytest.raises(MalformedMessage, match=r"not a ciphertext of this study: the process .* ended \(exit code"),
    ):
        process.check([bytes(SIZE)])


@pytest.mark.parametrize("kind", [Dying, Lying])
def test_a_sum_that_ends_every_process_is_put_off(kind: type[CkksProcess]) -> None:
    with kind(PARAMETERS) as process, pytest.raises(Unavailable, match="could not be added"):
        process.add([bytes(SIZE)])


def test_a_worker_that_cannot_start_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As without TenSEAL: the child ends before it says READY."""
    monkeypatch.setattr(ckks_process, "_PLACE", tmp_path)
    monkeypatch.setattr(ckks_process, "_PASSED_ON", ())
    place = tmp_path / "servers" / "ckks"
    place.mkdir(parents=True)
    (place.parent / "__init__.py").touch()
    (place / "__init__.py").touch()
    (place / "worker.py").write_text("raise SystemExit(3)\n")
    with CkksProcess(PARAMETERS) as process:
        for _ in range(2):
            with pytest.raises(ConfigurationError, match=r"does not start .*pip install 'moiety"):
                process.check([bytes(SIZE)])


def test_the_worker_gets_no_environment_and_no_files(process: CkksProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOIETY_SECRET", "must not be passed on")
    process.fingerprint()
    there = Path(f"/proc/{process.pid}")
    assert b"MOIETY_SECRET" not in (there / "environ").read_bytes()
    targets = {os.readlink(link) for link in (there / "fd").iterdir()}
    assert {target.split(":")[0] for target in targets} <= {"pipe", "/dev/null", "/memfd"}
    limits = (there / "limits").read_text(encoding="ascii")
    assert re.search(r"^Max core file size +0 +0 ", limits, flags=re.MULTILINE)
    assert re.search(rf"^Max address space +{2 * 2**30} ", limits, flags=re.MULTILINE)


def test_serving_in_process(key: SecretKey, bodies: list[bytes]) -> None:
    """The same loop, without a process around it."""
    good = chunks(bodies[0])[0]
    requests = io.BytesIO(
        REQUEST.pack(Operation.CHECK, 1) + good
        + REQUEST.pack(Operation.ADD, 2) + good + bad_chunk()
        + REQUEST.pack(Operation.ADD, 1) + good
    )  # fmt: skip
    answers = io.BytesIO()
    serve(Adder(key.scheme, MemoryFile()), SIZE, requests, answers)
    said = answers.getvalue()
    assert said[:3] == bytes([Verdict.ACCEPTED, Verdict.REFUSED, Verdict.ACCEPTED])
    assert len(said) == 3 + chunk_bytes(PARAMETERS, Kind.SUM)


def test_limits_are_lowered_and_never_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = {}
    monkeypatch.setattr(resource, "getrlimit", lambda limit: (10, 10))
    monkeypatch.setattr(resource, "setrlimit", lambda limit, values: chosen.update({limit: values}))
    limit_resources()
    assert chosen[resource.RLIMIT_AS] == (10, 10)
    assert chosen[resource.RLIMIT_CORE] == (0, 0)
    monkeypatch.setattr(resource, "getrlimit", lambda limit: (resource.RLIM_INFINITY,) * 2)
    limit_resources()
    assert chosen[resource.RLIMIT_AS] == (2 * 2**30,) * 2


def test_neither_the_server_nor_what_it_stores_ever_holds_a_key(
    key: SecretKey, bodies: list[bytes], lasting: CkksProcess, tmp_path: Path
) -> None:
    """All bytes that a server stores or hands to its worker: bodies, header, parameters, sums. None of them is, or
    holds, the key, its seed, or a stream that SEAL would load as a secret key."""
    seal = key.scheme.seal
    path = str(tmp_path / "key")
    key.key.save(path)
    coefficients = np.array([key.key.data().data(i) for i in range(2048)], dtype="<u8").tobytes()
    secrets = [Path(path).read_bytes()[16:], coefficients[:64], coefficients[-64:], SEED]
    total = lasting.add([chunks(body)[0] for body in bodies])
    stored = [*bodies, total, PARAMETERS.model_dump_json().encode(), lasting.fingerprint(), key.id]
    for blob in stored:
        assert not [secret for secret in secrets if secret in blob]
        Path(path).write_bytes(blob)
        with pytest.raises(
            (RuntimeError, ValueError, IndexError)
        ):  # which one depends on what stands where SEAL reads a size
            seal.SecretKey().load(key.scheme.context, path)


def test_a_server_process_that_sums_loads_no_tenseal_itself(bodies: list[bytes]) -> None:
    program = (
        "import sys; from servers.ckks.process import CkksProcess; from protocol.ckks.ciphertext import CkksParameters;"
        "import servers.rounds.ciphertexts; p = CkksProcess(CkksParameters()); p.fingerprint(); p.close();"
        "sys.exit(any(name.startswith(('tenseal', '_tenseal', '_sealapi')) for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=120).returncode == 0


# --- odd bytes --------------------------------------------------------------------------------------------------------


def offer(lasting: CkksProcess, key: SecretKey, body: bytes, piece: int = 5000) -> None:
    """As it would arrive. Raises: MalformedMessage, when it is refused"""
    check = ContributionCheck(lasting, key.id, DIMENSION + 1)
    for at in range(0, len(body), piece):
        check.write(body[at : at + piece])
    check.finish()


def accepted(lasting: CkksProcess, key: SecretKey, body: bytes) -> bool:
    """Refused is a MalformedMessage; any other error fails the test."""
    try:
        offer(lasting, key, body)
    except MalformedMessage:
        return False
    return True


def flip(rng: np.random.Generator, body: bytearray) -> None:
    body[rng.integers(len(body))] ^= 1 << rng.integers(8)


def overwrite(rng: np.random.Generator, body: bytearray) -> None:
    at = int(rng.integers(len(body)))
    noise = rng.choice([bytes(64), b"\xff" * 64, rng.bytes(64)])
    body[at : at + 64] = bytes(noise)[: len(body) - at]


def cut(rng: np.random.Generator, body: bytearray) -> None:
    del body[rng.integers(len(body)) :]


def repeat(rng: np.random.Generator, body: bytearray) -> None:
    at = int(rng.integers(len(body)))
    body += body[at:]


def swap_header_field(rng: np.random.Generator, body: bytearray) -> None:
    at = int(rng.choice([0, 8, 24, 40]))
    body[at : at + 8] = rng.bytes(8)


def garbage(rng: np.random.Generator, body: bytearray) -> None:
    body[HEADER_BYTES:] = rng.bytes(len(body) - HEADER_BYTES)


@pytest.mark.parametrize("mutate", [flip, overwrite, cut, repeat, swap_header_field, garbage])
def test_mutated_bodies_are_refused_or_taken_and_the_worker_lives(
    lasting: CkksProcess, key: SecretKey, bodies: list[bytes], mutate: Callable[[np.random.Generator, bytearray], None]
) -> None:
    honest = bodies[0]
    offer(lasting, key, honest)
    pid, rng, refused = lasting.pid, np.random.default_rng(11), 0
    for _ in range(TRIES):
        body = bytearray(honest)
        mutate(rng, body)
        refused += not accepted(lasting, key, bytes(body))
    offer(lasting, key, honest)
    assert lasting.pid == pid
    if mutate in (cut, repeat, swap_header_field):
        assert refused == TRIES
    assert refused > 0 or mutate in (flip, garbage)  # garbage coefficients are below the modulus but for 2^-15


@pytest.mark.parametrize("seed", [bytes(SEED_BYTES), b"\xff" * SEED_BYTES])
@pytest.mark.parametrize("coefficient", [0, 1, PARAMETERS.modulus - 1])
def test_extreme_but_valid_chunks_are_added(lasting: CkksProcess, seed: bytes, coefficient: int) -> None:
    chunk = SeededChunk(np.full(2048, coefficient, dtype=np.uint64), seed).to_bytes(PARAMETERS)
    lasting.check([chunk])
    assert len(lasting.add([chunk, chunk])) == chunk_bytes(PARAMETERS, Kind.SUM)


# --- SEAL's own streams, which nobody here accepts --------------------------------------------------------------------


def seal_stream(key: SecretKey, tmp_path: Path) -> bytes:
    """The stream that SEAL itself would write."""
    seal, plain = key.scheme.seal, key.scheme.seal.Plaintext()
    seal.CKKSEncoder(key.scheme.context).encode([0.5] * 1024, PARAMETERS.scale, plain)
    seal.Encryptor(key.scheme.context, key.key).encrypt_symmetric(plain).save(str(tmp_path / "ct"))
    return (tmp_path / "ct").read_bytes()


def hostile_streams(honest: bytes) -> Iterator[bytes]:
    """Headers that lie about sizes and versions, and compressed bytes that would fill the memory."""
    header = struct.Struct("<HBBBBHQ")
    magic, length, major, minor, _, _, _ = header.unpack(honest[:16])
    bomb = zstandard.ZstdCompressor(level=1).compress(bytes(2**28))
    yield honest
    yield honest[: len(honest) // 2]
    yield header.pack(magic, length, major, minor, 2, 0, 2**63) + honest[16:]
    yield header.pack(magic, length, major, minor, 0, 0, len(honest)) + honest[16:]
    yield header.pack(magic, length, 3, 1, 2, 0, len(honest)) + honest[16:]
    yield header.pack(magic, length, major, minor, 2, 0, 16 + len(bomb)) + bomb


def test_seals_own_streams_never_reach_its_parser(
    lasting: CkksProcess, key: SecretKey, bodies: list[bytes], tmp_path: Path
) -> None:
    honest = bodies[0]
    offer(lasting, key, honest)
    pid = lasting.pid
    for stream in hostile_streams(seal_stream(key, tmp_path)):
        with pytest.raises(MalformedMessage, match="not a CKKS contribution"):
            offer(lasting, key, stream)
        # Inside a chunk they are coefficients like any others, or refused for their length.
        inside = honest[:HEADER_BYTES] + (stream + bytes(len(honest)))[: len(honest) - HEADER_BYTES]
        accepted(lasting, key, inside)
    offer(lasting, key, honest)
    assert lasting.pid == pid
