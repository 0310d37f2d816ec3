"""The worker process that parses ciphertexts: it may die, its owner does not."""

from __future__ import annotations

import io
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from host.files import MemoryFile
from protocol.arithmetic.kernels import Scaling
from protocol.ckks.ciphertext import HEADER_BYTES, BodyHeader, CkksParameters, Kind, SeededChunk, chunk_bytes
from protocol.ckks.scheme import Adder, Decryptor, Encryptor, Scheme, SecretKey
from protocol.ckks.update import SiteChecks, SumChecks, average, body_header, contribution
from protocol.errors import ConfigurationError, MalformedMessage, ProtocolViolation, ShareAltered, Unavailable
from protocol.messages.control import ShareKind
from servers.ckks import process as ckks_process
from servers.ckks.process import CkksProcess
from servers.ckks.worker import REQUEST, Operation, Verdict, limit_resources, serve
from servers.rounds.ciphertexts import ContributionCheck, stored_chunks, summed_body
from servers.store.files.chunk_tags import ChunkTags, Tagger, layout_of

PARAMETERS = CkksParameters()
DIMENSION = 2500
SEED = bytes(range(32))
SIZE = chunk_bytes(PARAMETERS, Kind.CONTRIBUTION)


@pytest.fixture(scope="module")
def key() -> SecretKey:
    return Scheme(PARAMETERS).secret_key(SEED, "5d" * 32)


@pytest.fixture(scope="module")
def bodies(key: SecretKey) -> list[bytes]:
    header = body_header(Kind.CONTRIBUTION, key, DIMENSION)
    encryptor = Encryptor(key, MemoryFile())
    updates = {str(site): np.full(DIMENSION, 0.01 * site, dtype=np.float32) for site in (1, 2, 3)}
    return [
        b"".join(contribution(encryptor, header, update, Scaling(), 1.0, SiteChecks(key, "a0" * 32, site)))
        for site, update in updates.items()
    ]


@pytest.fixture
def process() -> Iterator[CkksProcess]:
    with CkksProcess(PARAMETERS) as process:
        yield process


def chunks(body: bytes) -> list[bytes]:
    return [body[at : at + SIZE] for at in range(HEADER_BYTES, len(body), SIZE)]


def bad_chunk() -> bytes:
    return SeededChunk(np.full(2048, PARAMETERS.modulus, dtype=np.uint64), bytes(64)).to_bytes(PARAMETERS)


def test_contributions_are_checked_stored_and_summed(
    process: CkksProcess, key: SecretKey, bodies: list[bytes], tmp_path: Path
) -> None:
    sources = []
    for number, body in enumerate(bodies):
        check = ContributionCheck(process, key.id, DIMENSION + 1)
        for at in range(0, len(body), 7000):
            check.write(body[at : at + 7000])
        check.finish()
        path = tmp_path / str(number)
        path.write_bytes(body)
        sources.append(stored_chunks(path, tags_of(body), PARAMETERS, DIMENSION + 1))
    pieces = list(summed_body(process, body_header(Kind.SUM, key, DIMENSION), sources))
    checks = SumChecks(key, "a0" * 32, ("1", "2", "3"))
    found = average(
        pieces, Decryptor(key, MemoryFile()), body_header(Kind.SUM, key, DIMENSION), checks, 1.0, clip_norm=1.0
    )
    # The weights are 1, so the average is 0.02; sixteen deviations as in the unit test of ``average``.
    assert found == pytest.approx(np.full(DIMENSION, 0.02), abs=16 * PARAMETERS.value_deviation + 1e-9)


def test_batches_of_a_long_contribution_are_checked_as_they_come(
    process: CkksProcess, key: SecretKey, bodies: list[bytes]
) -> None:
    """65 chunks make one full batch and a rest; the last chunk is bad."""
    values = 65 * PARAMETERS.value_slots
    header = BodyHeader(Kind.CONTRIBUTION, process.fingerprint(), key.id, values)
    check = ContributionCheck(process, header.key_id, header.values)
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


def test_a_refused_chunk_leaves_the_process_running(process: CkksProcess, bodies: list[bytes]) -> None:
    process.check(chunks(bodies[0]))
    before = process.pid
    with pytest.raises(MalformedMessage, match="SEAL refuses it"):
        process.check([bad_chunk()])
    with pytest.raises(MalformedMessage, match="must have 10304 bytes"):
        process.check([b"short"])
    process.check(chunks(bodies[1]))
    assert process.pid == before


def test_a_chunk_that_no_longer_parses_at_the_sum_is_a_violation(process: CkksProcess, bodies: list[bytes]) -> None:
    with pytest.raises(ProtocolViolation, match="check the disk"):
        process.add([chunks(bodies[0])[0], bad_chunk()])
    assert len(process.add([chunks(bodies[0])[0]])) == chunk_bytes(PARAMETERS, Kind.SUM)


@pytest.mark.parametrize("count", [0, 101])
def test_sums_of_none_or_too_many_are_refused(process: CkksProcess, count: int) -> None:
    with pytest.raises(ProtocolViolation, match="1 to 100"):
        process.add(count * [bytes(SIZE)])


def test_a_process_that_was_killed_is_started_again(process: CkksProcess, bodies: list[bytes]) -> None:
    process.check(chunks(bodies[0]))
    first = process.pid
    assert first is not None
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
    key: SecretKey, bodies: list[bytes], process: CkksProcess, tmp_path: Path
) -> None:
    """All bytes that a server stores or hands to its worker: bodies, header, parameters, sums. None of them is, or
    holds, the key, its seed, or a stream that SEAL would load as a secret key."""
    seal = key.scheme.seal
    path = str(tmp_path / "key")
    key.key.save(path)
    coefficients = np.array([key.key.data().data(i) for i in range(2048)], dtype="<u8").tobytes()
    secrets = [Path(path).read_bytes()[16:], coefficients[:64], coefficients[-64:], SEED]
    total = process.add([chunks(body)[0] for body in bodies])
    stored = [*bodies, total, PARAMETERS.model_dump_json().encode(), process.fingerprint(), key.id]
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
