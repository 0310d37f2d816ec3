"""Under CKKS: sums of server A's own making, made of ciphertexts without a key, and contributions that are none.

What four sites sent is real, and a site opens what it is served by its own code. Only what a site does uses the key.
TenSEAL is needed when something is encrypted, and not before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from harness.attack.attack import Attempt, Found, found, passes
from harness.attack.scripted_agents import SITES as LISTED
from harness.attack.scripted_agents import How, announced, study
from host.files import MemoryFile
from protocol.arithmetic.kernels import Scaling
from protocol.ckks.ciphertext import HEADER_BYTES, CkksParameters, Kind, SeededChunk, SumChunk, chunks_of
from protocol.ckks.scheme import Decryptor, Encryptor, Scheme, SecretKey, Streams
from protocol.ckks.update import SiteChecks, SumChecks, average, body_header, contribution
from protocol.errors import AggregateOutOfBounds, MalformedMessage, PolicyRefusal, SumForged
from protocol.policy import clauses
from servers.ckks.process import CkksProcess, ContributionCheck

Body: TypeAlias = list[SumChunk]
Update: TypeAlias = NDArray[np.float32]
PARAMETERS: Final = CkksParameters()
MODULUS: Final = PARAMETERS.modulus
STUDY: Final = "5d" * 32
ROUND, EARLIER = "a0" * 32, "a1" * 32
SITES: Final = ("hospital-1", "hospital-2", "hospital-3", "hospital-4")
DIMENSION: Final = 2500
CHUNKS: Final = 3
_ONES: Final = [1] * len(SITES)


def study_key(secret: bytes = bytes(range(32)), parameters: CkksParameters = PARAMETERS) -> SecretKey:
    return Scheme(parameters).secret_key(secret, STUDY)


def update_of(site: str) -> Update:
    """Half a clip norm long."""
    values = np.random.default_rng(SITES.index(site)).normal(size=DIMENSION)
    return (values / (2 * np.linalg.norm(values))).astype(np.float32)


def sent(key: SecretKey, site: str, round_digest: str = ROUND, dimension: int = DIMENSION) -> bytes:
    """One site's whole contribution of weight 1."""
    header = body_header(Kind.CONTRIBUTION, key, dimension)
    checks = SiteChecks(key, round_digest, site)
    update = np.resize(update_of(site), dimension)
    return b"".join(contribution(Encryptor(key, MemoryFile()), header, update, Scaling(), 1.0, checks))


class Held:
    """Server A's ciphertexts of a round; ``earlier``: the second site's share of the round before."""

    def __init__(self) -> None:
        self.key = study_key()
        self.bodies = [self._expanded(sent(self.key, site)) for site in SITES]
        self.earlier = self._expanded(sent(self.key, SITES[1], EARLIER))

    def combined(self, factors: Sequence[int], bodies: Sequence[Body] | None = None) -> Body:
        """A whole-number combination of the sites' ciphertexts, piece by piece."""
        bodies = self.bodies if bodies is None else bodies
        made = [times(chunk, factors[0]) for chunk in bodies[0]]
        for body, factor in zip(bodies[1:], factors[1:], strict=True):
            made = [plus(one, times(other, factor)) for one, other in zip(made, body, strict=True)]
        return made

    def honest(self) -> Body:
        return self.combined(_ONES)

    def encoded(self, slots: NDArray[np.float64], scale: float = PARAMETERS.scale) -> NDArray[np.uint64]:
        """A plaintext's values, which anybody can compute."""
        plain = self.key.scheme.seal.Plaintext()
        self.key.scheme.seal.CKKSEncoder(self.key.scheme.context).encode(slots.tolist(), scale, plain)
        return np.array([plain[place] for place in range(PARAMETERS.ring_degree)], dtype=np.uint64)

    def opened(self, body: Body) -> Update:
        """Open a sum as a site does. Raises: MalformedMessage, SumForged, AggregateOutOfBounds"""
        pieces = [body_header(Kind.SUM, self.key, DIMENSION).to_bytes()]
        pieces += [chunk.to_bytes(PARAMETERS) for chunk in body]
        return opened(self.key, pieces, SITES)

    def _expanded(self, body: bytes) -> Body:
        """Both polynomials of fresh ciphertexts, as server A computes them from the public seed."""
        streams = Streams(self.key.scheme, MemoryFile())
        chunks = chunks_of([body], PARAMETERS, body_header(Kind.CONTRIBUTION, self.key, DIMENSION))
        return [streams.summed(streams.load_seeded(SeededChunk.parse(chunk, PARAMETERS))) for chunk in chunks]


