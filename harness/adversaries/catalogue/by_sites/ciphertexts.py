"""Contributions under CKKS that are none of this study, key, length or form, and one that only looks like one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from harness.adversaries.catalogue.attack import Attack, Found, Party, passes
from harness.adversaries.catalogue.by_servers.ckks_sums import WITHOUT_CHECKS
from harness.adversaries.scripted.ciphertexts import DIMENSION, PARAMETERS, SITES, opened, sent, study_key
from protocol.ckks.ciphertext import HEADER_BYTES, Kind, chunks_of
from protocol.ckks.parameters import CkksParameters
from protocol.ckks.scheme import SecretKey
from protocol.ckks.update import body_header
from protocol.errors import MalformedMessage, SumForged
from servers.ckks.process import CkksProcess
from servers.rounds.ciphertexts import ContributionCheck

_OTHER_SCALE: Final = CkksParameters(scale_bits=35)
_ANOTHER: Final = bytes(32)
_MEGABYTE: Final = 2**20


def _hostile(key: SecretKey) -> Iterator[tuple[str, bytes]]:
    """Bodies that are not a contribution to this study, by what is wrong with them."""
    honest = sent(key, SITES[0])
    yield "of another context", sent(study_key(parameters=_OTHER_SCALE), SITES[0])
    yield "under another key", sent(study_key(_ANOTHER), SITES[0])
    yield "one value short", sent(key, SITES[0], dimension=DIMENSION - 1)
    yield "one value long", sent(key, SITES[0], dimension=DIMENSION + 1)
    yield "a byte short", honest[:-1]
    yield "a byte long", honest + b"\x00"
    yield "twice", honest + honest[HEADER_BYTES:]
    yield "a sum in its place", body_header(Kind.SUM, key, DIMENSION).to_bytes() + honest[HEADER_BYTES:]
    yield "coefficients beyond the modulus", honest[:HEADER_BYTES] + b"\xff" * (len(honest) - HEADER_BYTES)
    yield "nothing", b""
    yield "zeros", bytes(_MEGABYTE)
    yield "another format", b'{"weights": [0.1, 0.2]}' * 10


class NoContribution(Attack):
    """Server A checks the fixed form before a byte reaches SEAL; the parser runs in a process of its own."""

    name = "ciphertexts-of-something-else"
    party = Party.SITE
    tries = "sends ciphertexts of another context, key or length, cut off or lengthened, and what is no ciphertext"
    defence = "a header and a length that follow from the study, checked before a parser sees a byte"
    figure = "hostile bodies that a server took"
    without: Mapping[str, object] = {
        "protocol.ckks.ciphertext.BodyHeader.require": passes,
        "protocol.ckks.ciphertext.ChunkReader.finish": passes,
    }

    def attempt(self, folder: Path) -> Found:
        key = study_key()
        with CkksProcess(PARAMETERS) as process:
            taken = [name for name, body in _hostile(key) if _taken(process, key, body)]
            held = process.pid
            if not _taken(process, key, sent(key, SITES[1])) or process.pid != held:
                return Found(True, len(taken) + 1, "an honest body is not taken any more")
        return Found(bool(taken), len(taken), "; ".join(taken))


def _taken(process: CkksProcess, key: SecretKey, body: bytes, piece: int = 5000) -> bool:
    """As it would arrive, in pieces."""
    check = ContributionCheck(process, key.id, DIMENSION + 1)
    try:
        for at in range(0, len(body), piece):
            check.write(body[at : at + piece])
        check.finish()
    except MalformedMessage:
        return False
    return True


class LooksLikeOne(Attack):
    """No server can see that it is under another key; the sum of all is noise."""

    name = "ciphertext-under-a-key-of-its-own"
    party = Party.SITE
    tries = "encrypts under a key of its own and names the study's, so that the sum of all is noise"
    defence = "check values: every site discards such a sum, and after three of them contributes no more"
    figure = "sums of noise that sites would apply"
    without: Mapping[str, object] = WITHOUT_CHECKS

    def attempt(self, folder: Path) -> Found:
        key, own = study_key(), study_key(_ANOTHER)
        header = body_header(Kind.CONTRIBUTION, key, DIMENSION)
        bodies = [sent(key, site) for site in SITES[:2]]
        bodies.append(header.to_bytes() + sent(own, SITES[2])[HEADER_BYTES:])
        with CkksProcess(PARAMETERS) as process:
            if not all(_taken(process, key, body) for body in bodies):
                return Found(False, 0, "the server noticed")
            columns = zip(*(chunks_of([body], PARAMETERS, header) for body in bodies), strict=True)
            pieces = [body_header(Kind.SUM, key, DIMENSION).to_bytes(), *(process.add(column) for column in columns)]
        try:
            opened(key, pieces, SITES[:3])
        except SumForged:
            return Found(False, 0)
        return Found(True, 1)


def hostile_ciphertexts() -> tuple[Attack, ...]:
    """Every attack of this family."""
    return NoContribution(), LooksLikeOne()
