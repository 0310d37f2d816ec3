"""The server's side of the CKKS worker: it may die, the server does not (docs/protocol.md 11)."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Final

from protocol.ckks.ciphertext import (
    FINGERPRINT_BYTES,
    BodyHeader,
    ChunkReader,
    CkksParameters,
    Kind,
    chunk_bytes,
    chunk_count,
)
from protocol.ckks.scheme import MISSING
from protocol.errors import ConfigurationError, MalformedMessage, ProtocolViolation, Unavailable
from protocol.messages.bodies import Part
from protocol.messages.control import Announcement, ShareKind
from servers.ckks.worker import REQUEST, Operation, Verdict

_PLACE: Final = Path(__file__).resolve().parents[2]
_START_S: Final = 60.0
_TRIES: Final = 2
_CHECKED_TOGETHER: Final = 64
_PASSED_ON: Final = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH")


def require_tenseal() -> None:
    """Raises: ConfigurationError, which names the extra to install"""
    if find_spec("tenseal") is None:
        raise ConfigurationError(MISSING)


class _Died(Exception):
    """The worker ended, hung or answered nonsense."""


class CkksProcess(contextlib.AbstractContextManager["CkksProcess"]):
    """One worker process, started when it is needed and again after it died. For several threads, in turns.

    ``timeout_s``: a request that takes longer ends the process.
    """

    def __init__(self, parameters: CkksParameters, timeout_s: float = 30.0) -> None:
        self.parameters = parameters
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._running: subprocess.Popen[bytes] | None = None
        self._fingerprint = b""

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        return None if self._running is None else self._running.pid

    def fingerprint(self) -> bytes:
        """Return the fingerprint that contributions begin with, from a worker that has read nothing yet.

        Raises: ConfigurationError, when the process cannot start
        """
        with self._lock:
            if not self._fingerprint:
                self._started()
            return self._fingerprint

    def check(self, chunks: Sequence[bytes]) -> None:
        """Parse some chunks of one contribution.

        Raises: MalformedMessage, when they do not parse, or twice end the process that parses them;
                ConfigurationError, when the process cannot start
        """
        try:
            answer = self._asked(Operation.CHECK, chunks, answer_bytes=0)
        except _Died as error:
            raise MalformedMessage(f"not a ciphertext of this study: {error}") from error
        if answer is None:
            raise MalformedMessage("not a ciphertext of this study: SEAL refuses it")

    def add(self, chunks: Sequence[bytes]) -> bytes:
        """The sum of one chunk of every contribution, each checked before.

        Raises: ProtocolViolation, when one does not parse any more; Unavailable, when the process died twice;
                ConfigurationError, when it cannot start
        """
        if not 1 <= len(chunks) <= self.parameters.most_sites:
            raise ProtocolViolation(f"a sum is of 1 to {self.parameters.most_sites} ciphertexts, found {len(chunks)}")
        try:
            total = self._asked(Operation.ADD, chunks, chunk_bytes(self.parameters, Kind.SUM))
        except _Died as error:
            raise Unavailable(f"ciphertexts could not be added: {error}; try again later") from error
        if total is None:
            raise ProtocolViolation("a stored ciphertext does not parse any more; check the disk")
        return total

    def close(self) -> None:
        with self._lock:
            self._end()

    def _asked(self, operation: Operation, chunks: Sequence[bytes], answer_bytes: int) -> bytes | None:
        """The answer, None for a refusal. Raises: _Died, after the last try"""
        size = chunk_bytes(self.parameters, Kind.CONTRIBUTION)
        if any(len(chunk) != size for chunk in chunks):
            raise MalformedMessage(f"a chunk of a CKKS contribution must have {size} bytes")
        message = REQUEST.pack(operation, len(chunks)) + b"".join(chunks)
        with self._lock:
            for _ in range(_TRIES):
                try:
                    return self._exchange(self._started(), message, answer_bytes)
                except (_Died, OSError):
                    ended = self._end()
        raise _Died(f"the process that parses it ended ({ended})")

    def _exchange(self, running: subprocess.Popen[bytes], message: bytes, answer_bytes: int) -> bytes | None:
        requests, answers = _pipes(running)
        with _deadline(running, self._timeout_s):
            requests.write(message)
            requests.flush()
            verdict = answers.read(1)
            if verdict == bytes([Verdict.ACCEPTED]):
                payload = answers.read(answer_bytes)
                if len(payload) == answer_bytes:
                    return payload
            elif verdict == bytes([Verdict.REFUSED]):
                return None
        raise _Died("no answer")

    def _started(self) -> subprocess.Popen[bytes]:
        if self._running is None or self._running.poll() is not None:
            self._end()
            self._running = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-m", "servers.ckks.worker", self.parameters.model_dump_json()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=_PLACE,
                env={name: os.environ[name] for name in _PASSED_ON if name in os.environ},
                start_new_session=True,
            )
            _, answers = _pipes(self._running)
            with _deadline(self._running, _START_S):
                ready = answers.read(1 + FINGERPRINT_BYTES)
            if len(ready) != 1 + FINGERPRINT_BYTES or ready[0] != Verdict.READY:
                ended = self._end()
                raise ConfigurationError(
                    f"the CKKS worker does not start ({ended}); is TenSEAL there? pip install 'moiety[he]'"
                )
            self._fingerprint = self._fingerprint or ready[1:]
        return self._running

    def _end(self) -> str:
        running, self._running = self._running, None
        if running is None:
            return "not running"
        running.kill()
        code = running.wait()
        for pipe in _pipes(running):
            with contextlib.suppress(OSError):  # what was not yet written cannot be written any more
                pipe.close()
        return f"exit code {code}"


@contextlib.contextmanager
def _deadline(running: subprocess.Popen[bytes], timeout_s: float) -> Iterator[None]:
    """Kills the process unless left in time, which ends every read and write on its pipes."""
    timer = threading.Timer(timeout_s, running.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _pipes(running: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    if running.stdin is None or running.stdout is None:
        raise ConfigurationError("the CKKS worker was started without pipes to ask it through")
    return running.stdin, running.stdout


class ContributionCheck:
    """Keeps of a contribution only what the worker parses. Blocks: for threads, never for the event loop.

    ``keep`` gets every piece; the first one starts the worker.

    Raises: MalformedMessage, on another context, key or length, and on what is no ciphertext; ConfigurationError
    """

    def __init__(
        self, process: CkksProcess, key_id: bytes, values: int, keep: Callable[[bytes], None] = lambda piece: None
    ) -> None:
        self._process = process
        self._expected = (key_id, values)
        self._keep = keep

    @cached_property
    def _reader(self) -> ChunkReader:
        header = BodyHeader(Kind.CONTRIBUTION, self._process.fingerprint(), *self._expected)
        return ChunkReader(self._process.parameters, header)

    def write(self, piece: bytes) -> None:
        chunks = self._reader.feed(piece)
        for start in range(0, len(chunks), _CHECKED_TOGETHER):
            self._process.check(chunks[start : start + _CHECKED_TOGETHER])
        self._keep(piece)

    def finish(self) -> None:
        self._reader.finish()


def content_check(
    process: CkksProcess, announcement: Announcement, part: Part
) -> Callable[[Callable[[bytes], None]], ContributionCheck] | None:
    """Return what makes the check of a contribution's content; None for one of shares."""
    if part.kind is not ShareKind.CIPHERTEXT:
        return None
    return partial(ContributionCheck, process, key_id_of(announcement), part.length)


def summed_body(process: CkksProcess, header: BodyHeader, sources: Sequence[Callable[[int], bytes]]) -> Iterator[bytes]:
    """The body of the sum, which every site of the cohort decrypts; ``header`` is of the kind SUM.

    Reveals:  nothing to whoever has no key
    Raises:   as :meth:`CkksProcess.add`
    """
    yield header.to_bytes()
    for index in range(chunk_count(process.parameters, header.values)):
        yield process.add([source(index) for source in sources])


def key_id_of(announcement: Announcement) -> bytes:
    """The key that the round's ciphertexts are under. Raises: ProtocolViolation, in a round of shares"""
    if announcement.ckks_key_id is None:
        raise ProtocolViolation(f"round {announcement.round} is one of shares; it has no bodies of ciphertexts")
    return bytes.fromhex(announcement.ckks_key_id)