def opened(key: SecretKey, pieces: Sequence[bytes], sites: Sequence[str]) -> Update:
    """Open a served sum as holders of the key do. Any weights will do.

    Raises: MalformedMessage, SumForged, AggregateOutOfBounds
    """
    header, checks = body_header(Kind.SUM, key, DIMENSION), SumChecks(key, ROUND, sites)
    return average(pieces, Decryptor(key, MemoryFile()), header, checks, 0.0, 1.0)


def times(chunk: SumChunk, factor: int | NDArray[np.uint64]) -> SumChunk:
    multiplier = np.asarray(factor, dtype=object)
    return SumChunk(*(((p.astype(object) * multiplier) % MODULUS).astype(np.uint64) for p in (chunk.c0, chunk.c1)))


def plus(one: SumChunk, other: SumChunk) -> SumChunk:
    return SumChunk((one.c0 + other.c0) % np.uint64(MODULUS), (one.c1 + other.c1) % np.uint64(MODULUS))


# --- forged sums ------------------------------------------------------------------------------------------------------

Forgery: TypeAlias = Callable[[Held], Body]
"""The sum that a server makes of ciphertexts, without a key."""


def _forged(forgeries: Mapping[str, Forgery], _: Path) -> Found:
    """Several forgeries of one kind; the figure is how many of them a site opened."""
    held = Held()
    held.opened(held.honest())
    return found([name for name, forge in forgeries.items() if _opens(held, forge)])


def _opens(held: Held, forge: Forgery) -> bool:
    try:
        held.opened(forge(held))
    except (SumForged, AggregateOutOfBounds, MalformedMessage):
        return False
    return True


def _of(*factors: int) -> Forgery:
    return lambda held: held.combined(factors)


def _times_all(place: int) -> Forgery:
    """One ciphertext of an honest sum is the victim's alone."""

    def forge(held: Held) -> Body:
        body = held.honest()
        body[place] = times(held.bodies[1][place], len(SITES))
        return body

    return forge


def _out_of_place(held: Held) -> Body:
    first, second, third = held.honest()
    return [first, third, second]


def _plus_a_vector(checks_moved_by: float) -> Forgery:
    """A thousandth of the clip norm on one coordinate, with the check values left alone or moved at a guess."""

    def forge(held: Held) -> Body:
        offset = np.zeros(PARAMETERS.slots)
        offset[7] = 1e-3
        offset[PARAMETERS.value_slots :] = checks_moved_by
        body = held.honest()
        body[0] = SumChunk((body[0].c0 + held.encoded(offset)) % np.uint64(MODULUS), body[0].c1)
        return body

    return forge


def _mask(held: Held, checks: float) -> NDArray[np.uint64]:
    """A polynomial that multiplies every slot by a number of its own: values by 4, check values by ``checks``."""
    mask = np.full(PARAMETERS.slots, float(len(SITES)))
    mask[PARAMETERS.value_slots :] = checks
    return held.encoded(mask, scale=1.0)


def _slots_multiplied(held: Held) -> Body:
    """The victim's values by 5, its check values by 1."""
    extra = _mask(held, 0.0)
    return [plus(chunk, times(own, extra)) for chunk, own in zip(held.honest(), held.bodies[1], strict=True)]


def _slots_of_one_multiplied(held: Held) -> Body:
    multiplier = _mask(held, 1.0)
    return [times(chunk, multiplier) for chunk in held.bodies[1]]


def _noisy(held: Held) -> Body:
    """The noise that it adds depends on the secret key: whether it is noticed is one bit, for three rounds at most."""
    body = held.honest()
    body[0] = SumChunk(body[0].c0, (body[0].c1 + np.uint64(2**26)) % np.uint64(MODULUS))
    return body


def _in_clear(held: Held) -> Body:
    polynomial = np.zeros(PARAMETERS.ring_degree, dtype=np.uint64)
    return [SumChunk(polynomial, polynomial)] * CHUNKS


_COMBINATIONS: Final = (
    *((0, 2, 1, 1), (1, 1, 2, 0), (2, 2, 0, 0), (-1, 3, 1, 1)),
    *((1, 1, 1, 0), (1, 1, 1, 2), (2, 3, -3, 2)),
)
_FORGED: Final[Mapping[str, Mapping[str, Forgery]]] = {
    "ckks-one-site-alone": {
        "all of it": _of(0, len(SITES), 0, 0),
        **{f"ciphertext {place} alone": _times_all(place) for place in range(CHUNKS)},
    },
    "ckks-other-sums": {
        **{f"sites times {factors}": _of(*factors) for factors in _COMBINATIONS},
        "out of place": _out_of_place,
        # The same site, the same update.
        "of an earlier round": lambda held: held.combined(_ONES, [held.bodies[0], held.earlier, *held.bodies[2:]]),
    },
    "ckks-something-added": {
        **{f"a vector, checks moved by {by:.0e}": _plus_a_vector(by) for by in (0.0, 1e-3 / 32, -1e-3 / 32)},
        "values multiplied": _slots_multiplied,
        "one site's values multiplied": _slots_of_one_multiplied,
        "noise on the second polynomial": _noisy,
    },
}


