"""The process that parses and adds ciphertexts, and may die of one: ``python -m servers.ckks.worker PARAMETERS``.

TenSEAL parses in C++. This process holds no key and no connection, gets no environment, and has bounded memory. It
reads requests from its standard input and answers on its standard output:

    request:  u8 operation | u32 number of chunks | chunks, all of the one length that the parameters fix
    answer:   u8 verdict | for an accepted ``ADD``, the sum
    at first: u8 READY | the fingerprint that contributions must carry
"""

from __future__ import annotations

import resource
import struct
import sys
from enum import IntEnum
from typing import BinaryIO, Final

from host.command_line import end_with
from host.files import MemoryFile
from protocol.ckks.ciphertext import CkksParameters, Kind, chunk_bytes
from protocol.ckks.scheme import Adder, Scheme
from protocol.errors import MoietyError

REQUEST: Final = struct.Struct("<BI")
MEMORY_BYTES: Final = 2 * 2**30
FILE_BYTES: Final = 16 * 2**20
OPEN_FILES: Final = 64


class Operation(IntEnum):
    CHECK = 1
    ADD = 2


class Verdict(IntEnum):
    READY = 0
    ACCEPTED = 1
    REFUSED = 2


def main() -> None:
    """Say READY, then serve until the input ends. A missing TenSEAL ends it before."""
    parameters = CkksParameters.model_validate_json(sys.argv[1])
    scheme = Scheme(parameters)
    adder = Adder(scheme, MemoryFile())
    limit_resources()
    sys.stdout.buffer.write(bytes([Verdict.READY]) + scheme.fingerprint)
    sys.stdout.buffer.flush()
    serve(adder, chunk_bytes(parameters, Kind.CONTRIBUTION), sys.stdin.buffer, sys.stdout.buffer)


def serve(adder: Adder, size: int, requests: BinaryIO, answers: BinaryIO) -> None:
    while head := requests.read(REQUEST.size):
        operation, count = REQUEST.unpack(head)
        answers.write(_answer(adder, Operation(operation), [requests.read(size) for _ in range(count)]))
        answers.flush()


def _answer(adder: Adder, operation: Operation, chunks: list[bytes]) -> bytes:
    try:
        if operation is Operation.ADD:
            return bytes([Verdict.ACCEPTED]) + adder.sum(chunks)
        for chunk in chunks:
            adder.check(chunk)
        return bytes([Verdict.ACCEPTED])
    except MoietyError:
        adder.reset()
        return bytes([Verdict.REFUSED])


def limit_resources() -> None:
    """Memory, files and their size; no core dumps, which would hold what was parsed."""
    for limit, most in (
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(limit)[1]
        lowered = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(limit, (lowered, lowered))


if __name__ == "__main__":
    end_with(main)
