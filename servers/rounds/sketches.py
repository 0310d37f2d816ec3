"""Steps from the lock to the opening: sketches, queries, products, the sealed opening (docs/protocol.md 5 to 8)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ParamSpec, TypeVar

import numpy as np
from fastapi import Request

from protocol.arithmetic.ring import Ring, Usage, expand_into, from_bytes, to_bytes
from protocol.errors import ConflictingMessage, ProtocolViolation, ShareAltered, WrongRound
from protocol.messages import bodies
from protocol.messages.bodies import SECRET_BYTES, Queries
from protocol.messages.control import OpeningHeader, Purpose, QueryHeader, RoundState, ShareKind, Study
from protocol.mpc import measurement
from protocol.mpc.measurement import product_lengths
from protocol.mpc.sketch import sketch_shares
from protocol.ot.session import CorrelationHalf
from protocol.parameters import StudyParameters
from protocol.rounds.states import RoundKey
from protocol.sharing import ChunkSource
from servers.http.authentication import Caller
from servers.http.bodies import HashOnly, SealedIntake, stream_into
from servers.points import Point
from servers.server import Server
from servers.shards.ranges import Bound, StoredShare
from servers.store.files.shares import file_name
from servers.store.files.stored_vector import Scratch, StoredVector, read_whole, tags_of
from servers.store.records import ContributionRecord
from servers.store.study_records import RoundRecord, StudyRecord
from servers.studies import refuse

P = ParamSpec("P")
T = TypeVar("T")


def share_source(server: Server, record: ContributionRecord, scratch: Scratch) -> ChunkSource:
    """Chunk access to one site's stored share: never the whole vector in memory, nor the file mapped."""
    if record.wrapped_key is not None and server.shards is not None:
        return server.shards.source(stored_share(record))
    if record.file is None:
        raise ProtocolViolation(f"the share of {record.site!r} has been deleted; its round is over")
    path, tags = server.files.path(record.file), tags_of(record)
    if record.header.share_kind is ShareKind.SEED:
        seed = read_whole(path, tags)
        return lambda start, stop: _expanded(seed, start, scratch.take(stop - start))
    stored = StoredVector(path, record.header.length, record.header.share_kind.ring_bits, tags)
    stored.require_whole()
    return lambda start, stop: stored.elements(start, stop, scratch)


def stored_share(record: ContributionRecord) -> StoredShare:
    """Return the place of a share for a worker. Raises: ProtocolViolation, where no worker can read it"""
    if record.file is None or record.wrapped_key is None:
        raise ProtocolViolation(
            f"the share of {record.site!r} has been deleted, or came before the server had a cluster; its round is over"
        )
    kind, length = record.header.share_kind, record.header.length
    return StoredShare(record.file, kind, length, record.wrapped_key, record.chunk_tags)


def stored_shares(server: Server, record: RoundRecord, sites: Sequence[str]) -> list[StoredShare]:
    """Return the places of some sites' shares for workers, in the given order. Raises: ProtocolViolation"""
    held = {c.site: c for c in server.store.contributions(record.key)}
    return [stored_share(held[site]) for site in sites]


def bound_of(record: RoundRecord) -> Bound:
    """Return the state to which a pass over the round's shares is bound."""
    release = "" if record.release_set is None else record.release_set.message.digest()
    challenge = record.challenged.transcript.message.challenge
    return Bound(record.key.study, record.key.round, record.key.attempt, challenge, release)


def _sketched(server: Server, record: RoundRecord, parameters: StudyParameters) -> Callable[[], list[Ring]]:
    """Return the function that computes the sketches, here or by the workers of a cluster."""
    challenged, shards = record.challenged, server.shards
    if shards is None:
        sources = agreed_sources(server, record, challenged.sites)
        return partial(sketch_shares, challenged.challenge, sources, parameters)
    bound, shares = bound_of(record), stored_shares(server, record, challenged.sites)
    return partial(by_site(server, record, shards.sketches), bound, shares, parameters)