def _forged_for_ever(_folder: Path) -> Found:
    """A server that never stops asking: each discarded sum may tell a bit of the key."""
    discarded = tuple[int, ...]()
    for number in range(1, 31):
        told = announced(study(), number, LISTED, How(version=0))[1].model_copy(update={"ckks_key_id": "ab" * 16})
        try:
            clauses.check_discarded_sums(told, discarded)
        except PolicyRefusal:
            break
        discarded = (*discarded, number)
    return Found(len(discarded) > clauses.MOST_DISCARDED_SUMS, len(discarded))


# --- contributions of something else ----------------------------------------------------------------------------------

_ANOTHER: Final = bytes(32)


def _hostile(key: SecretKey) -> Iterator[tuple[str, bytes]]:
    """Bodies that are not a contribution to this study, by what is wrong with them."""
    honest = sent(key, SITES[0])
    yield "of another context", sent(study_key(parameters=CkksParameters(scale_bits=35)), SITES[0])
    yield "under another key", sent(study_key(_ANOTHER), SITES[0])
    yield "one value short", sent(key, SITES[0], dimension=DIMENSION - 1)
    yield "one value long", sent(key, SITES[0], dimension=DIMENSION + 1)
    yield "a byte short", honest[:-1]
    yield "a byte long", honest + b"\x00"
    yield "twice", honest + honest[HEADER_BYTES:]
    yield "a sum in its place", body_header(Kind.SUM, key, DIMENSION).to_bytes() + honest[HEADER_BYTES:]
    yield "coefficients beyond the modulus", honest[:HEADER_BYTES] + b"\xff" * (len(honest) - HEADER_BYTES)
    yield "nothing", b""
    yield "zeros", bytes(2**20)
    yield "another format", b'{"weights": [0.1, 0.2]}' * 10


def _of_something_else(_: Path) -> Found:
    """Server A checks the fixed form before a byte reaches SEAL; the parser runs in a process of its own."""
    key = study_key()
    with CkksProcess(PARAMETERS) as process:
        taken = [name for name, body in _hostile(key) if _taken(process, key, body)]
        held = process.pid
        if not _taken(process, key, sent(key, SITES[1])) or process.pid != held:
            return Found(True, len(taken) + 1, "an honest body is not taken any more")
    return found(taken)


def _taken(process: CkksProcess, key: SecretKey, body: bytes) -> bool:
    """As it would arrive, in pieces."""
    check = ContributionCheck(process, key.id, DIMENSION + 1)
    try:
        for at in range(0, len(body), 5000):
            check.write(body[at : at + 5000])
        check.finish()
    except MalformedMessage:
        return False
    return True


def _under_its_own_key(_: Path) -> Found:
    """No server can see that it is under another key; the sum of all is noise."""
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


_NO_CHECKS: Final[Mapping[str, object]] = {
    "protocol.ckks.update.SumChecks.require": lambda checks, number, slots: slots[: PARAMETERS.value_slots],
    "protocol.ckks.update._checked_weights": lambda found, summed, least, parameters: float(summed),
    "protocol.ckks.update._require_norm": passes,
}
ATTEMPTS: Final = {
    **{name: Attempt(partial(_forged, forgeries), _NO_CHECKS) for name, forgeries in _FORGED.items()},
    "ckks-sum-in-clear": Attempt(
        partial(_forged, {"zeros": _in_clear}),
        {**_NO_CHECKS, "protocol.ckks.scheme.Streams.load_sum": lambda s, chunk: s._loaded(s._sum_stream(chunk))},
    ),
    "ckks-forged-for-ever": Attempt(_forged_for_ever, {"protocol.policy.clauses.check_discarded_sums": passes}),
    "ciphertexts-of-something-else": Attempt(
        _of_something_else,
        {"protocol.ckks.ciphertext.BodyHeader.require": passes, "protocol.ckks.ciphertext.ChunkReader.finish": passes},
    ),
    "ciphertext-under-a-key-of-its-own": Attempt(_under_its_own_key, _NO_CHECKS),
}