def by_site(server: Server, record: RoundRecord, work: Callable[P, T]) -> Callable[P, T]:
    """``work`` that workers do, to whom a share has a file's name alone: its error names the site."""

    def named(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return work(*args, **kwargs)
        except ShareAltered as error:
            for one in server.store.contributions(record.key):
                if one.file is not None and error.is_of(one.file):
                    raise ShareAltered(error.detail.replace(one.file, one.site)) from None
            raise

    return named


def require_unaltered(server: Server, record: RoundRecord) -> None:
    """Compare all that is stored of the released sites with what was received, before a byte of their sum leaves.

    In a round that side B masks, B has released by the time its sum is read, and nothing ends the round otherwise.
    Shares in a cluster's storage are compared by the workers alone. Blocks. Raises: ShareAltered
    """
    held = {one.site: one for one in server.store.contributions(record.key)}
    for one in [held[site] for site in record.chosen.message.sites]:
        if one.file is None or one.wrapped_key is not None:
            continue
        tags = tags_of(one)
        with tags.reading(), server.files.path(one.file).open("rb", buffering=0) as file:
            tags.require_file(file)


def _expanded(seed: bytes, start: int, out: Ring) -> Ring:
    expand_into(seed, Usage.SHARE, out, start=start)
    return out


def agreed_sources(server: Server, record: RoundRecord, sites: Sequence[str]) -> list[ChunkSource]:
    """The sources of some sites' shares, in the given order; for one thread, which uses each piece at once."""
    held = {c.site: c for c in server.store.contributions(record.key)}
    scratch = Scratch()
    return [share_source(server, held[site], scratch) for site in sites]


class Sketches:
    """Sketches under way or done, in memory only; after a restart they are computed again from the shares."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._tasks: dict[RoundKey, asyncio.Task[list[Ring]]] = {}

    def begin(self, record: RoundRecord, parameters: StudyParameters) -> asyncio.Task[list[Ring]]:
        """Start sketching every agreed share, unless that is under way or done; needs the transcript."""
        known = self._tasks.get(record.key)
        if known is None or (known.done() and (known.cancelled() or known.exception() is not None)):
            for old in [key for key in self._tasks if key.study == record.key.study]:
                self._tasks.pop(old).cancel()
            work = asyncio.to_thread(_sketched(self._server, record, parameters))
            task = self._tasks[record.key] = asyncio.create_task(work)
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # perhaps nobody awaits it
        return self._tasks[record.key]

    def forget(self, key: RoundKey) -> None:
        self._tasks.pop(key, None)


# --- queries ----------------------------------------------------------------------------------------------------------


def parameters_of(study: StudyRecord, record: RoundRecord) -> StudyParameters:
    """The numbers that a round's vectors obey."""
    return study.study.parameters_in(record.announcement.message.purpose)


def targets_of(server: Server, record: RoundRecord) -> tuple[str, ...]:
    """The sites that the requester sends queries for: the agreed set without itself, none where it sends none."""
    if not record.announcement.message.opens.queried or record.agreed_set is None:
        return ()
    return tuple(site for site in record.agreed_set.message.sites if site != server.roster.requester)


def queries_missing(record: RoundRecord) -> bool:
    return record.announcement.message.opens.queried and record.query_header is None


async def store_queries(
    server: Server, caller: Caller, study: StudyRecord, record: RoundRecord, request: Request
) -> None:
    """Store the requester's query shares before they are used; other bytes for the same attempt are refused.

    Raises: WrongRound, MalformedMessage, TranscriptMismatch, ConflictingMessage, BrokenSeal, BadSignature, TooLarge
    """
    if record.query_digest is not None:
        again = HashOnly()
        await stream_into(request, again, _expected_queries(server, study, record).most_bytes)
        _require_same_queries(server, record, again.finish(caller))
        return
    _require_queries_welcome(record)
    expected = _expected_queries(server, study, record)
    header, digest, name = await _queries_taken_in(server, caller, record, request, expected)
    _commit_queries(server, record, header, digest, name)


async def _queries_taken_in(
    server: Server, caller: Caller, record: RoundRecord, request: Request, expected: Queries
) -> tuple[QueryHeader, str, str]:
    """Open queries into a file that no row names yet. -> their header, the sealed message's digest, the file's name"""
    with server.files.draft() as draft:
        intake = SealedIntake(server.keys.sealing, expected, draft)
        await stream_into(request, intake, expected.most_bytes)
        header, digest = await asyncio.to_thread(intake.finish, caller)
        name = file_name("query", record.key.study, record.key.round, record.key.attempt, digest)
        await asyncio.to_thread(draft.keep, name)
    return header, digest, name


def _commit_queries(server: Server, record: RoundRecord, header: QueryHeader, digest: str, name: str) -> None:
    """Commit the row; what has happened since the body began to arrive is looked at again."""
    with server.store.alone(record.key.study):
        _keep_queries(server, server.store.round(record.key) or record, header, digest, name)


def _keep_queries(server: Server, now: RoundRecord, header: QueryHeader, digest: str, name: str) -> None:
    if now.query_digest is not None:
        if now.query_file != name:
            server.files.delete([name])
        _require_same_queries(server, now, digest)
        return
    try:
        _require_queries_welcome(now)
    except WrongRound:
        server.files.delete([name])
        raise
    server.failpoints.reach(Point.BEFORE_QUERIES_STORED)
    server.store.change_round(now.key, lambda r: replace(r, query_header=header, query_digest=digest, query_file=name))
    server.failpoints.reach(Point.AFTER_QUERIES_STORED)


def _require_queries_welcome(record: RoundRecord) -> None:
    if record.state is not RoundState.LOCKED or record.transcript is None or record.outcome is not None:
        raise WrongRound(
            f"round {record.key.round} is {record.state}; queries are welcome between challenge and products"
        )
    opens = record.announcement.message.opens
    if not opens.queried:
        raise WrongRound(f"round {record.key.round} opens {opens.value}; it takes no queries")


def _require_same_queries(server: Server, record: RoundRecord, digest: str) -> None:
    if record.query_digest != digest:
        error = ConflictingMessage(f"queries for {record.key.label} came before with other bytes; the first ones stand")
        raise refuse(server, record.key.study, server.roster.requester, error)


def _expected_queries(server: Server, study: StudyRecord, record: RoundRecord) -> Queries:
    """Return the form of the requester's queries to this server, once the challenge is signed."""
    stated = record.challenged.transcript.message.digest()
    return Queries(stated, server.side, targets_of(server, record), parameters_of(study, record).sketched_length)


def _query_shares(server: Server, record: RoundRecord, parameters: StudyParameters) -> dict[str, Ring]:
    """Target -> its query share; a seed stands for all targets' vectors, one after the other; a norm's is zero."""
    if record.announcement.message.opens.of_norms and record.agreed_set is not None:
        zero = np.zeros(parameters.sketched_length, dtype=np.uint64)
        return {site: zero for site in record.agreed_set.message.sites if site != server.roster.requester}
    if record.query_header is None or record.query_file is None:
        return {}
    return bodies.read_query(record.query_header, server.files.path(record.query_file).read_bytes())


# --- products and opening ---------------------------------------------------------------------------------------------


def needed_lengths(server: Server, record: RoundRecord, parameters: StudyParameters) -> list[tuple[int, ...]]:
    """The product lengths of each agreed site's correlation, in order."""
    opens, requester = record.announcement.message.opens, server.roster.requester
    return [
        product_lengths(opens, place, site == requester, parameters)
        for place, site in enumerate(record.agreed.message.sites)
    ]


def most_elements(study: Study, sites: int) -> int:
    """The elements of the longest masked vector when all sites of the roster take part."""
    rounds = [
        (purpose.plan.opened(study.rule.needs), study.parameters_in(purpose))
        for purpose in Purpose
        if study.last_round(purpose)
    ]
    return max(
        sum(sum(product_lengths(needs, place, is_requester=False, parameters=of)) for place in range(sites))
        for needs, of in rounds
    )


@dataclass(frozen=True, eq=False)
class Products:
    """One side's products of an attempt: operands, correlations and the masked vector for the peer."""

    operands: list[measurement.Operands] = field(repr=False)
    halves: list[CorrelationHalf] = field(repr=False)
    masked: bytes = field(repr=False)


def prepare_products(
    server: Server,
    record: RoundRecord,
    sketches: list[Ring],
    halves: list[CorrelationHalf],
    parameters: StudyParameters,
) -> Products:
    """Steps 1 and 2 for every agreed site; the correlations must be marked as used before the bytes leave."""
    challenged = record.challenged
    queries = _query_shares(server, record, parameters)
    sites = [
        measurement.SiteSketch(site, sketch, queries.get(site))
        for site, sketch in zip(challenged.sites, sketches, strict=True)
    ]
    opens = record.announcement.message.opens
    operands = measurement.prepare_all(server.side, challenged.challenge, sites, parameters, opens=opens)
    masked = [measurement.masked(own, half) for own, half in zip(operands, halves, strict=True)]
    return Products(operands, halves, to_bytes(np.concatenate(masked)))


def seal_opening(
    server: Server,
    record: RoundRecord,
    products: Products,
    peer_masked: bytes | memoryview,
    zero_key: bytes,
    parameters: StudyParameters,
) -> bytes:
    """Step 3: this side's shares of the range checks and of what the round opens, sealed to the requester.

    Raises: MalformedMessage, when the peer's vector has another length
    """
    sizes = [sum(half.lengths) for half in products.halves]
    pieces = np.split(from_bytes(peer_masked, sum(sizes)), np.cumsum(sizes)[:-1])
    shares = [
        measurement.opening_share(server.side, own, piece, half, zero_key, record.key.label, parameters)
        for own, piece, half in zip(products.operands, pieces, products.halves, strict=True)
    ]
    header = OpeningHeader(
        transcript_digest=record.challenged.transcript.message.digest(),
        side=server.side,
        checked=tuple(s.site for s in shares),
        opens=record.announcement.message.opens,
    )
    secret = server.randomness.bytes(SECRET_BYTES, f"{record.key.label} opening")
    return bodies.seal_opening(header, shares, server.sealing_key_of(server.roster.requester), secret)
